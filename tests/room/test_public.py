"""What the package offers is what it says it offers."""

import gatepost.room as package


def test_all_names_exist_and_are_sorted() -> None:
    assert all(hasattr(package, name) for name in package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)
    constants = sorted(name for name in package.__all__ if name.isupper())
    classes = sorted(n for n in package.__all__ if n[0].isupper() and not n.isupper())
    functions = sorted(name for name in package.__all__ if name[0].islower())
    assert package.__all__ == constants + classes + functions
