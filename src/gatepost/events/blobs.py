"""Payloads too large for an event: encrypted files named by the digest of their ciphertext."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b, sha256
from io import FileIO
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gatepost.clock import Clock
from gatepost.errors import (
    EncryptionError,
    InvalidRequest,
    PayloadTooLarge,
    StorageFailed,
    UnknownBlob,
)
from gatepost.events.ids import check_digest
from gatepost.events.secretstream import (
    CHUNK_SIZE,
    FRAME_SIZE,
    HEADER_SIZE,
    KEY_SIZE,
    decrypt_stream,
    encrypt_stream,
)
from gatepost.files import publish_file, sync_folder

MAX_BLOB_BYTES = 64 * 1024 * 1024

_TEMPORARY_PREFIX = "tmp-"
_FINGERPRINT_BYTES = 16


class Blob(Struct, frozen=True):
    """A stored blob: the digest and size of its ciphertext.

    `content` is the fingerprint of the plain content. Every upload of the same content has another
    digest and the same fingerprint. A blob that was fetched has none.
    """

    digest: str
    size: int
    content: bytes | None = None


def fingerprint_content(payload: bytes) -> bytes:
    """The fingerprint of a plain payload, wherever it is kept."""
    return blake2b(payload, digest_size=_FINGERPRINT_BYTES).digest()


class BlobStore:
    """A directory of encrypted blobs, used by one gateway at a time.

    A blob is written under a temporary name, synced, then renamed: after a crash it is either
    complete or invisible. Content keys are never stored here.
    """

    def __init__(self, directory: Path, clock: Clock, limit: int = MAX_BLOB_BYTES) -> None:
        self._directory = directory
        self._clock = clock
        self._limit = limit
        with _translate_os_errors("open the blob directory"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            sync_folder(directory.parent)
        self.delete_leftovers()

    def store_payload(self, pieces: Iterable[bytes]) -> tuple[Blob, bytes]:
        """Encrypt and store a payload as it streams in; return the blob and its content key."""
        key, header = self._clock.random(KEY_SIZE), self._clock.random(HEADER_SIZE)
        content = blake2b(digest_size=_FINGERPRINT_BYTES)
        plain = _limit_size(_observe_pieces(pieces, content.update), self._limit)
        ciphertext = encrypt_stream(plain, key, header)
        temporary = self._directory / f"{_TEMPORARY_PREFIX}{self._clock.random(16).hex()}"
        with _delete_on_error(temporary):
            blob = _write_file(temporary, ciphertext)
            self._publish_blob(temporary, blob)
        return replace(blob, content=content.digest()), key

    def write_piece(self, digest: str, offset: int, piece: bytes) -> None:
        """Write a piece of a blob that is being fetched; `complete_fetch` makes it a blob."""
        with _translate_os_errors("write a piece of a blob"):
            file = os.open(self._partial_path(digest), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                rest = memoryview(piece)
                while rest:
                    written = os.pwrite(file, rest, offset)
                    rest, offset = rest[written:], offset + written
            finally:
                os.close(file)

    def complete_fetch(self, digest: str) -> Blob:
        """Publish the fetched pieces if their digest is right, otherwise delete them and raise."""
        partial = self._partial_path(digest)
        with _delete_on_error(partial):
            blob = _digest_file(partial)
            if blob.digest != digest:
                raise EncryptionError(f"fetched blob is {blob.digest}, not {digest}")
            self._publish_blob(partial, blob)
        return blob

    def abandon_fetch(self, digest: str) -> None:
        """Delete the pieces of a fetch that was given up."""
        with _translate_os_errors("delete pieces of a blob"):
            self._partial_path(digest).unlink(missing_ok=True)

    def read_payload(self, digest: str, key: bytes) -> Iterator[bytes]:
        """Yield authentic chunks; the payload is complete only if no EncryptionError follows."""
        self.ciphertext_size(digest)
        return _decrypt_file(self._blob_path(digest), digest, key)

    def read_ciphertext(
        self, digest: str, start: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        """Yield a range of the ciphertext, for a node that fetches it; empty past the end."""
        if start < 0 or (length is not None and length < 0):
            raise InvalidRequest("a range starts at 0 or later and has no negative length")
        rest = max(0, self.ciphertext_size(digest) - start)
        return _read_slice(
            self._blob_path(digest), start, rest if length is None else min(length, rest)
        )

    def ciphertext_size(self, digest: str) -> int:
        """Return the size of the ciphertext; UnknownBlob if the blob is not stored here."""
        path = self._blob_path(digest)
        with _translate_os_errors("read the size of a blob"), _translate_missing_file(path):
            return path.stat().st_size

    def __contains__(self, digest: str) -> bool:
        return self._blob_path(digest).is_file()

    def delete(self, digest: str) -> None:
        """Delete a blob; a missing one is not an error."""
        # No sync: a blob that reappears after a crash is garbage, but not wrong.
        with _translate_os_errors("delete a blob"):
            self._blob_path(digest).unlink(missing_ok=True)

    def delete_leftovers(self) -> int:
        """Delete half-written files left by a crash; return how many there were."""
        with _translate_os_errors("clean up the blob directory"):
            leftovers = list(self._directory.glob(_TEMPORARY_PREFIX + "*"))
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
        return len(leftovers)

    def _blob_path(self, digest: str) -> Path:
        return self._directory / check_digest(digest).removeprefix("sha256:")

    def _partial_path(self, digest: str) -> Path:
        return self._directory / f"{_TEMPORARY_PREFIX}{self._blob_path(digest).name}"

    def _publish_blob(self, temporary: Path, blob: Blob) -> None:
        with _translate_os_errors("publish a blob"):
            publish_file(temporary, self._blob_path(blob.digest))


@contextmanager
def _delete_on_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _write_file(path: Path, pieces: Iterable[bytes]) -> Blob:
    with _create_file(path) as file:
        return _digest_pieces(pieces, lambda piece: _append_piece(file, piece))


def _digest_file(path: Path) -> Blob:
    with _open_file(path) as file:
        return _digest_pieces(iter(lambda: _read_exactly(file, CHUNK_SIZE), b""))


def _digest_pieces(
    pieces: Iterable[bytes], observe: Callable[[bytes], None] = lambda piece: None
) -> Blob:
    hasher, size = sha256(), 0
    for piece in pieces:
        hasher.update(piece)
        size += len(piece)
        observe(piece)
    return Blob(f"sha256:{hasher.hexdigest()}", size)


def _append_piece(file: FileIO, piece: bytes) -> None:
    rest = memoryview(piece)
    with _translate_os_errors("write a blob"):
        while rest:
            rest = rest[file.write(rest) :]


def _decrypt_file(path: Path, digest: str, key: bytes) -> Iterator[bytes]:
    hasher = sha256()
    with _open_file(path) as file:
        header = _read_exactly(file, HEADER_SIZE)
        hasher.update(header)
        yield from decrypt_stream(header, _read_frames(file, hasher.update), key)
    if f"sha256:{hasher.hexdigest()}" != digest:
        raise EncryptionError(f"blob {digest} does not match its digest")


def _read_frames(file: FileIO, observe: Callable[[bytes], None]) -> Iterator[bytes]:
    while frame := _read_exactly(file, FRAME_SIZE):
        observe(frame)
        yield frame


def _read_slice(path: Path, start: int, length: int) -> Iterator[bytes]:
    with _open_file(path) as file:
        file.seek(start)
        while length > 0 and (piece := _read_exactly(file, min(CHUNK_SIZE, length))):
            length -= len(piece)
            yield piece


def _observe_pieces(pieces: Iterable[bytes], observe: Callable[[bytes], None]) -> Iterator[bytes]:
    for piece in pieces:
        observe(piece)
        yield piece


def _limit_size(pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limit:
            raise PayloadTooLarge(f"a payload may have at most {limit} bytes; send a link instead")
        yield piece


def _read_exactly(file: FileIO, size: int) -> bytes:
    """Read `size` bytes; fewer only at the end of the file."""
    with _translate_os_errors("read a blob"):
        found = file.read(size)
        while len(found) < size and (more := file.read(size - len(found))):
            found += more
    return found


def _create_file(path: Path) -> FileIO:
    with _translate_os_errors("create a blob"):
        return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _open_file(path: Path) -> FileIO:
    with _translate_os_errors("open a blob"), _translate_missing_file(path):
        return FileIO(path, "rb")


@contextmanager
def _translate_missing_file(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UnknownBlob(f"blob sha256:{path.name} is not on this node") from None


@contextmanager
def _translate_os_errors(action: str) -> Iterator[None]:
    """Re-raise OSError as StorageFailed, which a sender can be told."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"could not {action}: {error.strerror}") from error
