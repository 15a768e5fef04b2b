"""Identifies processes by pid and start time, so that reused pids are noticed.

Only the standard library: the supervisor of a session imports this.
"""

import os
import signal
from collections.abc import Iterator
from functools import cache

_START_TIME_FIELD = 19  # Fields are counted behind the command, which may contain anything.
_PARENT_FIELD = 1
_GROUP_FIELD = 2


@cache
def boot_id() -> str:
    """The id of this boot; pids and start times are unique within one boot only."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if it is gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return int(fields[_START_TIME_FIELD])


def is_same_process(pid: int, started: int) -> bool:
    return start_time(pid) == started


def own_child_pids() -> list[int]:
    """The children of this process, zombies included. It has one thread."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
            return [int(each) for each in file.read().split()]
    except FileNotFoundError:
        # The kernel was built without that file.
        return [each for each in all_pids() if _parent_pid(each) == pid]


def pids_with_variable(variable: str, value: str) -> list[int]:
    """The processes with this variable in their environment, among those we may inspect."""
    wanted = f"{variable}={value}".encode()
    found = []
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if wanted in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def all_pids() -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            yield int(name)


def sandboxed_pids(bubblewrap: int) -> list[int]:
    """The process group of a bubblewrap without bubblewrap itself: it, and its child, the init."""
    found = []
    for pid in all_pids():
        fields = _stat_fields(pid)
        if fields is None or int(fields[_GROUP_FIELD]) != bubblewrap or pid == bubblewrap:
            continue
        if int(fields[_PARENT_FIELD]) != bubblewrap:
            found.append(pid)
    return found


def send_signal(pid: int, number: int) -> bool:
    """Send a signal to a process; False if the process does not exist."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(group: int) -> bool:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _parent_pid(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[_PARENT_FIELD])


def _stat_fields(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
