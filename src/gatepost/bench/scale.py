"""Measures what one large room costs each of its gateways, with real room and mesh code.

Gateways are their keys and records, and agents are shared out evenly. A newcomer takes over the
room in a process of its own. Datagrams are exchanged for real up to a number of gateways; beyond
it, the cost of the mesh is computed, because every node sends to every other.
"""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from random import Random

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.table import Table

from gatepost.bench.mailbox import BenchMachine, describe_machine
from gatepost.bench.mesh import measure_idle_percent
from gatepost.bench.process_memory import resident_bytes
from gatepost.events import NodeKey
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.room import (
    AgentRecord,
    Genesis,
    NodeRecord,
    RecordAuthor,
    SharedRoom,
    SignedRecord,
    append_admission,
    claim_key,
    found_room,
    sign_admission,
)
from gatepost.room.record_drafter import HEARTBEAT_INTERVAL_MS
from gatepost.room.service.own_records import agent_heartbeat_ms
from gatepost.room.signed_record import sign_record
from gatepost.routing import build_directory

_NOW = 1_700_000_000_000
_FOUNDER = "gateway-0"
_HEARTBEATS = 200
_MESH_BEATS = 3


class ScaleOptions(Struct, frozen=True):
    """`mesh_nodes` is the largest mesh whose datagrams are exchanged."""

    gateways: tuple[int, ...] = (10, 100, 1000)
    agents: int = 100_000
    mesh_nodes: int = 100


class Joined(Struct, frozen=True):
    """What the room costs a newcomer, and then each gateway for each record that changes."""

    secs: float
    memory_bytes: int
    record_us: float
    directory_ms: float


class ScaleRow(Struct, frozen=True):
    """`*_percent` is a share of one core, of each gateway, while nothing happens in the room."""

    gateways: int
    agents: int
    room_bytes: int
    joined: Joined
    records_per_sec: float
    room_percent: float
    datagrams_per_sec: float
    mesh_percent: float
    is_mesh_computed: bool


class ScaleResult(Struct, frozen=True):
    machine: BenchMachine
    options: ScaleOptions
    rows: list[ScaleRow]


class RoomOfGateways(Struct, frozen=True):
    """A room as its updates, and the updates that bring the next heartbeat of some gateways."""

    genesis: Genesis
    founder: SignedRecord
    updates: list[bytes]
    heartbeats: list[bytes]


def bench_scale(options: ScaleOptions) -> ScaleResult:
    return ScaleResult(
        describe_machine(), options, [_measure_room(options, each) for each in options.gateways]
    )


def _measure_room(options: ScaleOptions, gateways: int) -> ScaleRow:
    agents = options.agents // gateways * gateways
    # Fresh processes: memory that one step has freed would hide what the next one needs.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as child:
        room = child.submit(build_room, gateways, agents).result()
        joined = child.submit(join_room, room).result()
    rate = records_per_second(gateways, agents)
    meshed = min(gateways, options.mesh_nodes)
    per_peer = measure_idle_percent(meshed, _MESH_BEATS) / (meshed - 1)
    return ScaleRow(
        gateways,
        agents,
        sum(map(len, room.updates)),
        joined,
        rate,
        rate * joined.record_us / 1e6 * 100,
        (gateways - 1) / (MeshTimers().heartbeat_ms / 1000),
        per_peer * (gateways - 1),
        meshed < gateways,
    )


def records_per_second(gateways: int, agents: int) -> float:
    """Records that change in an idle room whose agents are all served: its heartbeats."""
    hosted = agents // gateways
    own = 1000 / HEARTBEAT_INTERVAL_MS
    return gateways * (own + hosted * 1000 / agent_heartbeat_ms(hosted, agents))


def build_room(gateways: int, agents: int) -> RoomOfGateways:
    """A room with so many gateways, each of which hosts its share of the agents."""
    genesis, chain = found_room(_key(_FOUNDER), _FOUNDER, _NOW)
    founder = RecordAuthor(_key(_FOUNDER), chain)
    members = [founder, *(_admit(genesis, founder, n) for n in range(1, gateways))]
    nodes = [sign_record(each, "nodes", each.node, 1, _NOW, _node(each)) for each in members]
    hosted = agents // gateways
    claims = [_claim(each, f"agent-{each.node}-{n}") for each in members for n in range(hosted)]
    later = _NOW + HEARTBEAT_INTERVAL_MS
    heartbeats = [
        sign_record(
            each, "nodes", each.node, 2, later, replace(_node(each), last_heartbeat_at=later)
        )
        for each in members[:_HEARTBEATS]
    ]
    room = SharedRoom(genesis, records=[*nodes, *claims])
    encode = room.document.encode_updates
    return RoomOfGateways(
        genesis,
        nodes[0],
        list(room.missing_updates(b"\x00")),
        [update for each in heartbeats for update in encode([each])],
    )


def join_room(of: RoomOfGateways) -> Joined:
    """Take the room over as a newcomer does, then hear the heartbeats of its gateways."""
    before, began = resident_bytes(), time.process_time()
    room = SharedRoom(of.genesis, records=[of.founder])
    for update in of.updates:
        room.apply_update(update)
    count = len(room.effective.agents)
    secs, memory = time.process_time() - began, resident_bytes() - before
    began = time.process_time()
    for update in of.heartbeats:
        room.apply_update(update)
        assert len(room.effective.agents) == count
    record_secs = (time.process_time() - began) / len(of.heartbeats)
    began = time.process_time()
    build_directory(room.effective, lambda id: True)
    return Joined(secs, memory, record_secs * 1e6, (time.process_time() - began) * 1e3)


def _admit(genesis: Genesis, founder: RecordAuthor, number: int) -> RecordAuthor:
    name = f"gateway-{number}"
    link = sign_admission(founder.key, founder.node, name, _key(name).public, "edge", _NOW)
    return RecordAuthor(_key(name), append_admission(genesis, founder.chain, link))


def _key(node: str) -> NodeKey:
    return NodeKey(Random(node).randbytes(32))


def _node(who: RecordAuthor) -> NodeRecord:
    link = who.chain[-1]
    return NodeRecord(
        tier=link.tier,
        endpoint_ws=f"ws://{who.node}:8700",
        status="online",
        last_heartbeat_at=_NOW,
        protocol_version="1.0",
        added_by=_FOUNDER,
        added_at=link.issued_at,
    )


def _claim(who: RecordAuthor, agent: str) -> SignedRecord:
    data = AgentRecord(gateway=who.node, type="internal", role="worker", last_seen_at=_NOW)
    return sign_record(who, "agents", claim_key(agent, who.node), 1, _NOW, data)


def render_scale(result: ScaleResult) -> RenderableType:
    """The result as a table with notes."""
    table = Table(title="One room, and what it costs each gateway")
    table.add_column("")
    for row in result.rows:
        table.add_column(f"{row.gateways:,} gateways", justify="right")
    for name, show in _LINES.items():
        table.add_row(name, *(show(row) for row in result.rows))
    about = result.machine
    return Group(
        table,
        "Percentages are of one core, while nothing happens in the room. * computed from the"
        f" datagrams of {result.options.mesh_nodes:,} nodes: each node sends to every other.",
        f"Machine: {about.cores} cores, Python {about.python}, {about.system}",
    )


_LINES: dict[str, Callable[[ScaleRow], str]] = {
    "agents": lambda row: f"{row.agents:,}",
    "the room, in MB": lambda row: f"{row.room_bytes / 1e6:,.1f}",
    "CPU to take it over, in s": lambda row: f"{row.joined.secs:,.2f}",
    "its memory, in MB": lambda row: f"{row.joined.memory_bytes / 1e6:,.0f}",
    "CPU for a changed record, in µs": lambda row: f"{row.joined.record_us:,.0f}",
    "changed records a second": lambda row: f"{row.records_per_sec:,.1f}",
    "CPU for changed records": lambda row: f"{row.room_percent:,.2f} %",
    "CPU to build the directory, in ms": lambda row: f"{row.joined.directory_ms:,.1f}",
    "datagrams sent a second": lambda row: f"{row.datagrams_per_sec:,.1f}",
    "CPU for datagrams": lambda row: f"{row.mesh_percent:,.3f} %" + "*" * row.is_mesh_computed,
}
