"""Checks of the disk: its space, its kind, and how long it takes to make a write durable."""

import os
import tempfile
import time
from pathlib import Path
from statistics import median

from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.cli.output import format_size

_FULL_BYTES = 128 * 1024 * 1024
_SCARCE_BYTES = 1024 * 1024 * 1024
_FEWEST_FILES = 1000
_WRITES = 9
_WRITE_BYTES = 512
# Every answer waits for a write. A disk that needs longer makes about ten commits a second.
_SLOW_SECS = 0.1
# Their locks and their fsync do not hold what SQLite needs.
_NETWORK_KINDS = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p")


def existing_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def check_space(folder: Path, free_bytes: int, free_files: int) -> Findings:
    if free_bytes < _SCARCE_BYTES:
        is_full = free_bytes < _FULL_BYTES
        yield Finding(
            "disk",
            f"the disk of {folder} has {format_size(free_bytes)} left"
            + (": the gateway soon refuses messages" if is_full else ""),
            "make room there, or move node.state_dir to a larger disk;"
            " journal.retention_secs says how long ended messages are kept",
            is_advice=not is_full,
        )
    if free_files < _FEWEST_FILES:
        yield Finding(
            "disk",
            f"the disk of {folder} can take only {free_files} more files",
            "remove files there, or move node.state_dir to another disk",
        )


def free_space(folder: Path) -> tuple[int, int]:
    """Bytes and files that this user may still add; disks that do not count files have plenty."""
    found = os.statvfs(folder)
    files = found.f_favail if found.f_files else _FEWEST_FILES
    return found.f_bavail * found.f_frsize, files


def check_sync(folder: Path, secs: float) -> Findings:
    if secs >= _SLOW_SECS:
        yield Finding(
            "disk",
            f"the disk of {folder} takes {secs * 1000:.0f} ms to make a write durable,"
            " and every message waits for that",
            "put node.state_dir on a local SSD, or look for what else writes to this disk"
            " (iostat -x 1)",
        )


def measure_sync(folder: Path) -> float:
    """Seconds of a small durable write; the median, because other programs use the disk too."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_WRITES):
            began = time.perf_counter()
            os.write(file.fileno(), bytes(_WRITE_BYTES))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return median(took)


def check_kind(folder: Path, mounts: str) -> Findings:
    """`mounts` is the text of /proc/self/mounts."""
    kind = _kind_of_disk(folder, mounts)
    if kind in _NETWORK_KINDS:
        yield Finding(
            "disk",
            f"{folder} is on a network file system ({kind}), which can lose what it confirmed",
            "put node.state_dir on a local disk; the archive may stay there (archive.uri)",
        )


def _kind_of_disk(folder: Path, mounts: str) -> str:
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, place, found, *_ = line.split()
        path = Path(place.replace("\\040", " "))
        if folder.is_relative_to(path) and len(path.parts) >= best:
            best, kind = len(path.parts), found
    return kind
