"""Measures the disk alone: append and fdatasync, one at a time."""

import os
import time
from pathlib import Path

from msgspec import Struct


class FsyncResult(Struct, frozen=True):
    per_sec: float
    p50_ms: float
    p99_ms: float


def measure_fsync(folder: Path, *, size: int = 512, count: int = 2000) -> FsyncResult:
    """Append `size` bytes and wait for the disk, `count` times, to a file in `folder`."""
    file = folder / "fsync.bench"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        times = sorted(_time_append(descriptor, bytes(size)) for _ in range(count))
    finally:
        os.close(descriptor)
        file.unlink()
    return FsyncResult(count / sum(times), percentile(times, 50) * 1e3, percentile(times, 99) * 1e3)


def percentile(ordered: list[float], percent: int) -> float:
    """The given percentile of a sorted list."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _time_append(descriptor: int, data: bytes) -> float:
    began = time.perf_counter()
    os.write(descriptor, data)
    os.fdatasync(descriptor)
    return time.perf_counter() - began
