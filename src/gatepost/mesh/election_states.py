"""The states of the election at one node, and the only transitions between them.

A `standby` hears a publisher. Silence of the publisher makes it `suspect`; after the grace, or at
once when the publisher releases its lease, the office is `vacant`. Of the living nodes that may
lead, the one with the best rank then claims a new term and is `publisher`. A node without a rival
is publisher at once. A publisher steps down when it sees a better one. A publisher that slept
longer than its lease has lost it, and listens first.
"""

from enum import StrEnum


class ElectionState(StrEnum):
    STANDBY = "standby"
    SUSPECT = "suspect"
    VACANT = "vacant"
    PUBLISHER = "publisher"


class ElectionInput(StrEnum):
    HEARD = "publisher heard"
    SILENCE = "publisher silent"
    GRACE_OVER = "grace over"
    RELEASE = "lease released"
    ELECTED = "elected"
    ALONE = "alone"
    BETTER = "better publisher"
    LAPSE = "slept too long"


_S, _I = ElectionState, ElectionInput

TRANSITIONS: dict[tuple[ElectionState, ElectionInput], ElectionState] = {
    (_S.STANDBY, _I.HEARD): _S.STANDBY,
    (_S.STANDBY, _I.SILENCE): _S.SUSPECT,
    (_S.STANDBY, _I.RELEASE): _S.VACANT,
    (_S.STANDBY, _I.ALONE): _S.PUBLISHER,
    (_S.SUSPECT, _I.HEARD): _S.STANDBY,
    (_S.SUSPECT, _I.GRACE_OVER): _S.VACANT,
    (_S.SUSPECT, _I.RELEASE): _S.VACANT,
    (_S.SUSPECT, _I.ALONE): _S.PUBLISHER,
    (_S.VACANT, _I.HEARD): _S.STANDBY,
    (_S.VACANT, _I.ELECTED): _S.PUBLISHER,
    (_S.VACANT, _I.ALONE): _S.PUBLISHER,
    (_S.PUBLISHER, _I.BETTER): _S.STANDBY,
    (_S.PUBLISHER, _I.RELEASE): _S.VACANT,
    (_S.PUBLISHER, _I.LAPSE): _S.SUSPECT,
}


def describe_leader(node: str, publisher: str | None, state: str, counter: int | None) -> str:
    """The leader as seen by `node`, in the words of all commands and of the log."""
    term = "" if counter is None else f" in term {counter}"
    if publisher == node:
        return f"{node}, this gateway, leads the mesh{term}"
    if publisher is not None:
        silent = ", but is silent" if state == ElectionState.SUSPECT else ""
        return f"{publisher} leads the mesh{term}{silent}; {node}, this gateway, stands by"
    if state == ElectionState.VACANT:
        return f"no gateway leads the mesh: the lease is free; {node}, this gateway, stands by"
    return f"no gateway leads the mesh yet; {node}, this gateway, listens"
