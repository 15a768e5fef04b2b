"""The histories of all events, put together from the outboxes of all gateways."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from simulation.history.journals import ACKED, GatewayJournal, JournalDelivery, JournalEvent
from simulation.history.verdict import Observations

_TRACKED = ("message", "reply", "task_create", "task_cancel")


class CheckedReceipt(Struct, frozen=True):
    """A receipt: the gateway that gave it, its event in that outbox, and its content."""

    node: str
    event: JournalEvent
    status: str
    outcome: str | None


class EventHistory(Struct):
    """All that the outboxes say about one tracked event of one source.

    `sent` maps each node that the event was routed to to the first attempt for that node.
    """

    source: str
    first: JournalEvent
    routes: list[str] = field(default_factory=list)
    sent: dict[str, JournalEvent] = field(default_factory=dict)
    offered: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    receipts: list[CheckedReceipt] = field(default_factory=list)
    answered_by: set[str] = field(default_factory=set)
    given_up: JournalEvent | None = None
    delivery: JournalDelivery | None = None

    @property
    def id(self) -> str:
        return self.first.event_id

    def processed_receipts(self) -> list[CheckedReceipt]:
        """The first `processed` receipt of each gateway that the event was routed to."""
        ends: dict[str, CheckedReceipt] = {}
        for said in self.receipts:
            if said.status == "processed" and said.node in self.routes:
                ends.setdefault(said.node, said)
        return list(ends.values())

    def last_receipts(self) -> list[CheckedReceipt]:
        """The last `processed` receipt of each such gateway, which may amend the first."""
        ends = {
            said.node: said
            for said in self.receipts
            if said.status == "processed" and said.node in self.routes
        }
        return list(ends.values())

    def accepting_nodes(self) -> set[str]:
        nodes = {said.node for said in self.receipts if said.status == "accepted"}
        nodes &= set(self.routes)
        # An accepted offer may expire before its confirmation comes.
        sure = self.confirmed - {said.node for said in self.receipts if said.status == "refused"}
        return {node for node in nodes if node not in self.offered or node in sure}

    def involves(self, nodes: set[str]) -> bool:
        return self.source in nodes or not nodes.isdisjoint(self.routes)


EventHistories = dict[tuple[str, str], EventHistory]


class CheckedMesh:
    """All journals and observations, sorted for the rules."""

    def __init__(
        self, journals: Sequence[GatewayJournal], seen: Observations, drained: bool
    ) -> None:
        self.journals = {journal.node: journal for journal in journals}
        self.seen = seen
        self.drained = drained
        self.histories = _collect_histories(journals)
        self.acked = {
            journal.node: {mail.event_id for mail in journal.mail if mail.state == ACKED}
            for journal in journals
        }
        self.completed: dict[tuple[str, str], set[str]] = defaultdict(set)
        for turn in seen.turns:
            if turn.result == "ok":
                self.completed[turn.source, turn.event_id].add(f"{turn.node}/{turn.receipt}")

    def time_on_disk(self, node: str, event: JournalEvent) -> int:
        """When an event was on disk: as observed, or else by its gateway's clock."""
        groups = self.seen.appended.get((node, event.incarnation))
        if groups is None:
            return event.created_at
        return groups[bisect_left(groups, (event.seq, 0))][1]

    def is_premature(self, history: EventHistory, receipt: CheckedReceipt) -> bool:
        """Whether a receipt is a forgery: its node was not sent the event before, or never."""
        sent = history.sent.get(receipt.node)
        given_at = self.time_on_disk(receipt.node, receipt.event)
        return sent is None or given_at < self.time_on_disk(history.source, sent)

    def journey(self, history: EventHistory) -> list[EventHistory]:
        """The events of one message, from this one back to the one that its sender emitted."""
        found = [history]
        while (before := self._event_before(found[-1])) is not None:
            found.append(before)
        return found

    def _event_before(self, history: EventHistory) -> EventHistory | None:
        key = self.journals[history.source].stands_for.get(history.id)
        return None if key is None else self.histories.get(key)

    def is_amended_forward(
        self,
        history: EventHistory,
        node: str,
        outcome: str | None,
        told: set[tuple[str, str | None]],
    ) -> bool:
        """Whether a node gave up mail that it forwarded, and has told of its turn since."""
        forwarded = (history.source, history.id) in self.journals[node].forwarded
        return forwarded and outcome not in ("ok", "kept") and (node, "ok") in told

    def is_excused(self, history: EventHistory) -> bool:
        """A gateway restored from a backup has lost its memory; the rules do not apply to it."""
        return history.involves(self.seen.restored)


def _collect_histories(journals: Iterable[GatewayJournal]) -> EventHistories:
    histories: EventHistories = {}
    for journal in journals:
        for event in journal.events:
            if event.kind in _TRACKED:
                _add_route(histories, journal, event)
    for journal in journals:
        for event in journal.events:
            _add_statement(histories, journal, event)
    return histories


def _add_route(histories: EventHistories, journal: GatewayJournal, event: JournalEvent) -> None:
    key = (journal.node, event.event_id)
    history = histories.get(key)
    if history is None:
        history = histories[key] = EventHistory(journal.node, event)
        history.delivery = journal.deliveries.get(event.event_id)
    if event.to_node_id is not None:
        history.routes.append(event.to_node_id)
        history.sent.setdefault(event.to_node_id, event)
        if event.offer:
            history.offered.add(event.to_node_id)
        elif event.is_whole:
            history.given.add(event.to_node_id)


def _add_statement(histories: EventHistories, journal: GatewayJournal, event: JournalEvent) -> None:
    ref = event.ref_event_id or ""
    if event.kind == "ack":
        history = histories.get((event.to_node_id or "", ref))
        if history is not None:
            said = event.read_payload()
            receipt = CheckedReceipt(journal.node, event, said["status"], said.get("outcome"))
            history.receipts.append(receipt)
    elif event.kind == "reply":
        history = histories.get((event.to_node_id or "", ref))
        if history is not None:
            history.answered_by.add(journal.node)
    elif (history := histories.get((journal.node, ref))) is not None:
        if event.kind == "dead_letter":
            history.given_up = history.given_up or event
        elif event.kind == "signal" and event.read_payload().get("signal") == "confirm":
            history.confirmed.add(event.to_node_id or "")
