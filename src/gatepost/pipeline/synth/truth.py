"""What is true of a synthetic archive, for tests that find it out by themselves."""

from msgspec import Struct
from msgspec.structs import replace

from gatepost.archive import room_facts
from gatepost.archive.room_facts import NodeFact, RevocationFact, RoomFacts, TermFact
from gatepost.archive.store import Store
from gatepost.pipeline.synth.faults import Incident, Misfire, Planting, Violation
from gatepost.pipeline.synth.traffic import Totals, Traffic
from gatepost.pipeline.synth.world import DRAIN, START, World
from gatepost.pipeline.synth.write import Marked, Written

NAME = "truth.json"

_OF_GROUPS = ("chain_gap", "chain_fork", "bad_signature")


class Away(Struct):
    """When a node wrote nothing, though nothing is wrong with it: too short for an incident."""

    node: str
    window: tuple[int, int]


class Truth(Struct, rename="camel", kw_only=True):
    """`events` counts what the archive holds; times are epoch milliseconds."""

    seed: int
    events: int
    start: int
    end: int
    nodes: dict[str, dict[str, int]]
    totals: Totals
    away: list[Away]
    restored: str
    violations: list[Violation]
    incidents: list[Incident]
    misfires: list[Misfire]


def reckon(world: World, traffic: Traffic, planting: Planting, written: list[Written]) -> Truth:
    marked = [event for node in written for event in node.marked]
    totals = traffic.totals
    return Truth(
        seed=world.seed,
        events=sum(node.events for node in written),
        start=START,
        end=START + world.duration,
        nodes={node.node: node.kinds for node in written},
        totals=Totals(
            totals.messages + planting.messages,
            totals.replies,
            totals.tasks + planting.tasks,
            totals.dead_letters + planting.dead_letters,
        ),
        away=[_away(world)],
        restored=world.nodes[world.restored],
        violations=[_located(violation, marked) for violation in planting.violations],
        incidents=planting.incidents,
        misfires=[*planting.misfires, *_failed(world, traffic)],
    )


def write_room(store: Store, world: World, planting: Planting, written: list[Written]) -> None:
    """Every gateway's view of the room. All know the same."""
    nodes = tuple(
        NodeFact(
            id=name, public_key=key.public, tier="backbone", added_by=world.nodes[0], added_at=START
        )
        for name, key in zip(world.nodes, world.keys, strict=True)
    )
    terms = tuple(
        TermFact(counter=term.counter, node=world.nodes[term.node], at=START + term.at)
        for term in planting.terms
    )
    facts = RoomFacts(
        node="",
        at=START + world.duration,
        nodes=nodes,
        revocations=tuple(_revocations(world, planting, written)),
        terms=terms,
    )
    for name, key in zip(world.nodes, world.keys, strict=True):
        room_facts.write(store, room_facts.sign(replace(facts, node=name), key))


def _revocations(world: World, planting: Planting, written: list[Written]) -> list[RevocationFact]:
    marked = [event for node in written for event in node.marked]
    return [
        RevocationFact(
            node=world.nodes[node],
            public_key=world.keys[node].public,
            by=world.nodes[0],
            at=START + at,
            last_seq=min(e.seq for e in marked if e.node == world.nodes[node]) - 1,
        )
        for node, at in planting.revoked.items()
    ]


def _away(world: World) -> Away:
    node, window = next(iter(world.away.items()))
    return Away(world.nodes[node], (START + window.start + DRAIN, START + window.end))


def _located(violation: Violation, marked: list[Marked]) -> Violation:
    events = [event for event in marked if event.mark == violation.mark]
    if not violation.mark or not events:
        return violation
    grouped = violation.rule in _OF_GROUPS
    return replace(
        violation,
        node=events[-1].node,
        incarnation=events[-1].incarnation,
        seqs=[event.seq for event in events],
        event_ids=[event.event_id for event in events],
        group_first=events[0].group_first if grouped else None,
        group_last=events[-1].group_last if grouped else None,
    )


def _failed(world: World, traffic: Traffic) -> list[Misfire]:
    """Tasks that failed in ordinary traffic, which tasks do."""
    return [
        Misfire(
            cls="terminal_error",
            capability_id=it.id,
            capability_version=it.version,
            delegation_version=it.delegation,
            executor_version=it.executor,
            count=int(count),
        )
        for it, count in zip(world.capabilities, traffic.failed_tasks, strict=False)
        if count
    ]
