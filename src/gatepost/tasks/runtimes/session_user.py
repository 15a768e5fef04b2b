"""The user that a session runs as: never root.

A gateway that does not run as root has sessions of its own user. One that does gives each session a
user that no account and no other open session has, so that sessions cannot touch each other's files
and processes either. The setting `hub.session_user` names one user for all of them instead.
"""

import os
import pwd
import secrets
from functools import cache
from pathlib import Path

from msgspec import Struct

from gatepost.errors import ConfigError, LaunchFailed
from gatepost.tasks.runtimes.session_supervisor import WORK_FOLDER

# First uid and count: between the ranges of containers and those of the kernel, or where a
# container maps fewer users, those that systemd keeps for services without an account.
_RANGES = ((0x7800_0000, 1 << 24), (61_184, 4_336))
_ADVICE = "run the gateway as a user of its own, see docs/operations.md"


class SessionUser(Struct, frozen=True):
    uid: int
    gid: int
    # Whether this user belongs to this session alone.
    is_private: bool = False


def is_root() -> bool:
    return os.geteuid() == 0


class SessionUsers:
    """The users of the sessions of one gateway. `root` holds one folder per session.

    The name of a session has the id of its task, which another gateway may have chosen. So no user
    follows from a name: users are taken in turns, and those of open sessions are left out. The
    session of an earlier process has the user that owns its folder.
    """

    def __init__(self, root: Path, configured: str = "") -> None:
        self._root = root
        self._configured = configured
        # Name of an open session → its user.
        self._taken: dict[str, SessionUser] = {}
        self._turn: int | None = None

    def find(self, name: str) -> SessionUser:
        """The user of an open session; LaunchFailed if it could only run as root."""
        if self._configured or not is_root():
            return find_any_user(self._configured)
        user = self._taken.get(name) or self._find_owner(name) or self._take_free()
        self._taken[name] = user
        return user

    def release(self, name: str) -> None:
        """A session has ended: its user is free for another one."""
        self._taken.pop(name, None)

    def _find_owner(self, name: str) -> SessionUser | None:
        try:
            uid = os.lstat(f"{self._root}/{name}/{WORK_FOLDER}").st_uid
        except OSError:
            return None
        return SessionUser(uid, uid, is_private=True) if uid else None

    def _take_free(self) -> SessionUser:
        first, count = _find_range()
        taken = {user.uid for user in self._taken.values()}
        begin = secrets.randbelow(count) if self._turn is None else self._turn
        for turn in range(begin, begin + min(count, len(taken) + 1)):
            uid = first + turn % count
            if uid not in taken:
                self._turn = turn + 1
                return SessionUser(uid, uid, is_private=True)
        raise LaunchFailed(f"{count} open sessions have all users that this machine has for them")


def find_any_user(configured: str = "") -> SessionUser:
    """A user that a session may have; LaunchFailed if one could only run as root."""
    if not is_root():
        return SessionUser(os.geteuid(), os.getegid())
    if configured:
        return find_user(configured)
    first, _ = _find_range()
    return SessionUser(first, first, is_private=True)


def _find_range() -> tuple[int, int]:
    for first, count in _RANGES:
        if _is_mapped(first, count):
            return first, count
    raise LaunchFailed(f"no session runs as root, and this machine has no other user: {_ADVICE}")


def check_session_user(configured: str) -> None:
    """Raise ConfigError if no session could run as the user that the settings name."""
    if configured and not is_root():
        raise ConfigError("hub.session_user needs a gateway that runs as root; remove it")
    if configured:
        find_user(configured)


def find_user(name: str) -> SessionUser:
    """A user by name or number. ConfigError if it does not exist or is root."""
    try:
        found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        raise ConfigError(f"hub.session_user: there is no user {name!r}") from None
    if found.pw_uid == 0:
        raise ConfigError("hub.session_user: sessions do not run as root")
    return SessionUser(found.pw_uid, found.pw_gid)


@cache
def _is_mapped(first: int, count: int) -> bool:
    """Whether this user namespace has all of these users and groups."""
    return all(_has_range(f"/proc/self/{kind}_map", first, count) for kind in ("uid", "gid"))


def _has_range(path: str, first: int, count: int) -> bool:
    try:
        with open(path) as file:  # noqa: PTH123
            rows = [[int(each) for each in line.split()] for line in file]
    except OSError:
        return True
    return any(start <= first and first + count <= start + size for start, _, size in rows)
