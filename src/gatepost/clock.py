"""The only module that reads time and randomness; all other code is given a Clock."""

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time in epoch milliseconds, and random bytes."""

    def now(self) -> int: ...

    def random(self, size: int) -> bytes: ...


class SystemClock:
    """The machine's clock and its cryptographic random source."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def random(self, size: int) -> bytes:
        return secrets.token_bytes(size)
