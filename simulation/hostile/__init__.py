"""A node that speaks the protocol and says anything a test wants, true or not.

`HostileIdentity` signs, encrypts and encodes without any socket. `HostileNode` is an identity that
also dials a gateway, and `HostileConnection` is one of its WebSockets.
"""

from simulation.hostile.connection import HostileConnection
from simulation.hostile.identity import HostileIdentity
from simulation.hostile.node import HostileNode
from simulation.hostile.outbox import HostileOutbox

__all__ = ["HostileConnection", "HostileIdentity", "HostileNode", "HostileOutbox"]
