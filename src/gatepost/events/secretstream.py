"""Encrypted streams: libsodium's secretstream over chunks of one fixed size, without any I/O."""

from collections.abc import Iterable, Iterator

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

from gatepost.errors import EncryptionError

CHUNK_SIZE = 64 * 1024
HEADER_SIZE = sodium.crypto_secretstream_xchacha20poly1305_HEADERBYTES
KEY_SIZE = sodium.crypto_secretstream_xchacha20poly1305_KEYBYTES
FRAME_OVERHEAD = sodium.crypto_secretstream_xchacha20poly1305_ABYTES
FRAME_SIZE = CHUNK_SIZE + FRAME_OVERHEAD

_TAG_MESSAGE = sodium.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
_TAG_FINAL = sodium.crypto_secretstream_xchacha20poly1305_TAG_FINAL
_State = sodium.crypto_secretstream_xchacha20poly1305_state
_push = sodium.crypto_secretstream_xchacha20poly1305_push
_pull = sodium.crypto_secretstream_xchacha20poly1305_pull


def encrypted_size(size: int) -> int:
    """Return the size of the ciphertext of a payload of `size` bytes."""
    frames = max(1, -(-size // CHUNK_SIZE))
    return HEADER_SIZE + size + frames * FRAME_OVERHEAD


def encrypt_stream(pieces: Iterable[bytes], key: bytes, header: bytes) -> Iterator[bytes]:
    """Yield the header, then one frame for each chunk; the last frame is marked as final."""
    state = _init_state(key, header)
    yield header
    for chunk, tag in _tag_chunks(_split_chunks(pieces)):
        yield _push(state, chunk, None, tag)


def decrypt_stream(header: bytes, frames: Iterable[bytes], key: bytes) -> Iterator[bytes]:
    """Yield authentic chunks; the payload is complete only if no EncryptionError follows."""
    state, tag = _init_state(key, header), _TAG_MESSAGE
    for frame in frames:
        if tag == _TAG_FINAL:
            raise EncryptionError("the stream goes on after its end")
        chunk, tag = _pull_frame(state, frame)
        yield chunk
    if tag != _TAG_FINAL:
        raise EncryptionError("the stream is cut off")


def _init_state(key: bytes, header: bytes) -> _State:
    # libsodium's push and pull states are the same for the same header. init_push would draw its
    # own header, and the digest of a blob would depend on hidden randomness.
    state = _State()
    try:
        sodium.crypto_secretstream_xchacha20poly1305_init_pull(state, header, key)
    except CryptoError:
        raise EncryptionError("not an encrypted stream, or not a content key") from None
    return state


def _pull_frame(state: _State, frame: bytes) -> tuple[bytes, int]:
    try:
        return _pull(state, frame)
    except CryptoError:
        raise EncryptionError("the stream was altered, or this is not its key") from None


def _split_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks of CHUNK_SIZE bytes and one last chunk, which may be empty but always comes."""
    buffer = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_SIZE):
            buffer += piece[start : start + CHUNK_SIZE]
            if len(buffer) > CHUNK_SIZE:
                yield bytes(buffer[:CHUNK_SIZE])
                del buffer[:CHUNK_SIZE]
    yield bytes(buffer)


def _tag_chunks(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    held = next(chunks)
    for chunk in chunks:
        yield held, _TAG_MESSAGE
        held = chunk
    yield held, _TAG_FINAL
