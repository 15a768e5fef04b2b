"""The peers of one node: who they are, where they are, and whether they are alive.

A peer is a member of the room that gossip, the operator or a datagram named. Its address counts
once the peer has returned the address's cookie. Each peer has a credit: the bytes that it has sent.
Answers to an unproven address, and announcements to nodes that the peer hinted at, are paid from
it. So no sender can make this node send more than it received.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gatepost.mesh.members import MeshMembers
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.mesh.messages import IntroPoint, Priority
from gatepost.mesh.peer_states import TRANSITIONS, PeerInput, PeerState
from gatepost.wire.mesh_views import Term

MAX_PEERS = 1024
_MAX_CREDIT = 4_800
_HINT_TRIES = 3


class ClockReading(Struct, frozen=True):
    """A peer whose clock differs too much from that of this node.

    `offset_secs` is positive if its clock is ahead; `heard_at` is the steady time of this node.
    `is_measured`: its datagrams are refused; otherwise it says that it refuses those of this node.
    """

    offset_secs: int
    heard_at: int
    is_publisher: bool
    is_measured: bool


class MeshPeer(Struct):
    """One peer. `cookie` is to be echoed to it; `address` is proven, `hinted_address` is not.

    `times_told`: how often it was told the intro points of this node. `clock`: its last word while
    its clock differs. `insists_since`: it leads without a term, and has ignored the claims of this
    publisher since then.
    """

    id: str
    heard_at: int
    state: PeerState = PeerState.HINTED
    address: str = ""
    hinted_address: str = ""
    hinted_by: str | None = None
    tries_left: int = 0
    credit: int = 0
    cookie: str = ""
    priority: Priority | None = None
    is_publisher: bool = False
    term: Term | None = None
    reported_at: int | None = None
    gossip_count: int = 0
    wg_pubkey: str = ""
    tunnel_ip: str = ""
    intro_points: tuple[IntroPoint, ...] = ()
    times_told: int = 0
    is_barred: bool = False
    clock: ClockReading | None = None
    insists_since: int | None = None

    @property
    def is_authenticated(self) -> bool:
        return self.state is not PeerState.HINTED

    @property
    def is_alive(self) -> bool:
        return self.state is PeerState.ALIVE

    def earn_credit(self, size: int) -> None:
        self.credit = min(self.credit + size, _MAX_CREDIT)

    def spend_credit(self, size: int) -> bool:
        """Pay for a datagram that this peer caused. False if it sent too little for that."""
        if self.credit < size:
            return False
        self.credit -= size
        return True


class PeerTable:
    """All peers. Each change of a state is noted until `take_changes`."""

    def __init__(self, timers: MeshTimers) -> None:
        self._timers = timers
        self._peers: dict[str, MeshPeer] = {}
        self._changes: dict[str, PeerState] = {}

    def __iter__(self) -> Iterator[MeshPeer]:
        return iter(self._peers.values())

    def __len__(self) -> int:
        return len(self._peers)

    def find_peer(self, node: str) -> MeshPeer | None:
        return self._peers.get(node)

    def living_peers(self) -> Iterable[MeshPeer]:
        return [peer for peer in self._peers.values() if peer.is_alive]

    def hear_peer(self, node: str, size: int, now: int) -> MeshPeer | None:
        """An authentic datagram of this size came from a member. None if the table is full."""
        peer = self._peers.get(node) or self._add_peer(node, now)
        if peer is not None:
            peer.heard_at = now
            peer.earn_credit(size)
            if not peer.is_alive:
                # It may be a new process that does not know us.
                peer.times_told = 0
            self._move(peer, PeerInput.DATAGRAM)
        return peer

    def hear_skewed(self, node: str, size: int, now: int) -> MeshPeer | None:
        """A member sent the wrong time: its datagram pays for answers, but is no sign of life."""
        peer = self._peers.get(node) or self._add_peer(node, now)
        if peer is not None:
            peer.earn_credit(size)
            if not peer.is_authenticated:
                peer.heard_at = now
        return peer

    def hint_peer(self, node: str, address: str, by: str | None, now: int) -> MeshPeer | None:
        """A hint names a node that is not alive here. If `by` is None, no peer pays for the tries.

        None if the hint tells nothing new.
        """
        peer = self._peers.get(node) or self._add_peer(node, now)
        if peer is None or peer.is_alive or not address or peer.tries_left:
            return None
        if address == peer.address:
            return None
        peer.hinted_address, peer.hinted_by, peer.tries_left = address, by, _HINT_TRIES
        if not peer.is_authenticated:
            peer.heard_at = now
        return peer

    def prove_address(self, peer: MeshPeer, address: str) -> None:
        """The peer has returned the cookie of this address."""
        peer.address, peer.hinted_address, peer.tries_left = address, "", 0

    def mark_left(self, node: str) -> None:
        peer = self._peers.get(node)
        if peer is not None and peer.state in (PeerState.ALIVE, PeerState.SUSPECT):
            self._move(peer, PeerInput.LEAVE)

    def check_silence(self, now: int) -> None:
        for peer in list(self._peers.values()):
            silence = now - peer.heard_at
            if peer.is_alive and silence >= self._timers.suspect_ms:
                self._move(peer, PeerInput.SILENCE)
            unanswered = peer.state in (PeerState.SUSPECT, PeerState.HINTED)
            if unanswered and silence >= self._timers.takeover_ms:
                self._move(peer, PeerInput.LONG_SILENCE)

    def forget_clocks(self, now: int) -> None:
        """Drop the reports of clocks that are not repeated."""
        for peer in self._peers.values():
            if peer.clock is not None and now - peer.clock.heard_at >= self._timers.takeover_ms:
                peer.clock = None

    def skip_time(self, gap: int) -> None:
        for peer in self._peers.values():
            peer.heard_at += gap

    def keep_members(self, members: MeshMembers) -> None:
        """Drop the nodes that are no longer members."""
        for node in [node for node in self._peers if node not in members]:
            del self._peers[node]
            self._changes.pop(node, None)

    def take_changes(self) -> dict[str, PeerState]:
        changes, self._changes = self._changes, {}
        return changes

    def _add_peer(self, node: str, now: int) -> MeshPeer | None:
        if len(self._peers) >= MAX_PEERS:
            return None
        return self._peers.setdefault(node, MeshPeer(node, now))

    def _move(self, peer: MeshPeer, input: PeerInput) -> None:
        state = TRANSITIONS[peer.state, input]
        if state is peer.state:
            return
        peer.state = state
        if state is not PeerState.ALIVE:
            peer.is_publisher = peer.is_barred = False
            peer.insists_since = None
        if state is PeerState.FORGOTTEN:
            del self._peers[peer.id]
        else:
            self._changes[peer.id] = state
