"""The user that a session runs as: never root.

A gateway that does not run as root has sessions of its own user. One that does gives each session a
user that no account has, so that sessions cannot touch each other's files and processes either. The
setting `hub.session_user` names one user for all of them instead.
"""

import os
import pwd
from functools import cache
from hashlib import blake2b

from msgspec import Struct

from gatepost.errors import ConfigError, LaunchFailed

# First uid and count: between the ranges of containers and those of the kernel, or where a
# container maps fewer users, those that systemd keeps for services without an account.
_RANGES = ((0x7800_0000, 1 << 24), (61_184, 4_336))
_ADVICE = "run the gateway as a user of its own, see docs/operations.md"


class SessionUser(Struct, frozen=True):
    uid: int
    gid: int
    # Whether no other session and no account has this user.
    is_private: bool = False


def is_root() -> bool:
    return os.geteuid() == 0


def choose_session_user(name: str, configured: str = "") -> SessionUser:
    """The user of a session; LaunchFailed if it could only run as root."""
    if not is_root():
        return SessionUser(os.geteuid(), os.getegid())
    if configured:
        return find_user(configured)
    for first, count in _RANGES:
        if _is_mapped(first, count):
            digest = blake2b(name.encode(), digest_size=8).digest()
            uid = first + int.from_bytes(digest, "big") % count
            return SessionUser(uid, uid, is_private=True)
    raise LaunchFailed(f"no session runs as root, and this machine has no other user: {_ADVICE}")


def check_session_user(configured: str) -> None:
    """Raise ConfigError if no session could run as the user that the settings name."""
    if configured and not is_root():
        raise ConfigError("hub.session_user needs a gateway that runs as root; remove it")
    if configured:
        find_user(configured)


def find_user(name: str) -> SessionUser:
    """A user by name or number. ConfigError if there is none, or if it is root."""
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
