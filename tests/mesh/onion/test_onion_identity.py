from msgspec.structs import replace

from gatepost.access import MeshSecrets
from gatepost.mesh.onion.onion_identity import OnionIdentity, expand_seed, master_identity

SECRETS = MeshSecrets(1, "ann", "c" * 43, "j" * 43, (), "o" * 43)


def test_the_address_of_a_service_is_the_one_that_tor_gives_it() -> None:
    # Tor answered ADD_ONION with this address for the key of this seed.
    expected = "v4dkhyzjc4koj42wygojwfondfi6y3tgmkvhppqhkr7sre4dgqoqsbid.onion"
    assert OnionIdentity(b"a" * 32).host == expected


def test_the_scalar_is_clamped() -> None:
    expanded = expand_seed(b"a" * 32)
    assert len(expanded) == 64
    assert (expanded[0] & 7, expanded[31] & 192) == (0, 64)


def test_all_members_derive_the_same_master_key_and_a_rotation_replaces_it() -> None:
    same = replace(SECRETS, revoked=("ab" * 16,))
    assert master_identity(SECRETS) == master_identity(same)
    rotated = replace(SECRETS, version=2, onion_seed="p" * 43)
    assert master_identity(rotated).host != master_identity(SECRETS).host
    assert master_identity(SECRETS).seed.hex() not in repr(master_identity(SECRETS))
