"""The package exports what its `__all__` says, and nothing by accident."""

from types import ModuleType

from gatepost import events


def test_all_names_exist_and_are_sorted_as_ruff_sorts_them() -> None:
    constants = [name for name in events.__all__ if name.isupper()]
    classes = [name for name in events.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in events.__all__ if name[0].islower()]
    assert events.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


def test_nothing_public_is_missing_from_all() -> None:
    public = {
        name
        for name, value in vars(events).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(events.__all__)
