"""Only the nodes a payload is sealed to can read it, and only where it belongs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import ConfigError, EncryptionError
from gatepost.events.encryption import (
    EncryptedPayload,
    NodeKey,
    PayloadCipher,
    fingerprint_key,
    verify_signature,
)
from tests.events.fakes import StillClock

clock = StillClock()
ALICE, BOB, CAROL = (NodeKey.generate(clock) for _ in range(3))
alice, bob, carol = (PayloadCipher(key, clock) for key in (ALICE, BOB, CAROL))


def seal(payload: bytes, *recipients: NodeKey) -> tuple[EncryptedPayload, bytes]:
    publics = [key.public for key in recipients]
    return alice.encrypt(payload, publics, event_id="e1", source_node_id="alice")


def unseal(
    sealer: PayloadCipher,
    sealed: EncryptedPayload,
    by: bytes = ALICE.public,
    event_id: str = "e1",
    source: str = "alice",
) -> bytes:
    return sealer.decrypt(sealed, encrypted_by=by, event_id=event_id, source_node_id=source)


def flip(data: bytes, index: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


def test_a_key_is_its_seed_and_does_not_show_it() -> None:
    again = NodeKey(ALICE.secret)
    assert (again.public, again.fingerprint) == (ALICE.public, ALICE.fingerprint)
    assert ALICE.secret.hex() not in repr(ALICE)
    assert repr(ALICE) == f"<NodeKey {fingerprint_key(ALICE.public)}>"


@pytest.mark.parametrize("secret", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_key_file_is_a_config_error(secret: bytes) -> None:
    with pytest.raises(ConfigError, match="32 bytes"):
        NodeKey(secret)


def test_signatures_hold_for_one_key_and_one_message() -> None:
    signature = ALICE.sign(b"yes")
    assert verify_signature(ALICE.public, b"yes", signature)
    assert not verify_signature(BOB.public, b"yes", signature)
    assert not verify_signature(ALICE.public, b"no", signature)
    assert not any(verify_signature(ALICE.public, b"yes", flip(signature, i)) for i in range(64))
    assert not verify_signature(ALICE.public, b"yes", signature[:-1])
    assert not verify_signature(b"short", b"yes", signature)


@given(st.binary(max_size=2000))
def test_every_recipient_opens_what_was_sealed(payload: bytes) -> None:
    sealed, _ = seal(payload, BOB, CAROL)
    assert unseal(bob, sealed) == unseal(carol, sealed) == payload


def test_sealed_survives_json() -> None:
    sealed, _ = seal(b"\0secret\xff", BOB)
    wire = msgspec.json.encode(sealed)
    assert b"secret" not in wire
    assert unseal(bob, msgspec.json.decode(wire, type=EncryptedPayload)) == b"\0secret\xff"


def test_a_node_can_seal_to_itself() -> None:
    assert unseal(alice, seal(b"note", ALICE)[0]) == b"note"


def test_equal_payloads_seal_differently() -> None:
    one, two = seal(b"same", BOB)[0], seal(b"same", BOB)[0]
    assert one.data != two.data
    assert one.keys != two.keys


def test_others_cannot_open() -> None:
    with pytest.raises(EncryptionError, match="not encrypted for this node"):
        unseal(carol, seal(b"private", BOB)[0])


def test_a_key_wrapped_for_another_does_not_open_under_my_name() -> None:
    sealed, _ = seal(b"private", BOB)
    stolen = {CAROL.fingerprint: sealed.keys[BOB.fingerprint]}
    with pytest.raises(EncryptionError):
        unseal(carol, msgspec.structs.replace(sealed, keys=stolen))


def test_the_sealing_node_cannot_be_impersonated() -> None:
    with pytest.raises(EncryptionError, match=CAROL.fingerprint):
        unseal(bob, seal(b"hello", BOB)[0], by=CAROL.public)


@pytest.mark.parametrize(
    ("event_id", "source"), [("e2", "alice"), ("e1", "carol"), ("e1alice", ""), ("e1a", "lice")]
)
def test_a_payload_opens_only_in_its_own_event(event_id: str, source: str) -> None:
    with pytest.raises(EncryptionError, match="altered or misplaced"):
        unseal(bob, seal(b"hello", BOB)[0], event_id=event_id, source=source)


def test_tampering_with_any_byte_is_noticed() -> None:
    sealed, _ = seal(b"pay bob 10", BOB)
    wrapped = sealed.keys[BOB.fingerprint]
    tampered = [
        msgspec.structs.replace(sealed, data=flip(sealed.data, i)) for i in range(len(sealed.data))
    ] + [
        msgspec.structs.replace(sealed, keys={BOB.fingerprint: flip(wrapped, i)})
        for i in range(len(wrapped))
    ]
    for bad in tampered:
        with pytest.raises(EncryptionError):
            unseal(bob, bad)


def test_truncation_anywhere_is_noticed() -> None:
    sealed, _ = seal(b"pay bob 10", BOB)
    wrapped = sealed.keys[BOB.fingerprint]
    cut = [msgspec.structs.replace(sealed, data=sealed.data[:n]) for n in range(len(sealed.data))]
    cut += [
        msgspec.structs.replace(sealed, keys={BOB.fingerprint: wrapped[:n]})
        for n in range(len(wrapped))
    ]
    for bad in cut:
        with pytest.raises(EncryptionError):
            unseal(bob, bad)


def test_a_wrapped_key_of_the_wrong_length_is_noticed() -> None:
    sealed, _ = seal(b"hello", BOB)
    short = alice.wrap_key(b"short", [BOB.public])
    with pytest.raises(EncryptionError):
        unseal(bob, msgspec.structs.replace(sealed, keys=short))


def test_the_sender_reseals_for_a_new_owner_without_touching_the_ciphertext() -> None:
    sealed, content_key = seal(b"moved", BOB)
    moved = alice.replace_recipients(sealed, content_key, [CAROL.public])
    assert moved.data == sealed.data
    assert unseal(carol, moved) == b"moved"
    with pytest.raises(EncryptionError):
        unseal(bob, moved)


def test_an_owner_reseals_for_its_successor() -> None:
    sealed, _ = seal(b"handed over", BOB)
    handed = bob.replace_recipients(
        sealed, bob.unwrap_key(sealed.keys, ALICE.public), [CAROL.public]
    )
    assert unseal(carol, handed, by=BOB.public) == b"handed over"


def test_sealing_to_nobody_is_refused() -> None:
    with pytest.raises(EncryptionError, match="at least one recipient"):
        seal(b"lost")


@pytest.mark.parametrize("public", [b"", b"x" * 31, bytes(32), b"\x01" + bytes(31)])
def test_an_unusable_recipient_key_is_refused(public: bytes) -> None:
    with pytest.raises(EncryptionError, match="not a usable node key"):
        alice.wrap_key(bytes(32), [public])


def test_the_key_cache_is_bounded_and_still_right_after_eviction() -> None:
    small = PayloadCipher(ALICE, clock, cache_size=1)
    for _ in range(2):
        for key, sealer in ((BOB, bob), (CAROL, carol)):
            keys = small.wrap_key(b"k" * 32, [key.public])
            assert sealer.unwrap_key(keys, ALICE.public) == b"k" * 32
    assert small._shared_key.cache_info().currsize == 1
