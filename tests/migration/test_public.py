"""What the package offers is what it says it offers."""

from gatepost import migration


def test_every_public_name_is_there() -> None:
    assert sorted(migration.__all__) == migration.__all__
    assert all(hasattr(migration, name) for name in migration.__all__)
