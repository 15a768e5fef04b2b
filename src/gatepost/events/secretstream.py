"""Encrypted streams: libsodium's secretstream over chunks of one fixed size, without any I/O."""

from collections.abc import Iterable, Iterator

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

from gatepost.errors import SealError

CHUNK = 64 * 1024
HEADER = sodium.crypto_secretstream_xchacha20poly1305_HEADERBYTES
KEY = sodium.crypto_secretstream_xchacha20poly1305_KEYBYTES
OVERHEAD = sodium.crypto_secretstream_xchacha20poly1305_ABYTES
FRAME = CHUNK + OVERHEAD

_MESSAGE = sodium.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
_FINAL = sodium.crypto_secretstream_xchacha20poly1305_TAG_FINAL
_State = sodium.crypto_secretstream_xchacha20poly1305_state
_push = sodium.crypto_secretstream_xchacha20poly1305_push
_pull = sodium.crypto_secretstream_xchacha20poly1305_pull


def sealed_size(size: int) -> int:
    """Return the size of the ciphertext of a payload of `size` bytes."""
    frames = max(1, -(-size // CHUNK))
    return HEADER + size + frames * OVERHEAD


def seal_stream(pieces: Iterable[bytes], key: bytes, header: bytes) -> Iterator[bytes]:
    """Yield the header, then one frame for each chunk; the last frame is marked as final."""
    state = _start(key, header)
    yield header
    for chunk, tag in _tagged(_rechunk(pieces)):
        yield _push(state, chunk, None, tag)


def open_stream(header: bytes, frames: Iterable[bytes], key: bytes) -> Iterator[bytes]:
    """Yield authentic chunks; the payload is complete only if no EncryptionError follows."""
    state, tag = _start(key, header), _MESSAGE
    for frame in frames:
        if tag == _FINAL:
            raise SealError("the stream goes on after its end")
        chunk, tag = _pull_one(state, frame)
        yield chunk
    if tag != _FINAL:
        raise SealError("the stream is cut off")


def _start(key: bytes, header: bytes) -> _State:
    # libsodium's push and pull states are the same for the same header. init_push would draw its
    # own header, and the digest of a blob would depend on hidden randomness.
    state = _State()
    try:
        sodium.crypto_secretstream_xchacha20poly1305_init_pull(state, header, key)
    except CryptoError:
        raise SealError("not an encrypted stream, or not a content key") from None
    return state


def _pull_one(state: _State, frame: bytes) -> tuple[bytes, int]:
    try:
        return _pull(state, frame)
    except CryptoError:
        raise SealError("the stream was altered, or this is not its key") from None


def _rechunk(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks of CHUNK_SIZE bytes and one last chunk, which may be empty but always comes."""
    buffer = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK):
            buffer += piece[start : start + CHUNK]
            if len(buffer) > CHUNK:
                yield bytes(buffer[:CHUNK])
                del buffer[:CHUNK]
    yield bytes(buffer)


def _tagged(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    held = next(chunks)
    for chunk in chunks:
        yield held, _MESSAGE
        held = chunk
    yield held, _FINAL
