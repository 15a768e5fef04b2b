from gatepost import access


def test_every_public_name_exists_once_and_in_order() -> None:
    assert access.__all__ == sorted(set(access.__all__))
    assert all(hasattr(access, name) for name in access.__all__)
