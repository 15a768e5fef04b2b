"""The states of a session, in their order, and the only transitions between them.

`claimed`: it waits for a place, and its task for it. `provisioning`: its folder or container is
made. `configuring`: secrets and input are put there. `starting`: its command is being started.
`running`: the command runs. `monitoring`: a check after the start found it alive. `recycling`: it
is ended and cleaned up. `recycled`: nothing is left of it but its log. A session that fails on the
way up is recycled from wherever it is. A claim that is given up leaves nothing.
"""

from enum import StrEnum

from gatepost.errors import WrongState


class SessionState(StrEnum):
    CLAIMED = "claimed"
    PROVISIONING = "provisioning"
    CONFIGURING = "configuring"
    STARTING = "starting"
    RUNNING = "running"
    MONITORING = "monitoring"
    RECYCLING = "recycling"
    RECYCLED = "recycled"


_S = SessionState

TRANSITIONS: dict[SessionState, tuple[SessionState, ...]] = {
    _S.CLAIMED: (_S.PROVISIONING,),
    _S.PROVISIONING: (_S.CONFIGURING, _S.RECYCLING),
    _S.CONFIGURING: (_S.STARTING, _S.RECYCLING),
    _S.STARTING: (_S.RUNNING, _S.RECYCLING),
    _S.RUNNING: (_S.MONITORING, _S.RECYCLING),
    _S.MONITORING: (_S.RECYCLING,),
    _S.RECYCLING: (_S.RECYCLED,),
    _S.RECYCLED: (),
}
LIVE_STATES = (_S.RUNNING, _S.MONITORING)


def check_session_transition(source: SessionState, target: SessionState) -> None:
    if target not in TRANSITIONS[source]:
        raise WrongState(f"a session that is {source} cannot become {target}")
