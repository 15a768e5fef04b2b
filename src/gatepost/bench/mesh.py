"""Measures the mesh: datagrams judged, the cost of an idle node, gossip, and takeovers.

Nodes are real cores with real keys, without a network, and time is virtual, except where CPU is
measured. Takeovers are also measured with real gateways; see takeovers.py.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.bench.fsync import percentile
from gatepost.bench.mailbox import BenchMachine, describe_machine
from gatepost.bench.takeovers import measure_process_takeovers
from gatepost.events import NodeKey
from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_judge import DatagramJudge
from gatepost.mesh.datagram_signature import NodeKeySigner, append_signature
from gatepost.mesh.decisions import MeshDecision, SendDatagram
from gatepost.mesh.engine import MeshEngine
from gatepost.mesh.members import MeshMember
from gatepost.mesh.mesh_node import MeshNode
from gatepost.mesh.mesh_time import MeshTime, MeshTimers
from gatepost.mesh.messages import Heartbeat, MeshMessage, MeshRole, encode_message
from gatepost.mesh.outgoing_messages import MeshIdentity
from gatepost.testing.clock import ManualClock

_EPOCH_SECS = 1_700_000_000
_ROOM = b"bench"


class MeshBenchOptions(Struct, frozen=True):
    datagrams: int = 20_000
    nodes: int = 50
    beats: int = 5
    kills: int = 100
    process_kills: int = 10


class JudgedRate(Struct, frozen=True):
    """Datagrams of one sort, judged on one core."""

    sort: str
    verdict: str
    per_sec: float


class TakeoverTimes(Struct, frozen=True):
    """From the death of a publisher until all others honour the next one.

    The unit is the takeover time of the timers: 1 is suspicion and grace.
    """

    kills: int
    p50: float
    p99: float
    worst: float

    @classmethod
    def of_measured(cls, ordered: list[float]) -> "TakeoverTimes | None":
        if not ordered:
            return None
        return cls(len(ordered), percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


class MeshBenchResult(Struct, frozen=True):
    """`idle_percent` is the share of a core that one idle node takes, with default timers."""

    machine: BenchMachine
    options: MeshBenchOptions
    judged: list[JudgedRate]
    idle_percent: float
    gossip_beats: int
    takeovers: TakeoverTimes | None
    process_takeovers: TakeoverTimes | None


class BenchNode:
    """A node of the measured mesh; its address is its name."""

    def __init__(self, number: int, timers: MeshTimers) -> None:
        self.name = f"node-{number:03}"
        self.address = f"10.0.{number // 250}.{number % 250 + 1}:7433"
        self.key = NodeKey.generate(ManualClock(seed=number))
        self.signer = NodeKeySigner(self.key, _ROOM)
        self.cookies = AddressCookies(self.name.encode())
        identity = MeshIdentity(node=self.name, priority=100, may_lead=True)
        self.engine = MeshEngine(identity, timers, self.cookies, 0)
        self.judge = DatagramJudge(self.name, self.signer, self.cookies, timers, 0)
        self.node = MeshNode(self.engine, self.judge)

    @property
    def member(self) -> MeshMember:
        return MeshMember(self.name, self.key.public, True)


class BenchMesh:
    """Nodes that hear each other at once, on virtual time."""

    def __init__(self, count: int, timers: MeshTimers) -> None:
        self.timers = timers
        self.now = 0
        self.nodes = [BenchNode(number, timers) for number in range(count)]
        self.dead: set[str] = set()
        self._by_address = {node.address: node for node in self.nodes}
        members = {node.name: node.member for node in self.nodes}
        for node in self.nodes:
            node.node.set_members(members, self.time())

    def time(self) -> MeshTime:
        return MeshTime(self.now, _EPOCH_SECS + self.now // 1000)

    def living(self) -> list[BenchNode]:
        return [node for node in self.nodes if node.name not in self.dead]

    def connect(self, nodes: Iterable[BenchNode]) -> None:
        """Tell these nodes the address of the first one, which tells the rest."""
        for node in nodes:
            if node is not self.nodes[0]:
                node.engine.bootstrap_addresses = (self.nodes[0].address,)

    def beat(self) -> None:
        self.now += self.timers.heartbeat_ms
        for node in self.living():
            self._deliver(node, node.node.tick(self.time()))

    def _deliver(self, sender: BenchNode, decisions: list[MeshDecision]) -> None:
        for decision in decisions:
            if not isinstance(decision, SendDatagram):
                continue
            target = self._by_address[decision.address]
            if target.name not in self.dead:
                answer = target.node.receive(decision.datagram, sender.address, self.time())
                self._deliver(target, answer)

    def is_complete(self) -> bool:
        wanted = len(self.living()) - 1
        return all(len(list(n.engine.peers.living_peers())) >= wanted for n in self.living())

    def leader(self) -> str | None:
        """The publisher that all living nodes honour."""
        found = {node.engine.election.publisher for node in self.living()}
        (only,) = found if len(found) == 1 else (None,)
        return None if only in self.dead else only


def bench_mesh(state_dir: Path, options: MeshBenchOptions) -> MeshBenchResult:
    """Measure; the gateways that are killed live below `state_dir`."""
    return MeshBenchResult(
        describe_machine(),
        options,
        list(measure_judging(options.datagrams)),
        measure_idle_percent(options.nodes, options.beats),
        measure_gossip(options.nodes),
        TakeoverTimes.of_measured(measure_takeovers(options.kills)),
        TakeoverTimes.of_measured(measure_process_takeovers(state_dir, options.process_kills)),
    )


# -- judging


def measure_judging(count: int) -> Iterable[JudgedRate]:
    """How many datagrams of each sort one core judges in a second."""
    for sort, make in _SORTS.items():
        ann, bob = BenchNode(0, MeshTimers()), BenchNode(1, MeshTimers())
        bob.judge.members = {ann.name: ann.member}
        datagrams = [make(ann, bob, number) for number in range(count)]
        yield _measure_sort(sort, ann, bob, datagrams)


def _measure_sort(
    sort: str, ann: BenchNode, bob: BenchNode, datagrams: list[tuple[bytes, int]]
) -> JudgedRate:
    judge, source, verdict = bob.judge, ann.address, None
    start = time.process_time()
    for datagram, steady_ms in datagrams:
        now = MeshTime(steady_ms, _EPOCH_SECS + steady_ms // 1000)
        verdict = judge.judge_datagram(datagram, source, now)
    spent = time.process_time() - start
    text = "accepted" if isinstance(verdict, MeshMessage) else str(verdict)
    return JudgedRate(sort, text, len(datagrams) / spent)


def _heartbeat(ann: BenchNode, bob: BenchNode, number: int, spacing_ms: int) -> tuple[bytes, int]:
    steady_ms = number * spacing_ms
    echo = bob.cookies.cookie_for(ann.name, ann.address)
    beat = Heartbeat(
        role=MeshRole.STANDBY, known_peers=(), intro_point_count=number % 1000, priority=100
    )
    message = MeshMessage(ann.name, beat, bob.name, "0" * 16, echo)
    text = encode_message(message, _EPOCH_SECS + steady_ms // 1000, number)
    return append_signature(text, ann.signer), steady_ms


def _accepted(ann: BenchNode, bob: BenchNode, number: int) -> tuple[bytes, int]:
    """A heartbeat every 25 ms: as fast as the rate limit permits, so each passes all checks."""
    return _heartbeat(ann, bob, number, 25)


def _flood(ann: BenchNode, bob: BenchNode, number: int) -> tuple[bytes, int]:
    """Heartbeats of a member at a hundred times the rate limit."""
    return _heartbeat(ann, bob, number % 500, 0)


def _stranger(ann: BenchNode, bob: BenchNode, number: int) -> tuple[bytes, int]:
    text = b'{"node_id":"nobody","timestamp":%d,"type":"heartbeat","payload":{}}' % _EPOCH_SECS
    return text, 0


def _garbage(ann: BenchNode, bob: BenchNode, number: int) -> tuple[bytes, int]:
    return Random(number % 100).randbytes(400), 0


def _forged(ann: BenchNode, bob: BenchNode, number: int) -> tuple[bytes, int]:
    """A datagram in the name of a member, without its key and its cookie."""
    message = MeshMessage(
        ann.name,
        Heartbeat(role=MeshRole.PUBLISHER, known_peers=(), intro_point_count=0, priority=0),
        bob.name,
    )
    text = encode_message(message, _EPOCH_SECS, number)
    return text[:-1] + b',"signature":"' + b"A" * 86 + b'=="}', 0


_SORTS: dict[str, Callable[[BenchNode, BenchNode, int], tuple[bytes, int]]] = {
    "heartbeats of a member": _accepted,
    "flood of a member": _flood,
    "forged": _forged,
    "unknown sender": _stranger,
    "no message": _garbage,
}


# -- a whole mesh


def measure_idle_percent(nodes: int, beats: int) -> float:
    """The share of a core that one node of an idle mesh takes, in percent."""
    mesh = BenchMesh(nodes, MeshTimers())
    mesh.connect(mesh.nodes)
    while not mesh.is_complete():
        mesh.beat()
    start = time.process_time()
    for _ in range(beats):
        mesh.beat()
    spent = time.process_time() - start
    return spent / (beats * mesh.timers.heartbeat_ms / 1000) / nodes * 100


def measure_gossip(nodes: int) -> int:
    """Heartbeats from a newcomer's first datagram until it and all others know each other."""
    mesh = BenchMesh(nodes, MeshTimers())
    newcomer = mesh.nodes[-1]
    mesh.dead = {newcomer.name}
    mesh.connect(mesh.nodes[:-1])
    while not mesh.is_complete():
        mesh.beat()
    mesh.dead = set()
    mesh.connect([newcomer])
    beats = 0
    while not mesh.is_complete():
        mesh.beat()
        beats += 1
    return beats


def measure_takeovers(kills: int) -> list[float]:
    """Kill the publisher again and again; shortened timers, in units of the takeover time."""
    timers = MeshTimers(heartbeat_ms=100, suspect_ms=300, grace_ms=900)
    found: list[float] = []
    random = Random(1)
    while len(found) < kills:
        mesh = BenchMesh(5, timers)
        mesh.connect(mesh.nodes)
        while mesh.leader() is None or not mesh.is_complete():
            mesh.beat()
        # The publisher dies at any moment between two heartbeats.
        mesh.dead = {str(mesh.leader())}
        died_at = mesh.now + random.randrange(timers.heartbeat_ms)
        while mesh.leader() is None:
            mesh.beat()
        found.append((mesh.now - died_at) / timers.takeover_ms)
    return sorted(found)


def render_result(result: MeshBenchResult) -> RenderableType:
    judged = Table("datagrams", "verdict", "per second on one core", box=None)
    for each in result.judged:
        judged.add_row(each.sort, each.verdict, f"{each.per_sec:,.0f}")
    whole = Table("mesh", "", box=None, show_header=False)
    nodes = result.options.nodes
    whole.add_row(f"one of {nodes} idle nodes", f"{result.idle_percent:.3f} % of a core")
    whole.add_row("all nodes know of a join", f"after {result.gossip_beats} heartbeats")
    whole.add_row("takeover on virtual time", _describe_takeovers(result.takeovers))
    whole.add_row("takeover of real gateways", _describe_takeovers(result.process_takeovers))
    return Group(judged, whole)


def _describe_takeovers(times: TakeoverTimes | None) -> str:
    if times is None:
        return "not measured"
    shares = f"p50 {times.p50:.2f}, p99 {times.p99:.2f}, worst {times.worst:.2f}"
    return f"{shares} times suspicion and grace ({times.kills} kills)"
