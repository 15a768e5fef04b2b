"""Only the nodes a payload is encrypted for can read it, and only where it belongs."""

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


def encrypt(payload: bytes, *recipients: NodeKey) -> tuple[EncryptedPayload, bytes]:
    publics = [key.public for key in recipients]
    return alice.encrypt(payload, publics, event_id="e1", source_node_id="alice")


def decrypt(
    cipher: PayloadCipher,
    encrypted: EncryptedPayload,
    by: bytes = ALICE.public,
    event_id: str = "e1",
    source: str = "alice",
) -> bytes:
    return cipher.decrypt(encrypted, encrypted_by=by, event_id=event_id, source_node_id=source)


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
def test_every_recipient_decrypts_the_payload(payload: bytes) -> None:
    encrypted, _ = encrypt(payload, BOB, CAROL)
    assert decrypt(bob, encrypted) == decrypt(carol, encrypted) == payload


def test_an_encrypted_payload_survives_json() -> None:
    encrypted, _ = encrypt(b"\0secret\xff", BOB)
    wire = msgspec.json.encode(encrypted)
    assert b"secret" not in wire
    assert decrypt(bob, msgspec.json.decode(wire, type=EncryptedPayload)) == b"\0secret\xff"


def test_a_node_can_encrypt_for_itself() -> None:
    assert decrypt(alice, encrypt(b"note", ALICE)[0]) == b"note"


def test_equal_payloads_are_encrypted_differently() -> None:
    one, two = encrypt(b"same", BOB)[0], encrypt(b"same", BOB)[0]
    assert one.data != two.data
    assert one.keys != two.keys


def test_others_cannot_open() -> None:
    with pytest.raises(EncryptionError, match="not encrypted for this node"):
        decrypt(carol, encrypt(b"private", BOB)[0])


def test_a_key_wrapped_for_another_does_not_open_under_my_name() -> None:
    encrypted, _ = encrypt(b"private", BOB)
    stolen = {CAROL.fingerprint: encrypted.keys[BOB.fingerprint]}
    with pytest.raises(EncryptionError):
        decrypt(carol, msgspec.structs.replace(encrypted, keys=stolen))


def test_the_encrypting_node_cannot_be_impersonated() -> None:
    with pytest.raises(EncryptionError, match=CAROL.fingerprint):
        decrypt(bob, encrypt(b"hello", BOB)[0], by=CAROL.public)


@pytest.mark.parametrize(
    ("event_id", "source"), [("e2", "alice"), ("e1", "carol"), ("e1alice", ""), ("e1a", "lice")]
)
def test_a_payload_opens_only_in_its_own_event(event_id: str, source: str) -> None:
    with pytest.raises(EncryptionError, match="altered or misplaced"):
        decrypt(bob, encrypt(b"hello", BOB)[0], event_id=event_id, source=source)


def test_tampering_with_any_byte_is_noticed() -> None:
    encrypted, _ = encrypt(b"pay bob 10", BOB)
    wrapped = encrypted.keys[BOB.fingerprint]
    tampered = [
        msgspec.structs.replace(encrypted, data=flip(encrypted.data, i))
        for i in range(len(encrypted.data))
    ] + [
        msgspec.structs.replace(encrypted, keys={BOB.fingerprint: flip(wrapped, i)})
        for i in range(len(wrapped))
    ]
    for bad in tampered:
        with pytest.raises(EncryptionError):
            decrypt(bob, bad)


def test_truncation_anywhere_is_noticed() -> None:
    encrypted, _ = encrypt(b"pay bob 10", BOB)
    wrapped = encrypted.keys[BOB.fingerprint]
    cut = [
        msgspec.structs.replace(encrypted, data=encrypted.data[:n])
        for n in range(len(encrypted.data))
    ]
    cut += [
        msgspec.structs.replace(encrypted, keys={BOB.fingerprint: wrapped[:n]})
        for n in range(len(wrapped))
    ]
    for bad in cut:
        with pytest.raises(EncryptionError):
            decrypt(bob, bad)


def test_a_wrapped_key_of_the_wrong_length_is_noticed() -> None:
    encrypted, _ = encrypt(b"hello", BOB)
    short = alice.wrap_key(b"short", [BOB.public])
    with pytest.raises(EncryptionError):
        decrypt(bob, msgspec.structs.replace(encrypted, keys=short))


def test_the_sender_encrypts_again_for_a_new_owner_without_touching_the_ciphertext() -> None:
    encrypted, content_key = encrypt(b"moved", BOB)
    moved = alice.replace_recipients(encrypted, content_key, [CAROL.public])
    assert moved.data == encrypted.data
    assert decrypt(carol, moved) == b"moved"
    with pytest.raises(EncryptionError):
        decrypt(bob, moved)


def test_an_owner_encrypts_again_for_its_successor() -> None:
    encrypted, _ = encrypt(b"forwarded", BOB)
    again = bob.replace_recipients(
        encrypted, bob.unwrap_key(encrypted.keys, ALICE.public), [CAROL.public]
    )
    assert decrypt(carol, again, by=BOB.public) == b"forwarded"


def test_encrypting_for_nobody_is_refused() -> None:
    with pytest.raises(EncryptionError, match="at least one recipient"):
        encrypt(b"lost")


@pytest.mark.parametrize("public", [b"", b"x" * 31, bytes(32), b"\x01" + bytes(31)])
def test_an_unusable_recipient_key_is_refused(public: bytes) -> None:
    with pytest.raises(EncryptionError, match="not a usable node key"):
        alice.wrap_key(bytes(32), [public])


def test_the_key_cache_is_bounded_and_still_right_after_eviction() -> None:
    small = PayloadCipher(ALICE, clock, cache_size=1)
    for _ in range(2):
        for key, cipher in ((BOB, bob), (CAROL, carol)):
            keys = small.wrap_key(b"k" * 32, [key.public])
            assert cipher.unwrap_key(keys, ALICE.public) == b"k" * 32
    assert small._shared_key.cache_info().currsize == 1
