"""The ledger of the whole room: this gateway's own, and what the others tell over their links.

A gateway is asked only while somebody looks, at most twice a second, and with a deadline. Counts
travel between two gateways, signed where a relay passes them on; the room never has them. A gateway
that cannot be asked keeps the counts it told last, with their age, and is named as unknown.
"""

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from gatepost.core.gateway_core import Core
from gatepost.delivery.frames import TraceAnswer
from gatepost.errors import GatepostError
from gatepost.gateway.admin.feedback import Feedback
from gatepost.gateway.admin.trace_api import ask_through
from gatepost.ledger import Ledger, Term, add_ledgers, ledger_of_counts
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.room.service.room_replica import RoomReplica
from gatepost.wire.overview_views import BrokenPromise, NodeLedger, RoomLedger
from gatepost.wire.report_views import IncidentView

_FRESH_SECS = 0.5
_DEADLINE_SECS = 1.5
# Gateways that are asked at the same time.
_MAX_ASKED = 16
# Relays pass on few requests of each gateway at a time, and traces need them too.
_RELAYED_FRESH_SECS = 5.0
VIOLATION_CLASS = "audit_violation"
_MAX_BROKEN = 100
_NO_COUNTS = "it did not count its messages; its version may be older"
_SUM_PROMISE = "Each message that was sent is in exactly one term."
# The term that is wrong if a promise is broken, for those of which it is another than `processed`.
_TERMS_OF_PROMISES: dict[str, Term] = {
    "missing_archive": "waiting",
    "missing_events": "waiting",
    "chain_gap": "waiting",
    "processed_before_accepted": "in_motion",
}


class _KnownLedger(Struct):
    """What a gateway told last, and when it was asked, by the event loop's clock."""

    ledger: Ledger | None = None
    at: int | None = None
    problem: str = "it was not asked yet"
    asked_at: float = -1e9
    is_relayed: bool = False
    asking: "asyncio.Task[None] | None" = None


class RoomLedgers:
    def __init__(
        self, core: Core, replica: RoomReplica, links: ConnectionLinks, feedback: Feedback
    ) -> None:
        self._core = core
        self._replica = replica
        self._links = links
        self._feedback = feedback
        self._known: dict[str, _KnownLedger] = {}
        self._turns = asyncio.Semaphore(_MAX_ASKED)

    async def show(self) -> RoomLedger:
        """The ledger now. Waits for gateways that can be asked, for a moment."""
        others = self._other_members()
        await self.ask(others)
        own = await self._core.ledger.count()
        nodes = [_describe(self._core.node.id, own.ledger, own.at, "")]
        nodes += [
            _describe(node, known.ledger, known.at, known.problem)
            for node, known in self._known.items()
        ]
        nodes.sort(key=lambda each: each.node)
        known = [each.ledger for each in nodes if each.ledger is not None]
        return RoomLedger(
            add_ledgers(known),
            self._core.clock.now(),
            nodes,
            [each.node for each in nodes if each.problem],
            [*_broken_sums(nodes, self._core.clock.now()), *await self._find_violations()],
        )

    async def show_at(self, at: int) -> RoomLedger:
        """The ledger as it was at a moment, as far as the journals remember."""
        others = self._other_members()
        told = await asyncio.gather(*(self._ask_about(node, at) for node in others))
        own = await self._core.ledger.count_at(at)
        nodes = [_describe(self._core.node.id, own.ledger, at, ""), *told]
        nodes.sort(key=lambda each: each.node)
        known = [each.ledger for each in nodes if each.ledger is not None]
        unknown = [each.node for each in nodes if each.problem]
        return RoomLedger(add_ledgers(known), at, nodes, unknown, _broken_sums(nodes, at))

    async def _ask_about(self, node: str, at: int) -> NodeLedger:
        async with self._turns:
            answer = await self._request(node, at)
        if not isinstance(answer, TraceAnswer):
            return _describe(node, None, None, answer)
        try:
            return _describe(node, ledger_of_counts(answer.ledger), at, "")
        except ValueError:
            return _describe(node, None, None, _NO_COUNTS)

    async def _request(self, node: str, at: int = 0) -> TraceAnswer | str:
        # The id makes an answer that a relay passes on an answer to this very request.
        id = f"ledger-{self._core.node.event_ids.next_id()}"
        return await ask_through(
            self._links, node, [id], deadline_secs=_DEADLINE_SECS, ledger=True, at=at
        )

    async def ask(self, nodes: Iterable[str] | None = None) -> bool:
        """Ask the others that were not asked just now; return whether one told something new."""
        wanted = self._other_members() if nodes is None else list(nodes)
        for node in set(self._known) - set(wanted):
            self._forget(node)
        before = [(self._known[n].ledger, self._known[n].problem) for n in sorted(self._known)]
        asked = [task for node in wanted if (task := self._ask_when_due(node)) is not None]
        if asked:
            await asyncio.wait(asked, timeout=_DEADLINE_SECS)
        return before != [
            (self._known[n].ledger, self._known[n].problem) for n in sorted(self._known)
        ]

    def _other_members(self) -> list[str]:
        room = self._replica.room
        members = () if room is None else room.effective.nodes
        return sorted(node for node in members if node != self._core.node.id)

    def _forget(self, node: str) -> None:
        known = self._known.pop(node)
        if known.asking is not None:
            known.asking.cancel()

    def _ask_when_due(self, node: str) -> "asyncio.Task[None] | None":
        """The request to wait for; None for a gateway that need not, or did not answer before."""
        loop = asyncio.get_running_loop()
        known = self._known.setdefault(node, _KnownLedger())
        pause = _RELAYED_FRESH_SECS if known.is_relayed else _FRESH_SECS
        was_reached = known.problem == "" or known.asked_at < 0
        if known.asking is None or known.asking.done():
            if loop.time() - known.asked_at < pause:
                return None
            known.asked_at = loop.time()
            known.asking = loop.create_task(self._ask_node(node, known))
        return known.asking if was_reached else None

    async def _ask_node(self, node: str, known: _KnownLedger) -> None:
        async with self._turns:
            answer = await self._request(node)
        known.is_relayed = not any(True for end in self._links.links_to(node) if not end.ended)
        if not isinstance(answer, TraceAnswer):
            known.problem = answer
            return
        try:
            known.ledger = ledger_of_counts(answer.ledger)
        except ValueError:
            known.problem = _NO_COUNTS
            return
        known.at, known.problem = self._core.clock.now(), ""

    async def _find_violations(self) -> list[BrokenPromise]:
        try:
            page = await self._feedback.find_incidents(0, VIOLATION_CLASS, _MAX_BROKEN)
        except GatepostError:
            return []
        return [_violation(each) for each in page.incidents if each.status == "open"]


def _describe(node: str, ledger: Ledger | None, at: int | None, problem: str) -> NodeLedger:
    return NodeLedger(node, ledger, at, problem, ledger is None or ledger.adds_up)


def _broken_sums(nodes: Iterable[NodeLedger], now: int) -> list[BrokenPromise]:
    return [
        BrokenPromise(
            "processed",
            _SUM_PROMISE,
            f"{each.node} counts {each.ledger.sent:,} sent, and {sum(each.ledger.counts[1:]):,}"
            " in all terms together",
            each.at or now,
            f"gatepost status, on {each.node}",
        )
        for each in nodes
        if each.ledger is not None and not each.adds_up
    ]


def _violation(found: IncidentView) -> BrokenPromise:
    rule = found.subject.partition(" ")[0].partition(":")[0]
    return BrokenPromise(
        _TERMS_OF_PROMISES.get(rule, "processed"),
        found.subject,
        found.detail,
        found.raised_at,
        "gatepost pipeline audit",
        found.id,
        found.corr_ids,
    )
