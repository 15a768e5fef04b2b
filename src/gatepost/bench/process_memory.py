"""Peak memory of processes on this machine while a block runs, from /proc."""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

EXECUTOR_NAME: Final = "CoarseGrainedExecutorBackend"
"""A word on the command line of every executor of a Spark cluster."""

_INTERVAL = 0.5


def peak_rss() -> int:
    """Peak resident bytes of this process alone."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """Resident bytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def watch_memory() -> Iterator[list[int]]:
    """Peak memory of this process and its descendants, in a list of one."""
    with _watch_peak(lambda: _tree_bytes([os.getpid()])) as peak:
        yield peak


@contextmanager
def watch_largest_tree(name: str) -> Iterator[list[int]]:
    """The most memory of one process with `name` in its command, with its descendants."""
    with _watch_peak(
        lambda: max((_tree_bytes([pid]) for pid in _find_processes(name)), default=0)
    ) as peak:
        yield peak


@contextmanager
def _watch_peak(measure: Callable[[], int]) -> Iterator[list[int]]:
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_INTERVAL):
            peak[0] = max(peak[0], measure())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join(5)


def _find_processes(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _tree_bytes(roots: list[int]) -> int:
    """Resident bytes of these processes and their descendants."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        pages[pid] = int(fields[21])
    total, todo = 0, list(roots)
    while todo:
        pid = todo.pop()
        total += pages.get(pid, 0)
        todo += children.get(pid, [])
    return total * os.sysconf("SC_PAGE_SIZE")
