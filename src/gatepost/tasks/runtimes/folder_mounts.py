"""Makes folders reachable for sessions whose user may not enter the folders above them.

The state directory of a gateway is for its user alone, and often lies in that user's home. If the
gateway runs as root, its sessions run as other users. The processes that start them therefore have
private mounts: each folder that is closed to others is covered by an empty one, in which only the
folders that sessions need can be seen.

Only the standard library: session_spawner.py imports this.
"""

import ctypes
import os
from collections.abc import Iterable

_CLONE_NEWNS = 0x00020000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
_OTHERS_ENTER = 0o001

_libc = ctypes.CDLL(None, use_errno=True)


def show_folders(writable: Iterable[str], readable: Iterable[str]) -> None:
    """Hide folders that are closed to others, except for these. OSError if that is not possible."""
    kept = {os.path.realpath(path): True for path in readable}
    kept |= {os.path.realpath(path): False for path in writable}
    covers: dict[str, list[str]] = {}
    for path in sorted(kept):
        closed = find_closed_folder(path)
        if closed is not None:
            covers.setdefault(closed, []).append(path)
    if not covers:
        return
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    # Later mounts of the machine appear here, but not the other way round.
    _mount(None, "/", None, _REC | _SLAVE)
    mask = os.umask(0o022)
    try:
        for closed, paths in covers.items():
            _cover(closed, {path: kept[path] for path in paths})
    finally:
        os.umask(mask)


def find_closed_folder(path: str) -> str | None:
    """The first folder above `path` that others may not enter; None if they may enter all."""
    above = ""
    for name in path.split("/")[1:]:
        if not os.stat(above or "/").st_mode & _OTHERS_ENTER:  # noqa: PTH116
            return above
        above = f"{above}/{name}"
    return None


def _cover(closed: str, kept: "dict[str, bool]") -> None:
    """Mount an empty folder, and in it the `kept` ones; true stands for a read-only one."""
    descriptors = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in kept}
    try:
        _mount("gatepost", closed, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
        for path, descriptor in descriptors.items():
            if os.path.isdir(path):  # noqa: PTH112
                continue  # A folder around it is mounted already.
            os.makedirs(path)  # noqa: PTH103
            _mount(f"/proc/self/fd/{descriptor}", path, None, _BIND | _REC)
            if kept[path]:
                _mount(None, path, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
        _mount(None, closed, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    given = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    result = _libc.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3])
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
