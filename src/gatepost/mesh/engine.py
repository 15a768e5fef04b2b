"""One node's part of the mesh: takes messages and time, and returns decisions.

Nothing here reads time or randomness, or sends anything. Everything that is sent is sent on a
heartbeat of this node, except for one answer to a peer whose address is not proven, and for the
claim that follows a released lease.
"""

from collections.abc import Callable

from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.clock_comparison import ClockFinding, compare_clocks
from gatepost.mesh.decisions import (
    BackendReported,
    DatagramRefused,
    ElectionChanged,
    HintRefused,
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
    KnownPeer,
    LeaseClaim,
    LeaseRelease,
    MeshMessage,
    MeshRole,
    Payload,
    PeerAnnounce,
)
from gatepost.mesh.outgoing_messages import MeshIdentity, OutgoingMessages
from gatepost.mesh.peer_table import ClockReading, MeshPeer, PeerTable
from gatepost.mesh.refusals import Refusal
from gatepost.wire.mesh_views import Term

_WORST_PRIORITY = 2**32 - 1
# Better than any priority: a publisher of this rank never yields.
_INSISTING = -1
_REPEATS = 3
MAX_BACKENDS = 16


class MeshEngine:
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
        # The wrong clocks, or those that differ, as of the last heartbeat.
        self.clocks: tuple[ClockFinding, ...] = ()
        self.is_outvoted = False
        # Until then this node does not claim the lease, because of a failure or its operator.
        self._withheld_until = now
        self._room_term_at: int | None = None
        self._intro_points: IntroPoints | None = None
        self._cookies = cookies
        self._ticked_at = now
        self._shown_election: ElectionChanged | None = None
        self._has_left = False

    # -- inputs

    def set_members(self, members: MeshMembers) -> list[MeshDecision]:
        """Set the members after a change of the room; they can include this node."""
        others = {id: member for id, member in members.items() if id != self.identity.node}
        self.members = self.outgoing.members = others
        self.peers.keep_members(others)
        return self._report_changes()

    def change_identity(self, identity: MeshIdentity) -> None:
        """Change this node's tier, priority or address."""
        self.identity = self.outgoing.identity = identity
        self.election.rank = (identity.priority, identity.node)
        self.election.may_lead = identity.may_lead

    def share_intro_points(self, points: tuple[IntroPoint, ...], since: int) -> None:
        """Send changed intro points to all peers with the next heartbeats."""
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
        """Take an authentic message of a member, which came from `source` with `size` bytes."""
        peer = self.peers.hear_peer(message.sender, size, now)
        if peer is None:
            return [DatagramRefused(Refusal.NOT_ALLOWED, message.sender)]
        if message.skew:
            _note_clock(peer, message, -message.skew, now, is_measured=False)
        elif not isinstance(message.payload, PeerAnnounce):
            # An announcement may be addressed to any node at this address, and says nothing about
            # clocks.
            peer.clock = None
        decisions = self._prove_address(peer, message, source)
        decisions += self._handle_payload(peer, message.payload, now)
        return decisions + self._report_changes()

    def handle_skewed(
        self, message: MeshMessage, offset_secs: int, source: str, size: int, now: int
    ) -> list[MeshDecision]:
        """Take note of the clock of a member whose authentic message came at the wrong time.

        A repeated message is ignored: its sender is heard at the right time, or it returns an old
        cookie.
        """
        refused: list[MeshDecision] = [DatagramRefused(Refusal.CLOCK_SKEW, message.sender)]
        peer = self.peers.hear_skewed(message.sender, size, now)
        if peer is None or (peer.is_alive and not message.skew):
            return refused
        if self._cookies.is_valid(message.echo, peer.id, source):
            if isinstance(message.payload, Heartbeat):
                _note_priority(peer, message.payload)
            _note_clock(peer, message, offset_secs, now, is_measured=True)
        return refused + self._prove_address(peer, message, source)

    def hear_room_term(self, term: Term, now: int) -> None:
        """A coordinator wrote this term into the room.

        Its publisher may not receive this node's messages. So the two contest each other's terms
        once per takeover time, not with every heartbeat.
        """
        if not self.election.is_new_term(term):
            return
        if self.election.is_publisher:
            at = self._room_term_at
            if at is not None and now - at < self.timers.takeover_ms:
                return
            self._room_term_at = now
        self.election.hear_report(term, None, now)

    def tick(self, now: int) -> list[MeshDecision]:
        """One heartbeat: judge silence and clocks, run the election, and speak to all peers."""
        if self._has_left:
            return []
        gap = now - self._ticked_at
        if gap >= self.timers.suspect_ms:
            self.peers.skip_time(gap)
            self.election.skip_time(gap, now)
        self._ticked_at = now
        self._cookies.set_period(now // self.timers.suspect_ms)
        self.peers.check_silence(now)
        self._compare_clocks(now)
        decisions = self._give_up_office() if self.is_barred else []
        held = self.election.honoured
        self.election.check_timers(now, self._view_election())
        decisions += self._announce_claim(held) + self._send_heartbeats()
        return decisions + self._send_announcements() + self._report_changes()

    def release_lease(self) -> list[MeshDecision]:
        """This node stops: release the lease, and send nothing more."""
        self._has_left = True
        return [*self._give_up_office(), *self._report_changes()]

    def withhold_lease(self, now: int) -> list[MeshDecision]:
        """Release the lease, and do not claim it again for `suspect_ms`."""
        self._withheld_until = now + self.timers.suspect_ms
        return [*self._give_up_office(), *self._report_changes()]

    def _give_up_office(self) -> list[MeshDecision]:
        if not self.election.is_publisher:
            return []
        self.election.release_lease()
        return list(self.outgoing.broadcast(LeaseRelease(self.election.honoured)))

    # -- clocks

    @property
    def is_barred(self) -> bool:
        """Whether this node must not claim the lease now, independently of its rank."""
        return self.is_outvoted or self._ticked_at < self._withheld_until

    def _compare_clocks(self, now: int) -> None:
        """Find the wrong clocks, and whether this node leaves the lease to others because of them.

        It does if its own clock is wrong. If as many nodes agree with it as differ, it does while a
        publisher of better rank is among those that differ: of both, one leads.
        """
        me = self.identity.node
        self.peers.forget_clocks(now)
        offsets = {peer.id: 0 for peer in self.peers.living_peers()} | {me: 0}
        offsets |= {peer.id: peer.clock.offset_secs for peer in self.peers if peer.clock}
        voters = {node for node in offsets if self._may_lead(node)}
        if self.identity.may_lead:
            voters.add(me)
        self.clocks = compare_clocks(offsets, voters, self.timers.clock_tolerance_secs)
        own = next((each for each in self.clocks if each.node == me), None)
        self.is_outvoted = own is not None and (own.is_wrong or self._hears_better_publisher())

    def _hears_better_publisher(self) -> bool:
        """Whether a node whose clock differs leads, and has the better rank."""
        own = self.election.rank
        return any(
            peer.clock is not None and peer.clock.is_publisher and _rank_of(peer) < own
            for peer in self.peers
            if self._may_lead(peer.id)
        )

    # -- addresses

    def _prove_address(
        self, peer: MeshPeer, message: MeshMessage, source: str
    ) -> list[MeshDecision]:
        peer.cookie = message.cookie or peer.cookie
        member = self.members.get(peer.id)
        is_in_tunnel = member is not None and member.is_in_tunnel(source)
        if is_in_tunnel or self._cookies.is_valid(message.echo, peer.id, source):
            self.peers.prove_address(peer, source)
        elif source != peer.address and peer.spend_credit(ANNOUNCE_BYTES):
            return [self.outgoing.announce_to(source, peer.id)]
        return []

    def _datagram_address(self, known: KnownPeer) -> str:
        """Where datagrams reach a peer that gossip names; in a tunnel, at its place there alone."""
        me = self.identity
        if not me.tunnel_ip:
            return known.wg_endpoint
        member = self.members.get(known.node_id)
        tunnel = None if member is None else member.tunnel
        return "" if tunnel is None else tunnel.datagram_address(me.datagram_port)

    def _follow_hint(self, node: str, address: str, by: MeshPeer, now: int) -> list[MeshDecision]:
        known = self.peers.find_peer(node)
        is_alive = known is not None and known.is_alive
        if node not in self.members or is_alive or not address:
            return []
        if not self.accepts_address(address):
            return [HintRefused(node, address)]
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
                if payload.priority is not None:
                    peer.priority = payload.priority
                return []
            case LeaseClaim():
                peer.priority, peer.insists_since = payload.priority, None
                return self._hear_publisher(peer, payload.term, now)
            case LeaseRelease():
                peer.priority = peer.insists_since = None
                return self._handle_release(peer, payload.term)
            case IntroPoints():
                peer.intro_points = payload.intro_points
                return [IntroPointsHeard(peer.id, payload)]
            case BackendUnhealthy():
                return [BackendReported(peer.id, payload.backend)]

    def _handle_heartbeat(
        self, peer: MeshPeer, heartbeat: Heartbeat, now: int
    ) -> list[MeshDecision]:
        _note_priority(peer, heartbeat)
        peer.is_barred = heartbeat.is_barred
        if heartbeat.role is MeshRole.PUBLISHER:
            decisions = self._hear_publisher(peer, heartbeat.term, now)
        else:
            decisions = self._hear_standby(peer, heartbeat.term, now)
        for known in heartbeat.known_peers:
            decisions += self._follow_hint(known.node_id, self._datagram_address(known), peer, now)
        return decisions

    def _hear_publisher(self, peer: MeshPeer, term: Term | None, now: int) -> list[MeshDecision]:
        """A heartbeat of a publisher, or a claim: it counts from nodes that may lead."""
        if not self._may_lead(peer.id):
            return [DatagramRefused(Refusal.NOT_ALLOWED, peer.id)]
        rank = _rank_of(peer)
        if term is None:
            if self.election.is_publisher and self.election.rank < rank:
                if not peer.address or not self._note_insistence(peer, now):
                    return self._answer_claim(peer)
                rank = (_INSISTING, peer.id)
            term = self._find_term_of(peer)
        if term is None:
            return []
        if not self.election.hear_publisher(rank, term, now):
            return [DatagramRefused(Refusal.NOT_ALLOWED, peer.id)]
        peer.is_publisher, peer.term, peer.insists_since = True, term, None
        return []

    def _note_insistence(self, peer: MeshPeer, now: int) -> bool:
        """True if a publisher without a term has ignored the answers of this publisher.

        Because it does not yield, it has the better priority by its own rules, and its claim was
        lost.
        """
        if peer.insists_since is None:
            peer.insists_since = now
        return now - peer.insists_since >= self.timers.suspect_ms

    def _find_term_of(self, peer: MeshPeer) -> Term | None:
        """The term of a publisher that names none, as other implementations do.

        It is the one that others report, so that all honour the same one, or else the next one.
        None while a publisher of better rank is alive.
        """
        honoured, highest = self.election.honoured, self.election.highest
        if highest is not None and highest.node == peer.id and self._can_honour(highest):
            return highest
        if honoured is not None and not self.election.is_publisher and not self._is_vacant():
            if honoured.node == peer.id:
                return honoured
            owner = self.peers.find_peer(honoured.node)
            if owner is not None and owner.is_alive and _rank_of(owner) < _rank_of(peer):
                return None
        return Term(1 if highest is None else highest.counter + 1, peer.id)

    def _can_honour(self, term: Term) -> bool:
        honoured = self.election.honoured
        return honoured is None or term == honoured or term.counter > honoured.counter

    def _is_vacant(self) -> bool:
        return self.election.publisher is None

    def _answer_claim(self, peer: MeshPeer) -> list[MeshDecision]:
        """Tell a claimant that this publisher has the better rank."""
        if not peer.address:
            return []
        claim = LeaseClaim(self.identity.priority, self.election.honoured)
        return [self.outgoing.send_to(peer.address, peer.id, claim)]

    def _hear_standby(self, peer: MeshPeer, term: Term | None, now: int) -> list[MeshDecision]:
        peer.is_publisher, peer.term = False, term
        if term is None:
            return []
        if term.node == peer.id and term == self.election.honoured:
            # The publisher reports that it lost its office, for instance by a restart.
            return self._handle_release(peer, term, has_left=False)
        return self._hear_report(peer, term, now)

    def _hear_report(self, peer: MeshPeer, term: Term, now: int) -> list[MeshDecision]:
        """Take a term reported by a peer; from one that may not lead, once per takeover time."""
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
            # A publisher without followers here, for instance one of a healed partition.
            return []
        if has_left:
            self.peers.mark_left(peer.id)
        held = self.election.honoured
        self.election.take_vacant_office(self._view_election())
        return self._announce_claim(held)

    @property
    def is_alone(self) -> bool:
        """Whether no other member of the room may lead."""
        return not any(member.may_lead for member in self.members.values())

    def has_successor(self) -> bool:
        """Whether another living node may claim the lease."""
        living = self.peers.living_peers()
        return any(self._may_lead(peer.id) and not peer.is_barred for peer in living)

    def _may_lead(self, node: str) -> bool:
        member = self.members.get(node)
        return member is not None and member.may_lead

    def _view_election(self) -> ElectionView:
        rivals = (
            _rank_of(peer)
            for peer in self.peers.living_peers()
            if self._may_lead(peer.id) and not peer.is_barred
        )
        own: Rank = self.election.rank
        is_best = all(own < rank for rank in rivals)
        return ElectionView(is_alone=self.is_alone, is_best=is_best, is_barred=self.is_barred)

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
        """Send intro points to each peer a few times, because datagrams can be lost."""
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
            role=MeshRole.PUBLISHER if self.election.is_publisher else MeshRole.STANDBY,
            last_publish_ts=self.last_publish_ts,
            known_peers=choose_gossip(named, self.members, name_bytes),
            intro_point_count=len(points),
            priority=self.identity.priority,
            term=term,
            is_barred=self.is_barred,
        )

    def _send_announcements(self) -> list[MeshDecision]:
        """Try hints again, and addresses from the operator at which no node has answered yet."""
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


def _note_clock(
    peer: MeshPeer, message: MeshMessage, offset_secs: int, now: int, *, is_measured: bool
) -> None:
    is_publisher = peer.clock is not None and peer.clock.is_publisher
    if isinstance(message.payload, Heartbeat):
        is_publisher = message.payload.role is MeshRole.PUBLISHER
    peer.clock = ClockReading(offset_secs, now, is_publisher, is_measured)


def _note_priority(peer: MeshPeer, heartbeat: Heartbeat) -> None:
    """Note the priority in a claim; other implementations send it only there."""
    is_standby = heartbeat.role is MeshRole.STANDBY
    if is_standby or heartbeat.priority is not None:
        peer.priority = heartbeat.priority
    if is_standby:
        peer.insists_since = None


def _rank_of(peer: MeshPeer) -> Rank:
    return (_WORST_PRIORITY if peer.priority is None else peer.priority, peer.id)
