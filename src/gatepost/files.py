"""Durable files: atomic replacement, synced folders, and file locks.

A file is written under a temporary name, synced, renamed, and its folder synced. After a crash at
any step the file has its old content or its new one, never a part of it.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# No link is followed: the folder may be writable by programs that are not trusted.
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_POLL_SECS = 0.1


def write_file_atomically(path: Path, content: "bytes | memoryview", mode: int = 0o600) -> None:
    """Replace a file. It gets `mode`, less the umask; by default only its owner can read it."""
    with open_replacement(path, mode) as file:
        file.write(content)


@contextmanager
def open_replacement(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` when the block ends. An error leaves `path` as it is."""
    folder = os.open(path.parent, _FOLDER_FLAGS)
    try:
        with open_replacement_in(folder, path.name, mode) as file:
            yield file
    finally:
        os.close(folder)


@contextmanager
def open_replacement_in(folder: int, name: str, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Like `open_replacement`, in a folder given by its descriptor."""
    # Two processes may replace the same file at once.
    temporary = f".{name}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, _WRITE_FLAGS, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


def publish_file(temporary: Path, path: Path) -> None:
    """Sync a file written under another name, then rename it to `path`."""
    _sync_path(temporary, os.O_RDONLY | os.O_CLOEXEC)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames and deletions in a folder durable."""
    _sync_path(folder, _FOLDER_FLAGS)


def _sync_path(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(path: Path, mode: int = 0o600) -> IO[bytes]:
    """Lock a file until it is closed; raise BlockingIOError if another process holds the lock.

    A missing file is created. The system releases the lock however its holder ends.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode), "rb+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def hold_file_lock(path: Path, timeout: float, busy: Exception) -> Iterator[None]:
    """Hold the lock of a file; raise `busy` if it is not free within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            # Processes of several users may share the lock, if the umask lets them.
            file = lock_file(path, 0o666)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise busy from None
            time.sleep(_LOCK_POLL_SECS)
    with file:
        yield
