"""An encrypted stream reads back whole, or says that it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings as sodium

from gatepost.errors import EncryptionError
from gatepost.events.secretstream import (
    CHUNK_SIZE,
    HEADER_SIZE,
    decrypt_stream,
    encrypt_stream,
    encrypted_size,
)

KEY = bytes(range(32))
START = bytes(range(HEADER_SIZE))
EDGES = [0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE, 2 * CHUNK_SIZE + 1]


def encrypt_all(payload: bytes) -> list[bytes]:
    return list(encrypt_stream([payload], KEY, START))


def opened(stream: list[bytes], key: bytes = KEY) -> bytes:
    return b"".join(decrypt_stream(stream[0], stream[1:], key))


@pytest.mark.parametrize("size", EDGES)
def test_sizes_at_the_edges_of_chunks_round_trip(size: int) -> None:
    payload = bytes(size)
    stream = encrypt_all(payload)
    assert opened(stream) == payload
    assert len(b"".join(stream)) == encrypted_size(size)


@given(st.lists(st.integers(0, 3 * CHUNK_SIZE), max_size=4))
def test_how_the_payload_arrives_does_not_matter(sizes: list[int]) -> None:
    pieces = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    assert b"".join(encrypt_stream(pieces, KEY, START)) == b"".join(encrypt_all(b"".join(pieces)))


def test_libsodium_reads_it_without_our_help() -> None:
    state = sodium.crypto_secretstream_xchacha20poly1305_state()
    header, frame = encrypt_all(b"hello")
    sodium.crypto_secretstream_xchacha20poly1305_init_pull(state, header, KEY)
    assert sodium.crypto_secretstream_xchacha20poly1305_pull(state, frame) == (b"hello", 3)


def test_we_read_what_libsodium_writes() -> None:
    state = sodium.crypto_secretstream_xchacha20poly1305_state()
    header = sodium.crypto_secretstream_xchacha20poly1305_init_push(state, KEY)
    frame = sodium.crypto_secretstream_xchacha20poly1305_push(state, b"hello", None, 3)
    assert opened([header, frame]) == b"hello"


def test_missing_swapped_or_added_frames_are_noticed() -> None:
    header, one, two, three = encrypt_all(bytes(2 * CHUNK_SIZE + 5))
    for frames in ([one, two], [one], [], [one, three], [two, one, three], [one, one, two, three]):
        with pytest.raises(EncryptionError):
            opened([header, *frames])
    with pytest.raises(EncryptionError, match="goes on after its end"):
        opened([header, one, two, three, three])


def test_a_stream_cut_between_frames_is_noticed() -> None:
    with pytest.raises(EncryptionError, match="cut off"):
        opened(encrypt_all(bytes(2 * CHUNK_SIZE + 5))[:-1])


@pytest.mark.parametrize("key", [b"", b"short", bytes(32)])
def test_the_wrong_key_opens_nothing(key: bytes) -> None:
    with pytest.raises(EncryptionError):
        opened(encrypt_all(b"hello"), key)


def test_a_missing_header_is_noticed() -> None:
    with pytest.raises(EncryptionError, match="not an encrypted stream"):
        opened([b"", b""])
