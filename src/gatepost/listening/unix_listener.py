"""Unix sockets: listening on them, and the process at the other side of a connection."""

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

# As many as the listener has: a client whose connection cannot wait here gets an error.
BACKLOG = 1024
_CREDENTIALS = "3i"


class PeerProcess(NamedTuple):
    """Who connected, as the kernel noted it then. The process may have ended since."""

    pid: int
    uid: int


def bind_unix_listener(path: Path) -> socket.socket:
    """Listen at `path`, for this user alone, in place of a socket that an earlier process left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def read_peer(connection: socket.socket) -> PeerProcess | None:
    """Return the other side of a connection; None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize(_CREDENTIALS)
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack(_CREDENTIALS, data)
    return PeerProcess(pid, uid)
