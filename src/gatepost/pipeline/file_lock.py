"""A lock file for one process at a time; the system releases it however its holder ends."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RETRY_SECS = 0.1


@contextmanager
def hold_file_lock(path: Path, patience: float, busy: Exception) -> Iterator[None]:
    """Hold the lock of this file; raise `busy` if it is not free within `patience` seconds."""
    with path.open("a") as file:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise busy from None
                time.sleep(_RETRY_SECS)
        yield
