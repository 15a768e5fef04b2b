"""Payloads too large for an event: sealed files named by the digest of their ciphertext."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import FileIO
from pathlib import Path

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.errors import InvalidRequest, PayloadTooLarge, SealError, StorageFailed, UnknownBlob
from gatepost.events.ids import check_digest
from gatepost.events.secretstream import (
    CHUNK,
    FRAME,
    HEADER,
    KEY,
    open_stream,
    seal_stream,
    sealed_size,
)

LIMIT = 64 * 1024 * 1024

_TEMPORARY = "tmp-"


class Blob(Struct, frozen=True):
    """A stored blob: the digest and size of its ciphertext."""

    digest: str
    size: int


class BlobStore:
    """A directory of sealed blobs, used by one gateway at a time.

    A blob is written under a temporary name, synced, then renamed: a crash leaves all of it or
    nothing visible. Content keys are never stored here.
    """

    def __init__(self, directory: Path, clock: Clock, limit: int = LIMIT) -> None:
        self._directory = directory
        self._clock = clock
        self._limit = limit
        with _storage("open the blob directory"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            _sync_directory(directory.parent)
        self.sweep()

    def write(self, pieces: Iterable[bytes]) -> tuple[Blob, bytes]:
        """Seal a payload as it streams in; returns the blob and its content key."""
        key, header = self._clock.random(KEY), self._clock.random(HEADER)
        return self._store(seal_stream(_limited(pieces, self._limit), key, header)), key

    def adopt(self, digest: str, pieces: Iterable[bytes]) -> Blob:
        """Keep a blob fetched from another node, provided that it is the one it should be."""
        check_digest(digest)
        return self._store(_limited(pieces, sealed_size(self._limit)), expected=digest)

    def put(self, digest: str, offset: int, piece: bytes) -> None:
        """Write a piece of a blob that is being fetched. It is no blob before `complete`."""
        with _storage("write a piece of a blob"):
            file = os.open(self._partial(digest), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                rest = memoryview(piece)
                while rest:
                    written = os.pwrite(file, rest, offset)
                    rest, offset = rest[written:], offset + written
            finally:
                os.close(file)

    def complete(self, digest: str) -> Blob:
        """Keep what was put, provided that it is the blob it should be; otherwise it goes."""
        partial = self._partial(digest)
        try:
            blob = _digested(partial)
            if blob.digest != digest:
                raise SealError(f"fetched blob is {blob.digest}, not {digest}")
            self._publish(partial, blob)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        return blob

    def abandon(self, digest: str) -> None:
        """Forget the pieces of a blob that will not be complete."""
        with _storage("delete pieces of a blob"):
            self._partial(digest).unlink(missing_ok=True)

    def read(self, digest: str, key: bytes) -> Iterator[bytes]:
        """The payload in chunks, each authentic; complete only if no SealError follows."""
        self.size(digest)
        return _unsealed(self._path(digest), digest, key)

    def read_range(self, digest: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """A range of the ciphertext, for those who fetch it; past its end there is nothing."""
        if start < 0 or (length is not None and length < 0):
            raise InvalidRequest("a range starts at 0 or later and has no negative length")
        rest = max(0, self.size(digest) - start)
        return _slice(self._path(digest), start, rest if length is None else min(length, rest))

    def size(self, digest: str) -> int:
        """The size of the ciphertext; UnknownBlob if it is not here."""
        path = self._path(digest)
        with _storage("look at a blob"), _known(path):
            return path.stat().st_size

    def __contains__(self, digest: str) -> bool:
        return self._path(digest).is_file()

    def delete(self, digest: str) -> None:
        """Forget a blob; one that is not here is as good as deleted."""
        # No sync: a blob that comes back after a crash is garbage, not a lie.
        with _storage("delete a blob"):
            self._path(digest).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove what a crash left half written; returns how many files that was."""
        with _storage("sweep the blob directory"):
            leftovers = list(self._directory.glob(_TEMPORARY + "*"))
            for leftover in leftovers:
                leftover.unlink(missing_ok=True)
        return len(leftovers)

    def _path(self, digest: str) -> Path:
        return self._directory / check_digest(digest).removeprefix("sha256:")

    def _partial(self, digest: str) -> Path:
        return self._directory / f"{_TEMPORARY}{self._path(digest).name}"

    def _store(self, sealed: Iterable[bytes], expected: str | None = None) -> Blob:
        temporary = self._directory / f"{_TEMPORARY}{self._clock.random(16).hex()}"
        try:
            blob = _write(temporary, sealed)
            if expected not in (None, blob.digest):
                raise SealError(f"fetched blob is {blob.digest}, not {expected}")
            self._publish(temporary, blob)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return blob

    def _publish(self, temporary: Path, blob: Blob) -> None:
        with _storage("publish a blob"):
            temporary.rename(self._path(blob.digest))
            _sync_directory(self._directory)


def _write(path: Path, pieces: Iterable[bytes]) -> Blob:
    hasher, size = sha256(), 0
    with _create(path) as file:
        for piece in pieces:
            hasher.update(piece)
            size += len(piece)
            _append(file, piece)
        with _storage("sync a blob"):
            os.fsync(file.fileno())
    return Blob(f"sha256:{hasher.hexdigest()}", size)


def _digested(path: Path) -> Blob:
    hasher, size = sha256(), 0
    with _open(path) as file:
        while piece := _read(file, CHUNK):
            hasher.update(piece)
            size += len(piece)
        with _storage("sync a blob"):
            os.fsync(file.fileno())
    return Blob(f"sha256:{hasher.hexdigest()}", size)


def _append(file: FileIO, piece: bytes) -> None:
    rest = memoryview(piece)
    with _storage("write a blob"):
        while rest:
            rest = rest[file.write(rest) :]


def _unsealed(path: Path, digest: str, key: bytes) -> Iterator[bytes]:
    hasher = sha256()
    with _open(path) as file:
        header = _read(file, HEADER)
        hasher.update(header)
        yield from open_stream(header, _frames(file, hasher.update), key)
    if f"sha256:{hasher.hexdigest()}" != digest:
        raise SealError(f"blob {digest} does not match its digest")


def _frames(file: FileIO, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    while frame := _read(file, FRAME):
        seen(frame)
        yield frame


def _slice(path: Path, start: int, length: int) -> Iterator[bytes]:
    with _open(path) as file:
        file.seek(start)
        while length > 0 and (piece := _read(file, min(CHUNK, length))):
            length -= len(piece)
            yield piece


def _limited(pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limit:
            raise PayloadTooLarge(f"a payload may have at most {limit} bytes; send a link instead")
        yield piece


def _read(file: FileIO, size: int) -> bytes:
    """`size` bytes, or fewer only at the end of the file."""
    with _storage("read a blob"):
        found = file.read(size)
        while len(found) < size and (more := file.read(size - len(found))):
            found += more
    return found


def _create(path: Path) -> FileIO:
    with _storage("create a blob"):
        return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _open(path: Path) -> FileIO:
    with _storage("open a blob"), _known(path):
        return FileIO(path, "rb")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _known(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UnknownBlob(f"blob sha256:{path.name} is not on this node") from None


@contextmanager
def _storage(action: str) -> Iterator[None]:
    """The disk's refusals, as an error that a sender can be told."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"could not {action}: {error.strerror}") from error
