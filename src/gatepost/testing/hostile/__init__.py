"""A node that speaks the protocol and says anything a test wants, true or not.

`HostileIdentity` signs, encrypts and encodes without any socket. `HostileNode` is an identity that
also dials a gateway, and `HostileConnection` is one of its WebSockets.
"""

from gatepost.testing.hostile.connection import HostileConnection
from gatepost.testing.hostile.identity import HostileIdentity
from gatepost.testing.hostile.node import HostileNode
from gatepost.testing.hostile.outbox import HostileOutbox

__all__ = ["HostileConnection", "HostileIdentity", "HostileNode", "HostileOutbox"]
