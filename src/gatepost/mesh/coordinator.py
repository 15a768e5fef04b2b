"""The mesh as one node sees it: takes messages and time, and returns decisions.

Nothing here reads time or randomness, or sends anything. Everything that is sent is sent on a
heartbeat of this node, except for one answer to a peer whose address is not proven, and for the
claim that follows a released lease.
"""

from collections.abc import Callable

from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.decisions import (
    BackendReported,
    DatagramRefused,
    ElectionChanged,
    IntroPointsHeard,
    MeshDecision,
    PeerStatusChanged,
)
from gatepost.mesh.election import Election, ElectionView, Rank
from gatepost.mesh.gossip import choose_gossip
from gatepost.mesh.members import MeshMembers
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.mesh.messages import (
    ANNOUNCE_BYTES,
    BackendUnhealthy,
    Heartbeat,
    IntroPoint,
    IntroPoints,
    LeaseClaim,
    LeaseRelease,
    MeshMessage,
    MeshRole,
    Payload,
    PeerAnnounce,
    Term,
)
from gatepost.mesh.outgoing_messages import MeshIdentity, OutgoingMessages
from gatepost.mesh.peer_table import MeshPeer, PeerTable
from gatepost.mesh.refusals import Refusal

_WORST_PRIORITY = 2**32 - 1
_REPEATS = 3
MAX_BACKENDS = 16


class MeshCoordinator:
    """`now` is the steady time in milliseconds."""

    def __init__(
        self,
        identity: MeshIdentity,
        timers: MeshTimers,
        cookies: AddressCookies,
        now: int,
        honoured: Term | None = None,
    ) -> None:
        self.identity = identity
        self.timers = timers
        self.peers = PeerTable(timers)
        rank = (identity.priority, identity.node)
        self.election = Election(rank, identity.may_lead, timers, now, honoured)
        self.members: MeshMembers = {}
        self.outgoing = OutgoingMessages(identity, self.peers, cookies)
        self.bootstrap_addresses: tuple[str, ...] = ()
        # Whether a datagram may go to an address that a peer named.
        self.accepts_address: Callable[[str], bool] = bool
        self.last_publish_ts: int | None = None
        self.unhealthy_backends: tuple[str, ...] = ()
        self._intro_points: IntroPoints | None = None
        self._cookies = cookies
        self._ticked_at = now
        self._shown_election: ElectionChanged | None = None
        self._has_left = False

    # -- inputs

    def set_members(self, members: MeshMembers) -> list[MeshDecision]:
        """The room changed. `members` are all nodes that count, perhaps with this one."""
        others = {id: member for id, member in members.items() if id != self.identity.node}
        self.members = others
        self.peers.keep_members(others)
        return self._report_changes()

    def change_identity(self, identity: MeshIdentity) -> None:
        """This node's tier, priority or address is another one now."""
        self.identity = self.outgoing.identity = identity
        self.election.rank = (identity.priority, identity.node)
        self.election.may_lead = identity.may_lead

    def share_intro_points(self, points: tuple[IntroPoint, ...], since: int) -> None:
        """Tell all peers with the next heartbeats, if these points are other ones."""
        known = self._intro_points.intro_points if self._intro_points else ()
        if points != known:
            self._intro_points = IntroPoints(points, since)
            for peer in self.peers:
                peer.times_told = 0

    def hint_peer(self, node: str, address: str, now: int) -> list[MeshDecision]:
        """The room, or a join answer, names the address of a node."""
        if node not in self.members:
            return []
        peer = self.peers.hint_peer(node, address, None, now)
        return [] if peer is None else self._try_hint(peer)

    def handle_message(
        self, message: MeshMessage, source: str, size: int, now: int
    ) -> list[MeshDecision]:
        """Take an authentic message of a member, which came from `source` with so many bytes."""
        peer = self.peers.hear_peer(message.sender, size, now)
        if peer is None:
            return [DatagramRefused(Refusal.NOT_ALLOWED, message.sender)]
        decisions = self._prove_address(peer, message, source)
        decisions += self._handle_payload(peer, message.payload, now)
        return decisions + self._report_changes()

    def tick(self, now: int) -> list[MeshDecision]:
        """One heartbeat: judge silence, run the election, and speak to all peers."""
        if self._has_left:
            return []
        gap = now - self._ticked_at
        if gap >= self.timers.suspect_ms:
            self.peers.skip_time(gap)
            self.election.skip_time(gap, now)
        self._ticked_at = now
        self.peers.check_silence(now)
        held = self.election.honoured
        self.election.check_timers(now, self._view_election())
        decisions = self._announce_claim(held) + self._send_heartbeats()
        return decisions + self._send_announcements() + self._report_changes()

    def release_lease(self) -> list[MeshDecision]:
        """This node stops: give up the lease, and say no more."""
        self._has_left = True
        if not self.election.is_publisher:
            return []
        self.election.release_lease()
        release = LeaseRelease(self.election.honoured)
        return [*self.outgoing.broadcast(release), *self._report_changes()]

    # -- addresses

    def _prove_address(
        self, peer: MeshPeer, message: MeshMessage, source: str
    ) -> list[MeshDecision]:
        peer.cookie = message.cookie or peer.cookie
        if self._cookies.is_valid(message.echo, peer.id, source):
            self.peers.prove_address(peer, source)
        elif source != peer.address and peer.spend_credit(ANNOUNCE_BYTES):
            return [self.outgoing.announce_to(source, peer.id)]
        return []

    def _follow_hint(self, node: str, address: str, by: MeshPeer, now: int) -> list[MeshDecision]:
        known = self.peers.find_peer(node)
        if node not in self.members or (known is not None and known.is_alive):
            return []
        if not self.accepts_address(address):
            return []
        peer = self.peers.hint_peer(node, address, by.id, now)
        return [] if peer is None else self._try_hint(peer)

    def _try_hint(self, peer: MeshPeer) -> list[MeshDecision]:
        """Announce this node to a hinted address, at the expense of the peer that hinted at it."""
        payer = None if peer.hinted_by is None else self.peers.find_peer(peer.hinted_by)
        is_paid = peer.hinted_by is None or (payer and payer.spend_credit(ANNOUNCE_BYTES))
        if not is_paid:
            return []
        peer.tries_left -= 1
        return [self.outgoing.announce_to(peer.hinted_address, peer.id)]

    # -- messages of peers

    def _handle_payload(self, peer: MeshPeer, payload: Payload, now: int) -> list[MeshDecision]:
        match payload:
            case Heartbeat():
                return self._handle_heartbeat(peer, payload, now)
            case PeerAnnounce():
                peer.wg_pubkey, peer.tunnel_ip = payload.wg_pubkey, payload.tunnel_ip
                peer.priority = payload.priority
                return []
            case LeaseClaim():
                peer.priority = payload.priority
                return self._hear_publisher(peer, payload.term, now)
            case LeaseRelease():
                return self._handle_release(peer, payload.term)
            case IntroPoints():
                peer.intro_points = payload.intro_points
                return [IntroPointsHeard(peer.id, payload)]
            case BackendUnhealthy():
                return [BackendReported(peer.id, payload.backend)]

    def _handle_heartbeat(
        self, peer: MeshPeer, heartbeat: Heartbeat, now: int
    ) -> list[MeshDecision]:
        peer.priority = heartbeat.priority
        if heartbeat.role is MeshRole.PUBLISHER:
            decisions = self._hear_publisher(peer, heartbeat.term, now)
        else:
            decisions = self._hear_standby(peer, heartbeat.term, now)
        for known in heartbeat.known_peers:
            decisions += self._follow_hint(known.node_id, known.wg_endpoint, peer, now)
        return decisions

    def _hear_publisher(self, peer: MeshPeer, term: Term | None, now: int) -> list[MeshDecision]:
        """A heartbeat of a publisher, or a claim: it counts from nodes that may lead."""
        known = term or Term(0, peer.id)
        if not self._may_lead(peer.id):
            return [DatagramRefused(Refusal.NOT_ALLOWED, peer.id)]
        if not self.election.hear_publisher(_rank_of(peer), known, now):
            return [DatagramRefused(Refusal.NOT_ALLOWED, peer.id)]
        peer.is_publisher, peer.term = True, known
        return []

    def _hear_standby(self, peer: MeshPeer, term: Term | None, now: int) -> list[MeshDecision]:
        peer.is_publisher, peer.term = False, term
        if term is None:
            return []
        if term.node == peer.id and term == self.election.honoured:
            # The publisher lost its office, for instance by a restart, and says so.
            return self._handle_release(peer, term, has_left=False)
        return self._hear_report(peer, term, now)

    def _hear_report(self, peer: MeshPeer, term: Term, now: int) -> list[MeshDecision]:
        """A node that may not lead moves no publisher, and is heard once in a takeover time."""
        if self._may_lead(peer.id):
            owner = self.peers.find_peer(term.node)
            counts = owner is not None and self._may_lead(term.node)
            rank = _rank_of(owner) if owner is not None and counts else None
        else:
            due = peer.reported_at is None or now - peer.reported_at >= self.timers.takeover_ms
            if not due or not self.election.is_new_term(term):
                return []
            peer.reported_at, rank = now, None
        if self.election.hear_report(term, rank, now):
            return []
        return [DatagramRefused(Refusal.NOT_ALLOWED, peer.id)]

    def _handle_release(
        self, peer: MeshPeer, term: Term | None, *, has_left: bool = True
    ) -> list[MeshDecision]:
        if not self._may_lead(peer.id):
            return [DatagramRefused(Refusal.NOT_ALLOWED, peer.id)]
        if not self.election.hear_release(peer.id, term):
            # A publisher that nobody here honours, for instance one of a healed partition.
            return []
        if has_left:
            self.peers.mark_left(peer.id)
        held = self.election.honoured
        self.election.take_vacant_office(self._view_election())
        return self._announce_claim(held)

    def _may_lead(self, node: str) -> bool:
        member = self.members.get(node)
        return member is not None and member.may_lead

    def _view_election(self) -> ElectionView:
        rivals = (_rank_of(peer) for peer in self.peers.living_peers() if self._may_lead(peer.id))
        own: Rank = self.election.rank
        is_alone = not any(member.may_lead for member in self.members.values())
        return ElectionView(is_alone=is_alone, is_best=all(own < rank for rank in rivals))

    # -- speaking

    def _announce_claim(self, held: Term | None) -> list[MeshDecision]:
        """Claim the lease before all peers, if this node has just taken a new term."""
        term = self.election.honoured
        if not self.election.is_publisher or term == held:
            return []
        return list(self.outgoing.broadcast(LeaseClaim(self.identity.priority, term)))

    def _send_heartbeats(self) -> list[MeshDecision]:
        decisions: list[MeshDecision] = [*self.outgoing.broadcast(self._make_heartbeat())]
        decisions += self._tell_intro_points()
        for backend in self.unhealthy_backends[:MAX_BACKENDS]:
            decisions += self.outgoing.broadcast(BackendUnhealthy(backend))
        return decisions

    def _tell_intro_points(self) -> list[MeshDecision]:
        """Each peer is told a few times, as datagrams may be lost."""
        points = self._intro_points
        untold = [peer for peer in self.peers if peer.address and peer.times_told < _REPEATS]
        if points is None:
            return []
        for peer in untold:
            peer.times_told += 1
        return [self.outgoing.send_to(peer.address, peer.id, points) for peer in untold]

    def _make_heartbeat(self) -> Heartbeat:
        points = self._intro_points.intro_points if self._intro_points else ()
        named = [peer for peer in self.peers.living_peers() if peer.address]
        longest = max((len(peer.id) for peer in self.peers), default=0)
        term = self.election.honoured if self.election.is_publisher else self.election.reported
        name_bytes = len(self.identity.node) + longest + (len(term.node) if term else 0)
        return Heartbeat(
            MeshRole.PUBLISHER if self.election.is_publisher else MeshRole.STANDBY,
            self.last_publish_ts,
            choose_gossip(named, name_bytes),
            len(points),
            self.identity.priority,
            term,
        )

    def _send_announcements(self) -> list[MeshDecision]:
        """Try hints again, and addresses of the operator at which nobody is alive yet."""
        decisions: list[MeshDecision] = []
        for peer in list(self.peers):
            if peer.tries_left and not peer.is_alive:
                decisions += self._try_hint(peer)
        alive_at = {peer.address for peer in self.peers.living_peers()}
        missing = (each for each in self.bootstrap_addresses if each not in alive_at)
        decisions += [self.outgoing.announce_to(address, None) for address in missing]
        return decisions

    def _report_changes(self) -> list[MeshDecision]:
        decisions: list[MeshDecision] = [
            PeerStatusChanged(node, state) for node, state in self.peers.take_changes().items()
        ]
        election = self.election
        shown = ElectionChanged(election.state, election.publisher, election.honoured)
        if shown != self._shown_election:
            self._shown_election = shown
            decisions.append(shown)
        return decisions


def _rank_of(peer: MeshPeer) -> Rank:
    return (_WORST_PRIORITY if peer.priority is None else peer.priority, peer.id)
