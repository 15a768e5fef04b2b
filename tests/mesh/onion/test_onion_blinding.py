from gatepost.events import verify_signature
from gatepost.mesh.onion.onion_blinding import blind_key, find_blinded_key, subcredential
from gatepost.mesh.onion.onion_identity import OnionIdentity
from tests.room.sample_records import NOW

SERVICE = OnionIdentity(b"s" * 32)
PERIOD = NOW // 60_000 // 1440


def test_a_blinded_key_signs_like_any_ed25519_key() -> None:
    key = blind_key(SERVICE, PERIOD)
    assert verify_signature(key.public_key, b"message", key.sign(b"message"))
    assert not verify_signature(key.public_key, b"another", key.sign(b"message"))
    assert key.scalar.hex() not in repr(key)


def test_each_period_and_each_service_has_a_key_of_its_own() -> None:
    keys = {blind_key(SERVICE, PERIOD + step).public_key for step in range(3)}
    keys.add(blind_key(SERVICE, PERIOD, 8).public_key)
    keys.add(blind_key(OnionIdentity(b"t" * 32), PERIOD).public_key)
    assert len(keys) == 5
    assert subcredential(SERVICE, keys.pop()) != subcredential(SERVICE, keys.pop())


def test_the_key_of_this_time_is_found_again() -> None:
    for period in (PERIOD - 2, PERIOD - 1, PERIOD, PERIOD + 1):
        key = blind_key(SERVICE, period)
        assert find_blinded_key(SERVICE, key.public_key, NOW) == key
    assert find_blinded_key(SERVICE, blind_key(SERVICE, PERIOD - 3).public_key, NOW) is None
