"""The states of a session, in their order.

`claimed`: it waits for a place, and its task for it. `provisioning`: its folder or container is
made. `configuring`: secrets and input are put there. `starting`: its command is being started.
`running`: the command runs. `monitoring`: the command runs, and was found again after a restart of
the gateway. `recycling`: it has ended and is cleaned up. `recycled`: nothing is left of it but its
log. A session that fails on the way up is recycled from any of these states. A claim that is given
up leaves nothing.

The journal keeps `claimed`, `running` and `recycled`. The states in between say how far a launch
is, and are in memory only.
"""

from enum import StrEnum


class SessionState(StrEnum):
    CLAIMED = "claimed"
    PROVISIONING = "provisioning"
    CONFIGURING = "configuring"
    STARTING = "starting"
    RUNNING = "running"
    MONITORING = "monitoring"
    RECYCLING = "recycling"
    RECYCLED = "recycled"
