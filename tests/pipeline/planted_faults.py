"""Faults that can be planted in a synthetic archive, and the findings to expect of each.

Every fault has its own agents and never touches the pairs of ordinary traffic. An archive is
therefore wrong exactly where its ground truth says so. Times are ms since START; those in the
ground truth are epoch ms.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from gatepost.events import NodeKey, format_event_id
from gatepost.pipeline.synth import ArchiveTruth, SynthOptions
from gatepost.pipeline.synth.event_records import SynthEvent, make_records, new_ids
from gatepost.pipeline.synth.generator import write_archive
from gatepost.pipeline.synth.ground_truth import ExpectedMisfire
from gatepost.pipeline.synth.mesh import (
    HOUR,
    MINUTE,
    START,
    TTL,
    AbsenceWindow,
    FieldValue,
    IdWords,
    SynthCapability,
    SyntheticMesh,
    make_payload,
)
from gatepost.pipeline.synth.node_writer import ChainTampering, MarkedEvent
from gatepost.pipeline.synth.planting import PlantedTerm, Planting

_CHAIN_RULES: Final = ("chain_gap", "chain_fork", "bad_signature")
OVERSIZED_PAYLOAD: Final = 100_000
SILENCE_MS: Final = 40 * MINUTE


class ExpectedViolation(Struct, rename="camel", kw_only=True):
    """A broken promise; the ground truth adds the positions of the marked events later."""

    rule: str
    mark: int = 0
    node: str = ""
    incarnation: str | None = None
    seqs: list[int] = []
    event_ids: list[str] = []
    corr_ids: list[str] = []
    group_first: int | None = None
    group_last: int | None = None
    detail: str = ""


class ExpectedIncident(Struct, rename="camel", kw_only=True):
    """An incident that the pipeline should report."""

    cls: str = field(name="class")
    node: str
    agent: str | None = None
    capability_id: str | None = None
    window: tuple[int, int]
    count: int = 0
    corr_ids: list[str] = []
    because: str | None = None


class PlantedTruth(ArchiveTruth):
    """The ground truth, with the findings to expect of what was planted."""

    violations: list[ExpectedViolation]
    incidents: list[ExpectedIncident]


class FaultPlan(Planting):
    """Collects the planted events and the findings to expect of them.

    The methods are the vocabulary of the fault functions below.
    """

    def __init__(self, mesh: SyntheticMesh) -> None:
        super().__init__(mesh)
        self.violations: list[ExpectedViolation] = []
        self.incidents: list[ExpectedIncident] = []
        self.misfires: list[ExpectedMisfire] = []
        self.marks: dict[str, int] = {}
        self._rng = np.random.default_rng([mesh.seed, 11])
        self._pair_numbers: dict[tuple[int, int], int] = {}
        # Faults start between the two absences, and before the journal is restored.
        self.base_time = mesh.duration_ms // 5

    @property
    def tampering(self) -> ChainTampering:
        return ChainTampering(*(self.marks.get(rule, -1) for rule in _CHAIN_RULES))

    def new_id(self, at: int) -> IdWords:
        words: IdWords = new_ids(self._rng, np.array([at]))[0]
        return words

    def add_violation(self, rule: str, corr: IdWords | None = None) -> int:
        """Expect a violation of the rule; returns the mark for the events that break it."""
        mark = len(self.marks) + 1
        self.marks[rule] = mark
        corrs = [] if corr is None else [format_id(corr)]
        self.violations.append(ExpectedViolation(rule=rule, mark=mark, corr_ids=corrs))
        return mark

    def add_event(
        self, at: int, node: int, template: SynthEvent, source: int, **fields: FieldValue
    ) -> None:
        fields.setdefault("id", self.new_id(at))
        columns = {name: np.asarray(value)[None] for name, value in fields.items()}
        time = np.array([at])
        self.rows.append(make_records(time, 0, template, node=node, source=source, **columns))

    # -- ordinary steps, for one message at a time

    def send_message(
        self,
        at: int,
        source: int,
        target: int,
        template: SynthEvent = SynthEvent.MESSAGE,
        **more: FieldValue,
    ) -> IdWords:
        """Add the first event of a message or task; returns its id."""
        mesh, id = self.mesh, self.new_id(at)
        pair_number = self._pair_numbers[source, target] = (
            self._pair_numbers.get((source, target), 0) + 1
        )
        fields: dict[str, FieldValue] = {
            "id": id,
            "to_node": mesh.owner[target] + 1,
            "to_agent": target + 1,
            "corr": id,
            "pair_seq": pair_number,
            "expires": at + TTL,
            "payload": 1,
        }
        self.add_event(at, mesh.owner[source], template, source, **(fields | more))
        if template in (SynthEvent.TASK, SynthEvent.TASK_UNROUTED):
            self.totals.tasks += 1
        else:
            self.totals.messages += 1
        return id

    def add_receipt(
        self,
        at: int,
        template: SynthEvent,
        about: IdWords,
        source: int,
        target: int,
        node: int | None = None,
        **more: FieldValue,
    ) -> None:
        """Add a receipt for the sender's node, from the target's node or from `node`."""
        mesh = self.mesh
        by = mesh.owner[target] if node is None else node
        to = mesh.owner[source] + 1
        self.add_event(at, by, template, target, to_node=to, ref=about, corr=about, **more)

    def add_sender_event(
        self,
        at: int,
        template: SynthEvent,
        about: IdWords,
        source: int,
        to: int,
        **more: FieldValue,
    ) -> None:
        """Add a signal or dead letter of the sender."""
        home = self.mesh.owner[source]
        self.add_event(at, home, template, source, to_node=to, ref=about, corr=about, **more)
        self.totals.dead_letters += template in (
            SynthEvent.DEAD_EXPIRED,
            SynthEvent.DEAD_REFUSED,
            SynthEvent.DEAD_UNROUTED,
        )

    def send_processed_message(
        self, at: int, source: int, target: int, **more: FieldValue
    ) -> IdWords:
        """Add a message that is accepted and processed; returns its id."""
        id = self.send_message(at, source, target, SynthEvent.MESSAGE, **more)
        self.add_receipt(at + 30, SynthEvent.ACCEPTED, id, source, target)
        self.add_receipt(at + 300, SynthEvent.PROCESSED, id, source, target)
        return id

    def add_agents(self, name: str, source: int = 0, target: int = 1) -> tuple[int, int]:
        """Add a sender and a receiver for one fault, on two nodes."""
        mesh = self.mesh
        return mesh.add_agent(f"{name}-sender", source), mesh.add_agent(f"{name}-owner", target)

    def add_capability(self, name: str) -> tuple[int, SynthCapability]:
        """Add a capability; returns its number in a record, and the capability."""
        capability = SynthCapability(name, "1.0.0", "1.0.0", "1.0.0", "planted", 10.0)
        self.mesh.capabilities.append(capability)
        return len(self.mesh.capabilities), capability

    def add_misfire(self, cls: str, capability: SynthCapability, ids: list[IdWords]) -> None:
        self.misfires.append(
            ExpectedMisfire(
                cls=cls,
                capability_id=capability.id,
                capability_version=capability.version,
                delegation_version=capability.delegation,
                executor_version=capability.executor,
                count=len(ids),
                corr_ids=[format_id(id) for id in ids],
            )
        )

    def add_incident(
        self,
        cls: str,
        node: int,
        window: tuple[int, int],
        ids: list[IdWords] | None = None,
        agent: int | None = None,
        capability: str | None = None,
        because: str | None = None,
    ) -> None:
        self.incidents.append(
            ExpectedIncident(
                cls=cls,
                node=self.mesh.nodes[node],
                agent=None if agent is None else self.mesh.agents[agent],
                capability_id=capability,
                window=(window[0] + START, window[1] + START),
                count=len(ids or []),
                corr_ids=[format_id(id) for id in ids or []],
                because=because,
            )
        )


def format_id(id: IdWords) -> str:
    return format_event_id(id.astype(">u8").tobytes())


def add_large_payload(mesh: SyntheticMesh, size: int) -> int:
    """Add a payload of this size, even above the limit; returns its index in the pool."""
    mesh.payloads.append(make_payload(np.random.default_rng([mesh.seed, 2, size]), size))
    return len(mesh.payloads) - 1


# -- broken promises


def chain_gap(plan: FaultPlan) -> None:
    """A few events are missing that the signed heads around them cover."""
    mark, (speaker, _) = plan.add_violation("chain_gap"), plan.add_agents("gap")
    for _ in range(5):
        # All in one millisecond, so that no other event comes between them.
        plan.add_event(plan.base_time, 0, SynthEvent.NOTICE, speaker, mark=mark)


def chain_fork(plan: FaultPlan) -> None:
    """A commit group continues another chain than the one in the archive."""
    mark, (speaker, _) = plan.add_violation("chain_fork"), plan.add_agents("fork", 1)
    plan.add_event(plan.base_time + 5 * MINUTE, 1, SynthEvent.NOTICE, speaker, mark=mark)


def bad_signature(plan: FaultPlan) -> None:
    mark, (speaker, _) = plan.add_violation("bad_signature"), plan.add_agents("signature", 2)
    plan.add_event(plan.base_time + 10 * MINUTE, 2, SynthEvent.NOTICE, speaker, mark=mark)


def doubled_turn(plan: FaultPlan) -> None:
    """Two nodes are confirmed for one message, and both complete its turn."""
    at, (source, target) = plan.base_time + 2 * MINUTE, plan.add_agents("doubled")
    id = plan.send_message(at, source, target, SynthEvent.MESSAGE_OFFER)
    mark = plan.add_violation("doubled_turn", id)
    plan.add_receipt(at + 30, SynthEvent.ACCEPTED, id, source, target)
    plan.add_sender_event(at + 60, SynthEvent.CONFIRM, id, source, 2)
    plan.add_receipt(at + 400, SynthEvent.PROCESSED, id, source, target, mark=mark)
    plan.add_sender_event(at + 500, SynthEvent.WITHDRAW, id, source, 2)
    again: dict[str, FieldValue] = {"id": id, "corr": id, "to_node": 3, "to_agent": target + 1}
    again |= {"pair_seq": 1, "attempt": 2, "payload": 2, "expires": at + TTL}
    plan.add_event(at + 501, 0, SynthEvent.MESSAGE_FALLBACK, source, **again)
    plan.add_receipt(at + 530, SynthEvent.ACCEPTED, id, source, target, node=2)
    plan.add_sender_event(at + 560, SynthEvent.CONFIRM, id, source, 3)
    plan.add_receipt(at + 900, SynthEvent.PROCESSED, id, source, target, node=2, mark=mark)


def receipt_without_message(plan: FaultPlan) -> None:
    at, (source, target) = plan.base_time + 3 * MINUTE, plan.add_agents("orphan")
    id = plan.new_id(at)
    plan.add_receipt(
        at + 30,
        SynthEvent.ACCEPTED,
        id,
        source,
        target,
        mark=plan.add_violation("receipt_without_message", id),
    )


def processed_before_accepted(plan: FaultPlan) -> None:
    at, (source, target) = plan.base_time + 4 * MINUTE, plan.add_agents("hasty")
    id = plan.send_message(at, source, target)
    mark = plan.add_violation("processed_before_accepted", id)
    plan.add_receipt(at + 300, SynthEvent.PROCESSED, id, source, target, mark=mark)
    plan.add_receipt(at + 600, SynthEvent.ACCEPTED, id, source, target)


def fifo_broken(plan: FaultPlan) -> None:
    """The second of three messages of a pair is processed after the third."""
    at, (source, target) = plan.base_time + 5 * MINUTE, plan.add_agents("fifo")
    ids = [plan.send_message(at + n * 10, source, target) for n in range(3)]
    for n, id in enumerate(ids):
        plan.add_receipt(at + 100 + n, SynthEvent.ACCEPTED, id, source, target)
    mark = plan.add_violation("fifo_broken", ids[1])
    plan.violations[-1].corr_ids.append(format_id(ids[2]))
    plan.add_receipt(at + 300, SynthEvent.PROCESSED, ids[0], source, target)
    plan.add_receipt(at + 400, SynthEvent.PROCESSED, ids[2], source, target, mark=mark)
    plan.add_receipt(at + 500, SynthEvent.PROCESSED, ids[1], source, target, mark=mark)


def revoked_node(plan: FaultPlan) -> None:
    """A revoked node goes on writing. It is an additional node that writes only notices."""
    mesh = plan.mesh
    node = len(mesh.nodes)
    mesh.nodes.append("node-rogue")
    mesh.keys.append(NodeKey(np.random.default_rng([mesh.seed, 13]).bytes(32)))
    speaker, mark = mesh.add_agent("rogue", node), plan.add_violation("revoked_node")
    minutes = range(0, mesh.duration_ms, MINUTE)
    for at in minutes[:-5]:
        plan.add_event(at, node, SynthEvent.NOTICE, speaker)
    for at in minutes[-5:]:
        plan.add_event(at, node, SynthEvent.NOTICE, speaker, mark=mark)
    plan.revoked[node] = minutes[-5] - 1


def payload_over_limit(plan: FaultPlan) -> None:
    at, (source, target) = plan.base_time + 6 * MINUTE, plan.add_agents("heavy")
    payload = add_large_payload(plan.mesh, OVERSIZED_PAYLOAD) + 1
    mark = plan.add_violation("payload_over_limit")
    id = plan.send_processed_message(at, source, target, payload=payload, mark=mark)
    plan.violations[-1].corr_ids.append(format_id(id))


def two_publishers(plan: FaultPlan) -> None:
    """Two nodes claim to be the publisher of one term."""
    at, nodes = plan.base_time + 7 * MINUTE, plan.mesh.nodes
    plan.terms += [PlantedTerm(3, 0, at), PlantedTerm(3, 2, at + 1000)]
    plan.violations.append(
        ExpectedViolation(
            rule="two_publishers", node=nodes[2], detail=f"term 3: {nodes[0]}, {nodes[2]}"
        )
    )


# -- incidents


def sla_breach(plan: FaultPlan) -> None:
    """Messages are accepted at once, but processed an hour later."""
    at, owner = plan.base_time, plan.mesh.add_agent("slow-owner", 1)
    ids = []
    for n in range(3):
        source = plan.mesh.add_agent(f"slow-sender-{n}", 0)
        ids.append(plan.send_message(at + n * 1000, source, owner))
        plan.add_receipt(at + n * 1000 + 30, SynthEvent.ACCEPTED, ids[-1], source, owner)
        plan.add_receipt(at + n * 1000 + HOUR, SynthEvent.PROCESSED, ids[-1], source, owner)
    plan.add_incident("sla_breach", 1, (at, at + HOUR), ids, agent=owner)


def backlog(plan: FaultPlan) -> None:
    """For 25 minutes no mail for an agent is accepted, while more keeps coming."""
    at, (source, target) = plan.base_time, plan.add_agents("jam")
    until = at + 25 * MINUTE
    times = range(at, until, 10_000)
    ids = [plan.send_message(sent, source, target) for sent in times]
    for n, id in enumerate(ids):
        plan.add_receipt(until + n * 20, SynthEvent.ACCEPTED, id, source, target)
        plan.add_receipt(until + n * 20 + 5_000, SynthEvent.PROCESSED, id, source, target)
    plan.add_incident("backlog", 1, (at, until), ids, agent=target)


def dead_letter_burst(plan: FaultPlan) -> None:
    """Sixty dead letters within a minute."""
    at, (source, target) = plan.base_time + 8 * MINUTE, plan.add_agents("burst")
    ids = []
    for sent in range(at, at + MINUTE, 1000):
        id = plan.send_message(sent, source, target)
        ids.append(id)
        plan.add_receipt(sent + 30, SynthEvent.REFUSED, id, source, target)
        plan.add_sender_event(
            sent + 60, SynthEvent.DEAD_REFUSED, id, source, 2, number=1, other=len(ids)
        )
    plan.add_incident("dead_letter_burst", 0, (at, at + MINUTE), ids, agent=target)


def routing_miss(plan: FaultPlan) -> None:
    """Messages go to an agent that no node hosts."""
    at, (source, target) = plan.base_time + 9 * MINUTE, plan.add_agents("nobody")
    ids = []
    for n in range(3):
        id = plan.send_message(at + n * 500, source, target, SynthEvent.MESSAGE_UNROUTED, to_node=0)
        ids.append(id)
        plan.add_sender_event(
            at + n * 500 + 1, SynthEvent.DEAD_UNROUTED, id, source, 0, number=1, other=n + 1
        )
    plan.add_incident("routing_miss", 0, (at, at + 1001), ids, agent=target)


def silent_node(plan: FaultPlan) -> None:
    """A node writes nothing for 40 minutes, and mail for it waits."""
    start = plan.mesh.duration_ms * 7 // 10
    window = plan.mesh.absences[2] = AbsenceWindow(start, start + SILENCE_MS)
    plan.add_incident("silent_node", 2, (window.start + MINUTE, window.end))
    plan.add_incident("backlog", 2, (window.start, window.end), because="silent_node")


# -- misfires


def _send_accepted_task(
    plan: FaultPlan, at: int, ends: tuple[int, int], capability: int, promised: int
) -> IdWords:
    """Add a task that is accepted with an ETA; returns its id."""
    source, target = ends
    id = plan.send_message(at, source, target, SynthEvent.TASK, capability=capability)
    eta: dict[str, FieldValue] = {"number": promised, "other": at + 30 + START + promised * 1000}
    plan.add_receipt(at + 30, SynthEvent.ACCEPTED_TASK, id, source, target, None, **eta)
    return id


def _begin_task(
    plan: FaultPlan, at: int, ends: tuple[int, int], id: IdWords, eta: tuple[int, int]
) -> None:
    source, target = ends
    promised, eta_at = eta
    fields: dict[str, FieldValue] = {"to_agent": source + 1, "number": promised, "other": eta_at}
    plan.add_receipt(at, SynthEvent.TASK_ACCEPT, id, source, target, None, **fields)
    plan.add_receipt(at + 1, SynthEvent.PROCESSED, id, source, target)


def _plant_misfire(
    plan: FaultPlan,
    name: str,
    cls: str,
    end: SynthEvent,
    took: int,
    promised: int,
    begins: int = 200,
) -> list[IdWords]:
    """Add three tasks that misfire; times are in ms, except `promised`, which is in seconds."""
    at, ends = plan.base_time + 12 * MINUTE, plan.add_agents(name)
    number, capability = plan.add_capability(name)
    ids = []
    for n in range(3):
        sent = at + n * MINUTE
        id = _send_accepted_task(plan, sent, ends, number, promised)
        eta_at = sent + 30 + START + promised * 1000
        _begin_task(plan, sent + begins, ends, id, (promised, eta_at))
        plan.add_receipt(sent + begins + took, end, id, *ends, to_agent=ends[0] + 1)
        ids.append(id)
    plan.add_misfire(cls, capability, ids)
    return ids


def eta_breach(plan: FaultPlan) -> None:
    _plant_misfire(
        plan, "late", "eta_breach", SynthEvent.TASK_COMPLETE, took=5 * MINUTE, promised=60
    )


def terminal_error(plan: FaultPlan) -> None:
    _plant_misfire(
        plan, "failing", "terminal_error", SynthEvent.TASK_FAILED, took=10_000, promised=60
    )


def contract_mismatch(plan: FaultPlan) -> None:
    _plant_misfire(
        plan, "mismatched", "contract_mismatch", SynthEvent.TASK_MISMATCH, took=10_000, promised=60
    )


def task_sla_breach(plan: FaultPlan) -> None:
    """Tasks are accepted at once and keep their ETA, but their turns end an hour later."""
    ids = _plant_misfire(
        plan,
        "sluggish",
        "sla_breach",
        SynthEvent.TASK_COMPLETE,
        took=10_000,
        promised=7200,
        begins=HOUR,
    )
    at, agent = plan.base_time + 12 * MINUTE, len(plan.mesh.agents) - 1
    window = (at, at + 2 * MINUTE + HOUR)
    plan.add_incident("sla_breach", 1, window, ids, agent=agent, capability="sluggish")


def repeated_routing_miss(plan: FaultPlan) -> None:
    """Tasks name a capability that no node hosts."""
    at, (source, target) = plan.base_time + 20 * MINUTE, plan.add_agents("unhosted")
    number, capability = plan.add_capability("unhosted")
    ids = []
    for n in range(4):
        sent = at + n * MINUTE
        id = plan.send_message(
            sent, source, target, SynthEvent.TASK_UNROUTED, to_node=0, capability=number
        )
        ids.append(id)
        plan.add_sender_event(
            sent + 1, SynthEvent.DEAD_UNROUTED, id, source, 0, number=1, other=n + 1
        )
    plan.add_misfire("routing_miss", capability, ids)
    window = (at, at + 3 * MINUTE + 1)
    plan.add_incident("routing_miss", 0, window, ids, agent=target, capability="unhosted")


VIOLATIONS: Final = (
    *(chain_gap, chain_fork, bad_signature, doubled_turn, receipt_without_message),
    *(processed_before_accepted, fifo_broken, revoked_node, payload_over_limit, two_publishers),
)
INCIDENTS: Final = (sla_breach, backlog, dead_letter_burst, routing_miss, silent_node)
MISFIRES: Final = (
    *(eta_breach, terminal_error, contract_mismatch, task_sla_breach, repeated_routing_miss),
)
FAULTS: Final[dict[str, Callable[[FaultPlan], None]]] = {
    plant.__name__: plant for plant in (*VIOLATIONS, *INCIDENTS, *MISFIRES)
}


def generate_planted(root: str, options: SynthOptions, faults: Sequence[str]) -> PlantedTruth:
    """Write an archive with these faults into an empty folder."""
    planted = replace(options, plant=partial(_plant_faults, tuple(faults)))
    written = write_archive(root, planted)
    plan = written.planting
    assert isinstance(plan, FaultPlan)
    truth = asdict(written.truth)
    truth["misfires"] = [*plan.misfires, *written.truth.misfires]
    return PlantedTruth(
        **truth,
        violations=[_locate_violation(each, written.marked) for each in plan.violations],
        incidents=plan.incidents,
    )


def _plant_faults(faults: tuple[str, ...], mesh: SyntheticMesh) -> FaultPlan:
    plan = FaultPlan(mesh)
    for name, plant in FAULTS.items():
        if name in faults:
            plant(plan)
    return plan


def _locate_violation(violation: ExpectedViolation, marked: list[MarkedEvent]) -> ExpectedViolation:
    events = [event for event in marked if event.mark == violation.mark]
    if not violation.mark or not events:
        return violation
    grouped = violation.rule in _CHAIN_RULES
    return replace(
        violation,
        node=events[-1].node,
        incarnation=events[-1].incarnation,
        seqs=[event.seq for event in events],
        event_ids=[event.event_id for event in events],
        group_first=events[0].group_first if grouped else None,
        group_last=events[-1].group_last if grouped else None,
    )
