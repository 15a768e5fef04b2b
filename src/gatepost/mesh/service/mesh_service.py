"""The mesh in the process: it receives, ticks, and applies the decisions of the core."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import msgspec
from msgspec.structs import replace

from gatepost.config import is_loopback
from gatepost.core.change_counter import ChangeCounter
from gatepost.core.gateway_core import Core
from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import Conflict
from gatepost.journal import Tx
from gatepost.journal.facts import find_fact, save_fact
from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_judge import DatagramJudge
from gatepost.mesh.datagram_signature import NodeKeySigner
from gatepost.mesh.decisions import (
    BackendReported,
    DatagramRefused,
    ElectionChanged,
    HintRefused,
    IntroPointsHeard,
    MeshDecision,
    PeerStatusChanged,
    SendDatagram,
)
from gatepost.mesh.election_states import describe_leader
from gatepost.mesh.engine import MAX_BACKENDS, MeshEngine
from gatepost.mesh.heard_addresses import HeardAddresses, encode_point
from gatepost.mesh.members import MeshMembers, split_host
from gatepost.mesh.mesh_node import MeshNode
from gatepost.mesh.mesh_time import MeshTime
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.refusals import Refusal
from gatepost.mesh.rendezvous import find_descriptor
from gatepost.mesh.service.backend_health import BackendHealth
from gatepost.mesh.service.clock_problems import ClockProblems
from gatepost.mesh.service.room_addresses import (
    RoomAddresses,
    is_onion,
    is_own_address,
    is_usable,
)
from gatepost.mesh.service.room_members import (
    kept_members,
    list_members,
    make_timers,
    own_identity,
)
from gatepost.mesh.service.stranger_refusals import StrangerRefusals
from gatepost.mesh.transport import DatagramTransport
from gatepost.room import RoomChange
from gatepost.room.service.room_replica import RoomReplica
from gatepost.wire.mesh_views import Term

log = logging.getLogger(__name__)

_SECRET_BYTES = 32
# How often the release is sent, so that a lost datagram does not delay the next publisher.
_RELEASES, _RELEASE_PAUSE_SECS = 3, 0.05
_HOUR_MS = 3_600_000
_TERM_FACT = "mesh_term"
_MEMBER_MAPS = {"nodes", "standing"}
_FAILURE = "a heartbeat of the mesh failed"

ReadClusterToken = Callable[[], Awaitable[str | None]]
FindUnhealthyAgents = Callable[[], Awaitable[tuple[str, ...]]]
# The failures for which this gateway should not lead, a sentence each.
FindFailures = Callable[[], Iterable[str]]


class MeshService:
    """`read_token` returns the cluster token of the room, if this gateway knows it."""

    def __init__(
        self, replica: RoomReplica, transport: DatagramTransport, read_token: ReadClusterToken
    ) -> None:
        self._replica = replica
        self._core: Core = replica.core
        self._settings = self._core.settings.mesh
        self.transport = transport
        self._read_token = read_token
        self._tokens: tuple[str, ...] = ()
        self._members: MeshMembers = {}
        self.timers = make_timers(self._settings)
        self.backends = BackendHealth(self.timers.suspect_ms)
        self._addresses = RoomAddresses(self.timers.takeover_ms)
        self.heard = HeardAddresses()
        self._strangers = StrangerRefusals(self._core.abuse, self._core.clock)
        self._find_unhealthy: FindUnhealthyAgents = _all_healthy
        self._find_failures: FindFailures = tuple
        self._failures: tuple[str, ...] = ()
        self._clock_problems = ClockProblems(self._core)
        self.changes = ChangeCounter()
        self.suspicions = 0
        self.node: MeshNode | None = None
        self._room_key = b""
        self._was_without_room = False
        # The members whose address on loopback was refused.
        self._refused_hints: set[str] = set()
        replica.watch_changes(self._note_change)

    def watch_agents(self, find_unhealthy: FindUnhealthyAgents) -> None:
        """Tell other nodes about the agents that `find_unhealthy` returns."""
        self._find_unhealthy = find_unhealthy

    def watch_failures(self, find_failures: FindFailures) -> None:
        """Leave the lease to others while `find_failures` returns something."""
        self._find_failures = find_failures

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.transport.start(self._receive)
        self._publish_address()
        pause = self.timers.heartbeat_ms / 1000
        loops = self._core.background
        work = asyncio.create_task(loops.repeat_forever(pause, self._beat, _FAILURE))
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await self.transport.close()

    async def leave(self) -> None:
        """Hand over at once: this gateway stops."""
        if self.node is None:
            return
        await self._send_releases(self.node.release_lease(self._now()))

    async def release_office(self) -> None:
        """Hand over to another gateway, as the operator wishes; Conflict if that cannot be."""
        node = self.node
        if node is None or not node.engine.election.is_publisher:
            leader = self.publisher()
            does = "no gateway does" if leader is None else f"{leader} does"
            raise Conflict(f"this gateway does not lead the mesh; {does}")
        if not node.engine.has_successor():
            raise Conflict("no other gateway of the mesh is alive that may lead")
        log.info("this gateway hands the lease over, as its operator wishes")
        await self._send_releases(node.withhold_lease(self._now()))

    async def _send_releases(self, decisions: list[MeshDecision]) -> None:
        self._apply(decisions)
        for _ in range(_RELEASES - 1):
            await asyncio.sleep(_RELEASE_PAUSE_SECS)
            _send_datagrams(self.transport, decisions)

    # -- the word of the mesh

    def office_term(self) -> Term | None:
        """The term in which this node is publisher; None if it is not."""
        election = None if self.node is None else self.node.engine.election
        return election.honoured if election is not None and election.is_publisher else None

    def publisher(self) -> str | None:
        """The node that leads, as far as this one knows. Without a room it is this one."""
        if self._replica.room is None:
            return self._core.node.id
        return None if self.node is None else self.node.engine.election.publisher

    def peer_state(self, node: str) -> PeerState | None:
        """Whether a node is alive; None if the mesh has not heard of it yet."""
        peer = None if self.node is None else self.node.engine.peers.find_peer(node)
        return peer.state if peer is not None and peer.is_authenticated else None

    def seconds_silent(self, node: str) -> float | None:
        """Seconds since the last datagram of a node; None if none has come."""
        peer = None if self.node is None else self.node.engine.peers.find_peer(node)
        if peer is None or not peer.is_authenticated:
            return None
        return max(0.0, (self._now().steady_ms - peer.heard_at) / 1000)

    def find_problems(self) -> list[str]:
        """The problems of the mesh that need the operator, a sentence each."""
        me = self._core.node.id
        failures = [f"{me} leaves the mesh to others to lead: {each}" for each in self._failures]
        unhealthy = [
            f"agent {agent} is unhealthy, as its gateway {node} says"
            for node, agent in sorted(self.unhealthy_agents())
        ]
        return [*self._clock_problems.describe(), *failures, *unhealthy]

    def unhealthy_agents(self) -> frozenset[tuple[str, str]]:
        return self.backends.unhealthy_agents(self._now().steady_ms)

    # -- the loop

    async def _beat(self) -> None:
        await self._enter_room()
        if self.node is None:
            return
        engine = self.node.engine
        # First, because a gateway that fails may be unable to do anything else.
        self._follow_failures(self.node)
        engine.unhealthy_backends = (await self._find_unhealthy())[:MAX_BACKENDS]
        self._share_intro_points(engine)
        self._follow_room_term()
        self._try_room_addresses()
        now = self._now()
        self._apply(self.node.tick(now))
        if self._clock_problems.note_clocks(engine.clocks, now.steady_ms):
            self.changes.note_change()

    def _follow_failures(self, node: MeshNode) -> None:
        # If no other node may lead, a failing one is better than none.
        failures = () if node.engine.is_alone else tuple(self._find_failures())
        if failures != self._failures:
            self._failures = failures
            self.changes.note_change()
        if failures:
            self._apply(node.withhold_lease(self._now()))

    def _share_intro_points(self, engine: MeshEngine) -> None:
        """Name the address that other gateways dial, and the time of the last descriptor."""
        room, endpoint = self._replica.current_room, self._replica.endpoint
        points = (encode_point(endpoint),) if endpoint else ()
        since = self._core.clock.now() // 1000
        engine.share_intro_points(points, since)
        own = find_descriptor(room, self._core.node.id, self._core.clock.now())
        is_own = own is not None and own.writer == self._core.node.id
        engine.last_publish_ts = own.at // 1000 if own is not None and is_own else None

    async def _enter_room(self) -> None:
        """Enter the room's mesh, with the room's cluster token."""
        room = self._replica.room
        if room is None:
            self._was_without_room = True
            return
        if self.node is None or self._room_key != room.genesis.key:
            self._room_key = room.genesis.key
            self.node = await self._create_node()
            if self._was_without_room and self._room_key == self._core.node.key.public:
                self._lead_founded_room(self.node)
            self._was_without_room = False
        self._follow_members()
        await self._follow_token()

    def _lead_founded_room(self, node: MeshNode) -> None:
        """Continue as publisher: nodes may have joined this room, but none has led it yet."""
        self._apply(node.set_members({}, self._now()))
        self._apply(node.tick(self._now()))

    def _note_change(self, change: RoomChange | None) -> None:
        if change is None or any(signed.map in _MEMBER_MAPS for signed in change.changed):
            self._follow_members()

    def _follow_members(self) -> None:
        room = self._replica.room
        if self.node is None or room is None or room.genesis.key != self._room_key:
            return
        identity = own_identity(room, self._core.node.id, self._settings, self._replica.transport)
        self.node.engine.change_identity(identity)
        hosts = self.transport.authenticated_hosts
        members = {**kept_members(self._members, room), **list_members(room, hosts)}
        if members != self._members:
            self._members = members
            self._refused_hints &= members.keys()
            self.heard.keep_members({(each.id, each.public_key) for each in members.values()})
            self._apply(self.node.set_members(members, self._now()))

    def _publish_address(self) -> None:
        """Let the room know where this gateway takes datagrams."""
        if is_own_address(self.transport.local_address):
            udp = self.transport.local_address
            self._replica.transport = replace(self._replica.transport, udp=udp)

    def _accepts_address(self, address: str) -> bool:
        if is_onion(self.transport.local_address) or is_onion(address):
            return is_onion(self.transport.local_address) and is_onion(address)
        on_loopback = is_loopback(split_host(self.transport.local_address)) or any(
            is_loopback(split_host(peer)) for peer in self._settings.peers
        )
        allowed = on_loopback or self._core.settings.room.dial_loopback
        return is_usable(address, allow_loopback=allowed)

    def _try_room_addresses(self) -> None:
        """Announce this node to members that are not alive, at the addresses they published."""
        assert self.node is not None
        now = self._now()
        for node, address in self._addresses.due_addresses(
            self._replica.current_room, now.steady_ms
        ):
            if self.peer_state(node) is PeerState.ALIVE:
                continue
            if not self._accepts_address(address):
                self._report_refused_hint(node, address)
            else:
                self._addresses.note_try(node, now.steady_ms)
                self._apply(self.node.hint_peer(node, address, now))

    async def _create_node(self) -> MeshNode:
        core, now = self._core, self._now()
        honoured = await core.read(read_term)
        cookies = AddressCookies(core.clock.random(_SECRET_BYTES))
        replica = self._replica
        identity = own_identity(replica.room, core.node.id, self._settings, replica.transport)
        engine = MeshEngine(identity, self.timers, cookies, now.steady_ms, honoured)
        engine.bootstrap_addresses = self._settings.peers
        engine.accepts_address = self._accepts_address
        signer = NodeKeySigner(core.node.key, self._room_key)
        self._members = {}
        self._tokens = ()
        judge = DatagramJudge(core.node.id, signer, cookies, self.timers, now.steady_ms)
        return MeshNode(engine, judge)

    async def _follow_token(self) -> None:
        """Update the cluster token; the previous one stays valid for slower nodes."""
        token = await self._read_token()
        if token is not None and self.node is not None and token not in self._tokens[:1]:
            self._tokens = (token, *self._tokens[:1])
            self.node.set_cluster_tokens(self._tokens)

    def _follow_room_term(self) -> None:
        """A term that a coordinator wrote into the room counts as heard."""
        claim = self._replica.current_room.effective.coordination
        if claim is not None and self.node is not None and claim.term.counter > 0:
            term = Term(claim.term.counter, claim.term.node)
            self.node.engine.hear_room_term(term, self._now().steady_ms)

    def _receive(self, datagram: bytes, source: str) -> bool:
        """Take a datagram; returns whether a member signed it."""
        if self.node is None:
            return False
        decisions = self.node.receive(datagram, source, self._now())
        self._apply(decisions)
        refused = [e.refusal for e in decisions if isinstance(e, DatagramRefused) and not e.node]
        for refusal in refused:
            self._strangers.note_refusal(source, refusal)
        return not refused

    # -- decisions

    def _apply(self, decisions: list[MeshDecision]) -> None:
        _send_datagrams(self.transport, decisions)
        for decision in decisions:
            match decision:
                case PeerStatusChanged():
                    self._note_status(decision)
                case ElectionChanged():
                    self._note_election(decision)
                case DatagramRefused(refusal=Refusal.NOT_ALLOWED, node=str(node)):
                    detail = "its role in the mesh does not allow its claims, releases or terms"
                    self._core.abuse.report_abuse(node, AbuseKind.MESH_ROLE, detail)
                case HintRefused(node=node, address=address):
                    self._report_refused_hint(node, address)
                case IntroPointsHeard():
                    self._note_intro_points(decision)
                case BackendReported():
                    self._note_backend(decision)

    def _note_backend(self, reported: BackendReported) -> None:
        node, agent = reported.node, reported.backend
        if self.backends.note_report(node, agent, self._now().steady_ms):
            self.changes.note_change()
            incidents, hour = self._core.delivery.incidents, self._core.clock.now() // _HOUR_MS
            detail = f"agent {agent} is unhealthy, as its gateway {node} says"
            self._core.submit(
                lambda tx: incidents.raise_(
                    tx, "backend_unhealthy", f"{node}/{agent}@{hour}", detail
                )
            )

    def _report_refused_hint(self, node: str, address: str) -> None:
        """Log once that a loopback address was refused, which explains a mesh on one machine."""
        if node in self._refused_hints or not is_loopback(split_host(address)):
            return
        self._refused_hints.add(node)
        log.warning(
            "the mesh does not call %s at %s, which is on this machine; if %s runs here,"
            " set room.dial_loopback = true or add %s to mesh.peers",
            *(node, address, node, address),
        )

    def _note_intro_points(self, heard: IntroPointsHeard) -> None:
        member = self._members.get(heard.node)
        if member is not None:
            now = self._core.clock.now()
            self.heard.note_points(heard.node, member.public_key, heard.points, now)

    def _note_status(self, change: PeerStatusChanged) -> None:
        self.changes.note_change()
        self.suspicions += change.state is PeerState.SUSPECT
        level = logging.INFO if change.state is PeerState.ALIVE else logging.WARNING
        log.log(level, "in the mesh, %s is %s", change.node, change.state)
        # Routing and dialling look again.
        self._replica.changes.note_change()

    def _note_election(self, change: ElectionChanged) -> None:
        self.changes.note_change()
        counter = None if change.term is None else change.term.counter
        me = self._core.node.id
        log.info("%s", describe_leader(me, change.publisher, change.state, counter))
        if change.term is not None:
            saved = change.term
            self._core.submit(lambda tx: save_term(tx, saved))

    def _now(self) -> MeshTime:
        steady_ms = int(asyncio.get_running_loop().time() * 1000)
        return MeshTime(steady_ms, self._core.clock.now() // 1000)


async def _all_healthy() -> tuple[str, ...]:
    return ()


def _send_datagrams(transport: DatagramTransport, decisions: list[MeshDecision]) -> None:
    for decision in decisions:
        if isinstance(decision, SendDatagram):
            transport.send(decision.address, decision.datagram)


def read_term(tx: Tx) -> Term | None:
    """The term that this node honoured last; None if it never did."""
    known = find_fact(tx, _TERM_FACT)
    return None if known is None else msgspec.json.decode(known, type=Term)


def save_term(tx: Tx, term: Term) -> None:
    save_fact(tx, _TERM_FACT, msgspec.json.encode(term))
