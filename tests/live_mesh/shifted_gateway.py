"""Runs a gateway whose clock is ahead by the seconds in the file CLOCK_FILE, read at each look."""

import os
import sys
import time
from pathlib import Path

from gatepost.clock import SystemClock

_file = Path(os.environ["CLOCK_FILE"])


def shifted_time(self: SystemClock) -> int:
    secs = int(_file.read_text()) if _file.exists() else 0
    return time.time_ns() // 1_000_000 + secs * 1000


if __name__ == "__main__":
    from gatepost.gateway.__main__ import main

    SystemClock.now = shifted_time  # type: ignore[method-assign]
    main(sys.argv[1:])
