"""The states of a peer, and the only transitions between them.

A node that gossip names is `hinted`: it counts for nothing. An authentic datagram of the node
itself makes it `alive`. Silence makes it `suspect`, and longer silence `dead`; any authentic
datagram brings it back. A publisher that leaves in order is `dead` at once. A hint that leads
nowhere is `forgotten`.
"""

from enum import StrEnum


class PeerState(StrEnum):
    HINTED = "hinted"
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    FORGOTTEN = "forgotten"


class PeerInput(StrEnum):
    DATAGRAM = "datagram"
    SILENCE = "silence"
    LONG_SILENCE = "long_silence"
    LEAVE = "leave"


_S, _I = PeerState, PeerInput

TRANSITIONS: dict[tuple[PeerState, PeerInput], PeerState] = {
    (_S.HINTED, _I.DATAGRAM): _S.ALIVE,
    (_S.HINTED, _I.LONG_SILENCE): _S.FORGOTTEN,
    (_S.ALIVE, _I.DATAGRAM): _S.ALIVE,
    (_S.ALIVE, _I.SILENCE): _S.SUSPECT,
    (_S.ALIVE, _I.LEAVE): _S.DEAD,
    (_S.SUSPECT, _I.DATAGRAM): _S.ALIVE,
    (_S.SUSPECT, _I.LONG_SILENCE): _S.DEAD,
    (_S.SUSPECT, _I.LEAVE): _S.DEAD,
    (_S.DEAD, _I.DATAGRAM): _S.ALIVE,
}
