"""How many files this process may open, and how many of them each listener may use.

A connection is an open file. If connections could take the last one, the journal, the peers and the
operator would have none. So all listeners together get fewer than the system permits.
"""

import logging
import resource
from typing import NamedTuple

import msgspec

from gatepost.config import LimitsSettings, Settings

log = logging.getLogger(__name__)

# Files of the journal, blobs, dialled peers, and everything else.
_OTHER_FILES = 1024
# Its socket, its process, and what is read and written for it.
_FILES_OF_SESSION = 4
_FEWEST_STRANGERS = 16
_FEWEST_CONNECTIONS = 16
# Connections of one session, and of all together if there are very many.
_PER_SESSION = 16
_MOST_OF_SESSIONS = 1024


class ConnectionLimits(NamedTuple):
    """Limits of the listener with the Unix socket of agents, and connections of one session."""

    listener: LimitsSettings
    per_session: int


def plan_open_files(settings: Settings) -> ConnectionLimits:
    """Raise the process's limit of open files; return the limits that are possible with it."""
    limits, sessions = settings.limits, settings.hub.max_sessions
    of_sessions = sessions * max(1, min(_PER_SESSION, _MOST_OF_SESSIONS // sessions))
    others = _OTHER_FILES + _FILES_OF_SESSION * sessions
    total = limits.max_connections + limits.max_unauthenticated + of_sessions + others
    reachable = raise_file_limit(total)
    if reachable >= total:
        return ConnectionLimits(limits, of_sessions // sessions)
    log.warning(
        "the system allows %d open files, but limits.max_connections, limits.max_unauthenticated"
        " and hub.max_sessions need %d: raise the limit (`ulimit -n`), or lower them",
        reachable,
        total,
    )
    spare = reachable - min(others, reachable // 2)
    per_session = max(1, min(of_sessions, spare // 8) // sessions)
    return ConnectionLimits(_share_files(limits, spare - per_session * sessions), per_session)


def raise_file_limit(wanted: int) -> int:
    """Raise the process's limit of open files as far as `wanted`; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return reachable


def _share_files(limits: LimitsSettings, spare: int) -> LimitsSettings:
    """Share files between strangers and all others. Strangers give way first, to a quarter."""
    strangers = min(limits.max_unauthenticated, max(spare // 4, spare - limits.max_connections))
    connections = min(limits.max_connections, spare - strangers)
    return msgspec.structs.replace(
        limits,
        max_connections=max(_FEWEST_CONNECTIONS, connections),
        max_unauthenticated=max(_FEWEST_STRANGERS, strangers),
    )
