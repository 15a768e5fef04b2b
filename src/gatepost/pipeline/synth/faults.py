"""What can be planted in a synthetic archive, each with its own agents, and the truth about it.

A planted thing never touches the pairs of ordinary traffic, so what is wrong is exactly what the
truth names. Times are ms since START until the truth is written.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct, field

from gatepost.events import NodeKey, format_event_id
from gatepost.pipeline.synth.records import Records, T, new_ids, records
from gatepost.pipeline.synth.world import (
    HOUR,
    MINUTE,
    START,
    TTL,
    Capability,
    Value,
    Window,
    Words,
    World,
    large_payload,
)

OVERSIZED: Final = 100_000
SILENCE: Final = 40 * MINUTE


class Violation(Struct, rename="camel", kw_only=True):
    """A broken promise; the writer adds where the marked events came to lie."""

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


class Incident(Struct, rename="camel", kw_only=True):
    """Something a person should look at."""

    cls: str = field(name="class")
    node: str
    agent: str | None = None
    capability_id: str | None = None
    window: tuple[int, int]
    count: int = 0
    corr_ids: list[str] = []
    because: str | None = None


class Misfire(Struct, rename="camel", kw_only=True):
    """Tasks of one capability and one pair of skill versions that went wrong the same way."""

    cls: str = field(name="class")
    capability_id: str
    capability_version: str
    delegation_version: str
    executor_version: str
    count: int
    corr_ids: list[str] = []


class Term(Struct):
    counter: int
    node: int
    at: int


class Planting:
    """The planted events, what they mean, and the short words in which they are written down."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[Violation] = []
        self.incidents: list[Incident] = []
        self.misfires: list[Misfire] = []
        self.revoked: dict[int, int] = {}
        self.terms: list[Term] = [Term(1, 0, 0), Term(2, 1, world.duration // 3)]
        self.marks: dict[str, int] = {}
        self.messages = self.tasks = self.dead_letters = 0
        self._rng = np.random.default_rng([world.seed, 11])
        self._rows: list[Records] = []
        self._pairs: dict[tuple[int, int], int] = {}
        # Between the two absences, and before the restored journal.
        self.start = world.duration // 5

    def rows(self) -> Records:
        return np.concatenate(self._rows) if self._rows else records(np.zeros(0, np.int64), 0, 0)

    def id(self, at: int) -> Words:
        words: Words = new_ids(self._rng, np.array([at]))[0]
        return words

    def violation(self, rule: str, corr: Words | None = None) -> int:
        """A mark for the events that break the rule."""
        mark = len(self.marks) + 1
        self.marks[rule] = mark
        corrs = [] if corr is None else [text(corr)]
        self.violations.append(Violation(rule=rule, mark=mark, corr_ids=corrs))
        return mark

    def event(self, at: int, node: int, template: T, source: int, **fields: Value) -> None:
        fields.setdefault("id", self.id(at))
        columns = {name: np.asarray(value)[None] for name, value in fields.items()}
        time = np.array([at])
        self._rows.append(records(time, 0, template, node=node, source=source, **columns))

    # -- the usual steps, for one message at a time

    def send(
        self,
        at: int,
        source: int,
        target: int,
        template: T = T.MESSAGE,
        **more: Value,
    ) -> Words:
        """The first event of a message or task; returns its id."""
        world, id = self.world, self.id(at)
        number = self._pairs[source, target] = self._pairs.get((source, target), 0) + 1
        fields: dict[str, Value] = {
            "id": id,
            "to_node": world.owner[target] + 1,
            "to_agent": target + 1,
            "corr": id,
            "pair_seq": number,
            "expires": at + TTL,
            "payload": 1,
        }
        self.event(at, world.owner[source], template, source, **(fields | more))
        if template in (T.TASK, T.TASK_UNROUTED):
            self.tasks += 1
        else:
            self.messages += 1
        return id

    def ack(
        self,
        at: int,
        template: T,
        about: Words,
        source: int,
        target: int,
        node: int | None = None,
        **more: Value,
    ) -> None:
        """A receipt of the target's node, or another one, for the sender's."""
        world = self.world
        by = world.owner[target] if node is None else node
        to = world.owner[source] + 1
        self.event(at, by, template, target, to_node=to, ref=about, corr=about, **more)

    def tell(self, at: int, template: T, about: Words, source: int, to: int, **more: Value) -> None:
        """A signal or dead letter of the sender."""
        home = self.world.owner[source]
        self.event(at, home, template, source, to_node=to, ref=about, corr=about, **more)
        self.dead_letters += template in (T.DEAD_EXPIRED, T.DEAD_REFUSED, T.DEAD_UNROUTED)

    def whole(self, at: int, source: int, target: int, **more: Value) -> Words:
        """A message that is accepted and processed as it should be."""
        id = self.send(at, source, target, T.MESSAGE, **more)
        self.ack(at + 30, T.ACCEPTED, id, source, target)
        self.ack(at + 300, T.PROCESSED, id, source, target)
        return id

    def ends(self, name: str, source: int = 0, target: int = 1) -> tuple[int, int]:
        """Two agents for one story: one on each of two nodes."""
        world = self.world
        return world.agent(f"{name}-sender", source), world.agent(f"{name}-owner", target)

    def capability(self, name: str) -> tuple[int, Capability]:
        capability = Capability(name, "1.0.0", "1.0.0", "1.0.0", "planted", 10.0)
        self.world.capabilities.append(capability)
        return len(self.world.capabilities), capability

    def misfire(self, cls: str, it: Capability, ids: list[Words]) -> None:
        self.misfires.append(
            Misfire(
                cls=cls,
                capability_id=it.id,
                capability_version=it.version,
                delegation_version=it.delegation,
                executor_version=it.executor,
                count=len(ids),
                corr_ids=[text(id) for id in ids],
            )
        )

    def incident(
        self,
        cls: str,
        node: int,
        window: tuple[int, int],
        ids: list[Words] | None = None,
        agent: int | None = None,
        capability: str | None = None,
        because: str | None = None,
    ) -> None:
        self.incidents.append(
            Incident(
                cls=cls,
                node=self.world.nodes[node],
                agent=None if agent is None else self.world.agents[agent],
                capability_id=capability,
                window=(window[0] + START, window[1] + START),
                count=len(ids or []),
                corr_ids=[text(id) for id in ids or []],
                because=because,
            )
        )


def text(id: Words) -> str:
    return format_event_id(id.astype(">u8").tobytes())


# -- broken promises


def chain_gap(p: Planting) -> None:
    """A few events, signed for by the heads around them, are not there."""
    mark, (speaker, _) = p.violation("chain_gap"), p.ends("gap")
    for _ in range(5):
        # All in one millisecond, so that nothing comes between them.
        p.event(p.start, 0, T.NOTICE, speaker, mark=mark)


def chain_fork(p: Planting) -> None:
    """A commit group continues another past than the one that is there."""
    mark, (speaker, _) = p.violation("chain_fork"), p.ends("fork", 1)
    p.event(p.start + 5 * MINUTE, 1, T.NOTICE, speaker, mark=mark)


def bad_signature(p: Planting) -> None:
    mark, (speaker, _) = p.violation("bad_signature"), p.ends("signature", 2)
    p.event(p.start + 10 * MINUTE, 2, T.NOTICE, speaker, mark=mark)


def doubled_turn(p: Planting) -> None:
    """Two nodes are confirmed for one message, and both complete its turn."""
    at, (source, target) = p.start + 2 * MINUTE, p.ends("doubled")
    id = p.send(at, source, target, T.MESSAGE_OFFER)
    mark = p.violation("doubled_turn", id)
    p.ack(at + 30, T.ACCEPTED, id, source, target)
    p.tell(at + 60, T.CONFIRM, id, source, 2)
    p.ack(at + 400, T.PROCESSED, id, source, target, mark=mark)
    p.tell(at + 500, T.WITHDRAW, id, source, 2)
    again: dict[str, Value] = {"id": id, "corr": id, "to_node": 3, "to_agent": target + 1}
    again |= {"pair_seq": 1, "attempt": 2, "payload": 2, "expires": at + TTL}
    p.event(at + 501, 0, T.MESSAGE_FALLBACK, source, **again)
    p.ack(at + 530, T.ACCEPTED, id, source, target, node=2)
    p.tell(at + 560, T.CONFIRM, id, source, 3)
    p.ack(at + 900, T.PROCESSED, id, source, target, node=2, mark=mark)


def receipt_without_message(p: Planting) -> None:
    at, (source, target) = p.start + 3 * MINUTE, p.ends("orphan")
    id = p.id(at)
    p.ack(at + 30, T.ACCEPTED, id, source, target, mark=p.violation("receipt_without_message", id))


def processed_before_accepted(p: Planting) -> None:
    at, (source, target) = p.start + 4 * MINUTE, p.ends("hasty")
    id = p.send(at, source, target)
    mark = p.violation("processed_before_accepted", id)
    p.ack(at + 300, T.PROCESSED, id, source, target, mark=mark)
    p.ack(at + 600, T.ACCEPTED, id, source, target)


def fifo_broken(p: Planting) -> None:
    """The second of three messages of a pair is processed after the third."""
    at, (source, target) = p.start + 5 * MINUTE, p.ends("fifo")
    ids = [p.send(at + n * 10, source, target) for n in range(3)]
    for n, id in enumerate(ids):
        p.ack(at + 100 + n, T.ACCEPTED, id, source, target)
    mark = p.violation("fifo_broken", ids[1])
    p.violations[-1].corr_ids.append(text(ids[2]))
    p.ack(at + 300, T.PROCESSED, ids[0], source, target)
    p.ack(at + 400, T.PROCESSED, ids[2], source, target, mark=mark)
    p.ack(at + 500, T.PROCESSED, ids[1], source, target, mark=mark)


def revoked_node(p: Planting) -> None:
    """A node that was shut out goes on writing. It is one of its own, and says little else."""
    world = p.world
    node = len(world.nodes)
    world.nodes.append("node-rogue")
    world.keys.append(NodeKey(np.random.default_rng([world.seed, 13]).bytes(32)))
    speaker, mark = world.agent("rogue", node), p.violation("revoked_node")
    minutes = range(0, world.duration, MINUTE)
    for at in minutes[:-5]:
        p.event(at, node, T.NOTICE, speaker)
    for at in minutes[-5:]:
        p.event(at, node, T.NOTICE, speaker, mark=mark)
    p.revoked[node] = minutes[-5] - 1


def payload_over_limit(p: Planting) -> None:
    at, (source, target) = p.start + 6 * MINUTE, p.ends("heavy")
    payload = large_payload(p.world, OVERSIZED) + 1
    mark = p.violation("payload_over_limit")
    id = p.whole(at, source, target, payload=payload, mark=mark)
    p.violations[-1].corr_ids.append(text(id))


def two_publishers(p: Planting) -> None:
    """Two nodes claim to be the publisher of one term."""
    at, nodes = p.start + 7 * MINUTE, p.world.nodes
    p.terms += [Term(3, 0, at), Term(3, 2, at + 1000)]
    p.violations.append(
        Violation(rule="two_publishers", node=nodes[2], detail=f"term 3: {nodes[0]}, {nodes[2]}")
    )


# -- incidents


def sla_breach(p: Planting) -> None:
    """Accepted at once, and processed an hour later."""
    at, owner = p.start, p.world.agent("slow-owner", 1)
    ids = []
    for n in range(3):
        source = p.world.agent(f"slow-sender-{n}", 0)
        ids.append(p.send(at + n * 1000, source, owner))
        p.ack(at + n * 1000 + 30, T.ACCEPTED, ids[-1], source, owner)
        p.ack(at + n * 1000 + HOUR, T.PROCESSED, ids[-1], source, owner)
    p.incident("sla_breach", 1, (at, at + HOUR), ids, agent=owner)


def backlog(p: Planting) -> None:
    """For 25 minutes nothing of an agent's mail is accepted, and more keeps coming."""
    at, (source, target) = p.start, p.ends("jam")
    until = at + 25 * MINUTE
    times = range(at, until, 10_000)
    ids = [p.send(sent, source, target) for sent in times]
    for n, id in enumerate(ids):
        p.ack(until + n * 20, T.ACCEPTED, id, source, target)
        p.ack(until + n * 20 + 5_000, T.PROCESSED, id, source, target)
    p.incident("backlog", 1, (at, until), ids, agent=target)


def dead_letter_burst(p: Planting) -> None:
    """Sixty dead letters within a minute."""
    at, (source, target) = p.start + 8 * MINUTE, p.ends("burst")
    ids = []
    for sent in range(at, at + MINUTE, 1000):
        id = p.send(sent, source, target)
        ids.append(id)
        p.ack(sent + 30, T.REFUSED, id, source, target)
        p.tell(sent + 60, T.DEAD_REFUSED, id, source, 2, number=1, other=len(ids))
    p.incident("dead_letter_burst", 0, (at, at + MINUTE), ids, agent=target)


def routing_miss(p: Planting) -> None:
    """Messages to an agent that nobody hosts."""
    at, (source, target) = p.start + 9 * MINUTE, p.ends("nobody")
    ids = []
    for n in range(3):
        id = p.send(at + n * 500, source, target, T.MESSAGE_UNROUTED, to_node=0)
        ids.append(id)
        p.tell(at + n * 500 + 1, T.DEAD_UNROUTED, id, source, 0, number=1, other=n + 1)
    p.incident("routing_miss", 0, (at, at + 1001), ids, agent=target)


def silent_node(p: Planting) -> None:
    """A node says nothing for 40 minutes, and mail for it waits."""
    start = p.world.duration * 7 // 10
    window = p.world.away[2] = Window(start, start + SILENCE)
    p.incident("silent_node", 2, (window.start + MINUTE, window.end))
    p.incident("backlog", 2, (window.start, window.end), because="silent_node")


# -- misfires


def _task(p: Planting, at: int, ends: tuple[int, int], capability: int, promised: int) -> Words:
    """A task that was accepted with a promise."""
    source, target = ends
    id = p.send(at, source, target, T.TASK, capability=capability)
    eta: dict[str, Value] = {"number": promised, "other": at + 30 + START + promised * 1000}
    p.ack(at + 30, T.ACCEPTED_TASK, id, source, target, None, **eta)
    return id


def _begin(p: Planting, at: int, ends: tuple[int, int], id: Words, eta: tuple[int, int]) -> None:
    source, target = ends
    promised, eta_at = eta
    said: dict[str, Value] = {"to_agent": source + 1, "number": promised, "other": eta_at}
    p.ack(at, T.TASK_ACCEPT, id, source, target, None, **said)
    p.ack(at + 1, T.PROCESSED, id, source, target)


def _misfire(
    p: Planting, name: str, cls: str, end: T, took: int, promised: int, begins: int = 200
) -> list[Words]:
    at, ends = p.start + 12 * MINUTE, p.ends(name)
    place, capability = p.capability(name)
    ids = []
    for n in range(3):
        sent = at + n * MINUTE
        id = _task(p, sent, ends, place, promised)
        eta_at = sent + 30 + START + promised * 1000
        _begin(p, sent + begins, ends, id, (promised, eta_at))
        p.ack(sent + begins + took, end, id, *ends, to_agent=ends[0] + 1)
        ids.append(id)
    p.misfire(cls, capability, ids)
    return ids


def eta_breach(p: Planting) -> None:
    _misfire(p, "late", "eta_breach", T.TASK_COMPLETE, took=5 * MINUTE, promised=60)


def terminal_error(p: Planting) -> None:
    _misfire(p, "failing", "terminal_error", T.TASK_FAILED, took=10_000, promised=60)


def contract_mismatch(p: Planting) -> None:
    _misfire(p, "mismatched", "contract_mismatch", T.TASK_MISMATCH, took=10_000, promised=60)


def task_sla_breach(p: Planting) -> None:
    """Accepted at once, with a promise that is kept; but the turn itself took an hour to end."""
    ids = _misfire(
        p, "sluggish", "sla_breach", T.TASK_COMPLETE, took=10_000, promised=7200, begins=HOUR
    )
    at, agent = p.start + 12 * MINUTE, len(p.world.agents) - 1
    window = (at, at + 2 * MINUTE + HOUR)
    p.incident("sla_breach", 1, window, ids, agent=agent, capability="sluggish")


def repeated_routing_miss(p: Planting) -> None:
    """Tasks for a capability that is published and hosted nowhere."""
    at, (source, target) = p.start + 20 * MINUTE, p.ends("unhosted")
    place, capability = p.capability("unhosted")
    ids = []
    for n in range(4):
        sent = at + n * MINUTE
        id = p.send(sent, source, target, T.TASK_UNROUTED, to_node=0, capability=place)
        ids.append(id)
        p.tell(sent + 1, T.DEAD_UNROUTED, id, source, 0, number=1, other=n + 1)
    p.misfire("routing_miss", capability, ids)
    window = (at, at + 3 * MINUTE + 1)
    p.incident("routing_miss", 0, window, ids, agent=target, capability="unhosted")


VIOLATIONS: Final = (
    *(chain_gap, chain_fork, bad_signature, doubled_turn, receipt_without_message),
    *(processed_before_accepted, fifo_broken, revoked_node, payload_over_limit, two_publishers),
)
INCIDENTS: Final = (sla_breach, backlog, dead_letter_burst, routing_miss, silent_node)
MISFIRES: Final = (
    *(eta_breach, terminal_error, contract_mismatch, task_sla_breach, repeated_routing_miss),
)
FAULTS: Final[dict[str, Callable[[Planting], None]]] = {
    plant.__name__: plant for plant in (*VIOLATIONS, *INCIDENTS, *MISFIRES)
}
