"""The ground truth of a synthetic archive, for tests to compare their findings with."""

from msgspec import Struct, field
from msgspec.structs import replace

from gatepost.archive import room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.room_facts import (
    HeadFact,
    NodeFact,
    RevocationFact,
    RoomFacts,
    TermFact,
)
from gatepost.pipeline.synth.mesh import DRAIN, HOUR, START, SyntheticMesh
from gatepost.pipeline.synth.node_writer import WrittenNode
from gatepost.pipeline.synth.ordinary_traffic import OrdinaryTraffic, TrafficTotals
from gatepost.pipeline.synth.planting import Planting

TRUTH_FILE = "truth.json"


class ExpectedMisfire(Struct, rename="camel", kw_only=True):
    """Tasks of one capability and one pair of skill versions that went wrong in the same way."""

    cls: str = field(name="class")
    capability_id: str
    capability_version: str
    delegation_version: str
    executor_version: str
    count: int
    corr_ids: list[str] = []


class NodeAbsence(Struct):
    """A time in which a node wrote nothing, too short for an incident."""

    node: str
    window: tuple[int, int]


class ArchiveTruth(Struct, rename="camel", kw_only=True):
    """The ground truth. `events` counts the events in the archive; times are epoch milliseconds."""

    seed: int
    events: int
    start: int
    end: int
    nodes: dict[str, dict[str, int]]
    totals: TrafficTotals
    away: list[NodeAbsence]
    restored: str
    misfires: list[ExpectedMisfire]


def collect_truth(
    mesh: SyntheticMesh, traffic: OrdinaryTraffic, plan: Planting, written: list[WrittenNode]
) -> ArchiveTruth:
    totals = traffic.totals
    return ArchiveTruth(
        seed=mesh.seed,
        events=sum(node.events for node in written),
        start=START,
        end=START + mesh.duration_ms,
        nodes={node.node: node.kinds for node in written},
        totals=TrafficTotals(
            totals.messages + plan.totals.messages,
            totals.replies,
            totals.tasks + plan.totals.tasks,
            totals.dead_letters + plan.totals.dead_letters,
        ),
        away=[_first_absence(mesh)],
        restored=mesh.nodes[mesh.restored_node],
        misfires=_ordinary_misfires(mesh, traffic),
    )


def write_room_facts(
    store: ArchiveStore, mesh: SyntheticMesh, plan: Planting, written: list[WrittenNode]
) -> None:
    """Write the room facts of every gateway. All of them agree, and have read all outboxes."""
    nodes = tuple(
        NodeFact(
            id=name, public_key=key.public, tier="backbone", added_by=mesh.nodes[0], added_at=START
        )
        for name, key in zip(mesh.nodes, mesh.keys, strict=True)
    )
    terms = tuple(
        TermFact(counter=term.counter, node=mesh.nodes[term.node], at=START + term.at)
        for term in plan.terms
    )
    heads = [
        HeadFact(
            node=node.node,
            incarnation=node.incarnation,
            seq=node.last_seq,
            at=node.last_at,
            chain=node.chain,
        )
        for node in written
        if node.last_seq
    ]
    facts = RoomFacts(
        node="",
        at=START + mesh.duration_ms + HOUR,
        nodes=nodes,
        revocations=tuple(_revocation_facts(mesh, plan, written)),
        terms=terms,
    )
    for name, key in zip(mesh.nodes, mesh.keys, strict=True):
        others = tuple(head for head in heads if head.node != name)
        own = replace(facts, node=name, heads=others)
        room_facts.write_facts(store, room_facts.sign_facts(own, key))


def _revocation_facts(
    mesh: SyntheticMesh, plan: Planting, written: list[WrittenNode]
) -> list[RevocationFact]:
    marked = [event for node in written for event in node.marked]
    return [
        RevocationFact(
            node=mesh.nodes[node],
            public_key=mesh.keys[node].public,
            by=mesh.nodes[0],
            at=START + at,
            last_seq=min(e.seq for e in marked if e.node == mesh.nodes[node]) - 1,
        )
        for node, at in plan.revoked.items()
    ]


def _first_absence(mesh: SyntheticMesh) -> NodeAbsence:
    node, window = next(iter(mesh.absences.items()))
    return NodeAbsence(mesh.nodes[node], (START + window.start + DRAIN, START + window.end))


def _ordinary_misfires(mesh: SyntheticMesh, traffic: OrdinaryTraffic) -> list[ExpectedMisfire]:
    """The misfires of ordinary traffic: a few tasks fail there too."""
    return [
        ExpectedMisfire(
            cls="terminal_error",
            capability_id=it.id,
            capability_version=it.version,
            delegation_version=it.delegation,
            executor_version=it.executor,
            count=int(count),
        )
        for it, count in zip(mesh.capabilities, traffic.failed_tasks, strict=False)
        if count
    ]
