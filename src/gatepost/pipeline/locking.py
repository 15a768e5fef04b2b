"""One process at a time: a lock that is gone with whoever holds it, however it ends."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AGAIN = 0.1


@contextmanager
def locked(path: Path, patience: float, busy: Exception) -> Iterator[None]:
    """Hold the lock of this file; raises `busy` if somebody else has it for longer than that."""
    with path.open("a") as file:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise busy from None
                time.sleep(_AGAIN)
        yield
