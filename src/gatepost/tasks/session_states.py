"""The states of a session, and the only transitions between them.

A task that waits is given a claim, which makes a place in the queue durable: the session is
`claimed`, and its task still pending. From there a launch takes three steps, each of which may
fail: the folder or the container is made (`provisioning`), secrets and input are put there
(`configuring`), and the command is started (`starting`). Then the command is `running`. A gateway
that starts again finds its sessions through the journal. Those whose processes live are
`monitoring`. When the processes are gone, for any reason, the session is `recycling`. Once its
result is judged, nothing is left of it but its log: it is `recycled`.

Three invariants:

- The journal sees four states only (`STORED_AS`). Those of a launch are in memory only, for callers
  that ask for its progress. A crash during a launch leaves a claim, and perhaps a folder. Without a
  folder nothing was launched, so the claim is released, and the task waits as before. With a folder
  the command may have run, so the session ends, and its task is lost or tried again.
- `recycling` is on record before anything that the session left behind is read. From then on its
  token is dead, so what it says no longer counts.
- An end is recorded once, and a result is judged once: the SQL guards of `end` and `recycle` come
  from this table, and their statements say whether they changed a row.
"""

from enum import StrEnum

from gatepost.journal import transition_sql


class SessionState(StrEnum):
    CLAIMED = "claimed"
    PROVISIONING = "provisioning"
    CONFIGURING = "configuring"
    STARTING = "starting"
    RUNNING = "running"
    MONITORING = "monitoring"
    RECYCLING = "recycling"
    RECYCLED = "recycled"


class SessionInput(StrEnum):
    PROVISION = "provision"
    CONFIGURE = "configure"
    START = "start"
    RUN = "run"
    RESUME = "resume"
    END = "end"
    RECYCLE = "recycle"


_S, _I = SessionState, SessionInput

TRANSITIONS: dict[tuple[SessionState, SessionInput], SessionState] = {
    (_S.CLAIMED, _I.PROVISION): _S.PROVISIONING,
    (_S.CLAIMED, _I.END): _S.RECYCLING,
    (_S.PROVISIONING, _I.CONFIGURE): _S.CONFIGURING,
    (_S.PROVISIONING, _I.END): _S.RECYCLING,
    (_S.CONFIGURING, _I.START): _S.STARTING,
    (_S.CONFIGURING, _I.END): _S.RECYCLING,
    (_S.STARTING, _I.RUN): _S.RUNNING,
    (_S.STARTING, _I.END): _S.RECYCLING,
    (_S.RUNNING, _I.RESUME): _S.MONITORING,
    (_S.RUNNING, _I.END): _S.RECYCLING,
    (_S.MONITORING, _I.END): _S.RECYCLING,
    (_S.RECYCLING, _I.RECYCLE): _S.RECYCLED,
}

# A released claim leaves no row.
RELEASABLE = SessionState.CLAIMED

# The stored state of a session that is being launched, or that was found again.
STORED_AS = {state: state for state in SessionState} | {
    _S.PROVISIONING: _S.CLAIMED,
    _S.CONFIGURING: _S.CLAIMED,
    _S.STARTING: _S.CLAIMED,
    _S.MONITORING: _S.RUNNING,
}


def update_session(input: SessionInput, assignments: str = "") -> str:
    """The statement that changes the state of one session, by its name, if the table permits it."""
    target = STORED_AS[transition_sql.target_of(TRANSITIONS, input)]
    sources = transition_sql.sources_of(TRANSITIONS, input)
    guard = transition_sql.is_in_states(dict.fromkeys(STORED_AS[source] for source in sources))
    return f"UPDATE session SET state = '{target}'{assignments} WHERE name = ? AND {guard}"
