"""The checker: one function per rule, over all journals at once."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from msgspec import Struct, field
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from gatepost.testing.history.journals import (
    ACKED,
    DEAD,
    EXPIRED,
    GatewayJournal,
    JournalDelivery,
    JournalEvent,
)
from gatepost.testing.history.verdict import (
    HistoryVerdict,
    HistoryViolation,
    Observations,
    OutcomeCounts,
)

_TRACKED = ("message", "reply", "task_create", "task_cancel")
_EVERYBODY = "*"


class CheckedReceipt(Struct, frozen=True):
    """A receipt: who said it, where in its outbox, and what."""

    node: str
    event: JournalEvent
    status: str
    outcome: str | None


class EventHistory(Struct):
    """Everything all outboxes say about one tracked event of one source."""

    source: str
    first: JournalEvent
    routes: list[str] = field(default_factory=list)
    offered: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    receipts: list[CheckedReceipt] = field(default_factory=list)
    answered_by: set[str] = field(default_factory=set)
    given_up: JournalEvent | None = None
    delivery: JournalDelivery | None = None

    @property
    def id(self) -> str:
        return self.first.event_id

    def processed_receipts(self) -> list[CheckedReceipt]:
        """The first word of each gateway that ended it."""
        ends: dict[str, CheckedReceipt] = {}
        for said in self.receipts:
            if said.status == "processed" and said.node in self.routes:
                ends.setdefault(said.node, said)
        return list(ends.values())

    def accepting_nodes(self) -> set[str]:
        nodes = {said.node for said in self.receipts if said.status == "accepted"}
        nodes &= set(self.routes)
        return {node for node in nodes if node not in self.offered or node in self.confirmed}

    def involves(self, nodes: set[str]) -> bool:
        return self.source in nodes or not nodes.isdisjoint(self.routes)


EventHistories = dict[tuple[str, str], EventHistory]


def check_history(
    journals: Sequence[GatewayJournal], seen: Observations | None = None, *, drained: bool = True
) -> HistoryVerdict:
    """`drained`: everything was healed and had time, so nothing may be open any more."""
    case = _CheckedMesh(journals, seen or Observations(), drained)
    violations = [found for rule in _RULES for found in rule(case)]
    amended = [story.id for story in case.histories.values() if _is_amended(story)]
    return HistoryVerdict(_count_outcomes(case), violations, amended, _count_reasons(case))


class _CheckedMesh:
    """What is on the table, sorted."""

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
        """When an event was on disk: really, or else by its gateway's clock."""
        groups = self.seen.appended.get((node, event.incarnation))
        if groups is None:
            return event.created_at
        return groups[bisect_left(groups, (event.seq, 0))][1]

    def is_excused(self, story: EventHistory) -> bool:
        """Who came back from a backup does not know what it did; nobody can hold it to that."""
        return story.involves(self.seen.restored)


def _collect_histories(journals: Iterable[GatewayJournal]) -> EventHistories:
    stories: EventHistories = {}
    for journal in journals:
        for event in journal.events:
            if event.kind in _TRACKED:
                _add_route(stories, journal, event)
    for journal in journals:
        for event in journal.events:
            _add_statement(stories, journal, event)
    return stories


def _add_route(stories: EventHistories, journal: GatewayJournal, event: JournalEvent) -> None:
    key = (journal.node, event.event_id)
    story = stories.get(key)
    if story is None:
        story = stories[key] = EventHistory(journal.node, event)
        story.delivery = journal.deliveries.get(event.event_id)
    if event.to_node_id is not None:
        story.routes.append(event.to_node_id)
        (story.offered.add if event.offer else _ignore_node)(event.to_node_id)


def _ignore_node(node: str) -> None:
    """A route that is no offer."""


def _add_statement(stories: EventHistories, journal: GatewayJournal, event: JournalEvent) -> None:
    ref = event.ref_event_id or ""
    if event.kind == "ack":
        story = stories.get((event.to_node_id or "", ref))
        if story is not None:
            said = event.read_payload()
            receipt = CheckedReceipt(journal.node, event, said["status"], said.get("outcome"))
            story.receipts.append(receipt)
    elif event.kind == "reply":
        story = stories.get((event.to_node_id or "", ref))
        if story is not None:
            story.answered_by.add(journal.node)
    elif (story := stories.get((journal.node, ref))) is not None:
        if event.kind == "dead_letter":
            story.given_up = story.given_up or event
        elif event.kind == "signal" and event.read_payload().get("signal") == "confirm":
            story.confirmed.add(event.to_node_id or "")


# -- the rules


def _check_kept(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for send in case.seen.sends:
        if send.result != "acknowledged" or send.node in case.seen.restored:
            continue
        if (send.node, send.event_id) not in case.histories:
            yield HistoryViolation(
                "kept", send.node, send.event_id, f"{send.sender} to {send.target}"
            )


def _check_settled(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for story in case.histories.values() if case.drained else ():
        if _is_waiting(story) and not story.involves(case.seen.absent):
            state = story.delivery.state if story.delivery else "unknown"
            where = story.delivery.node if story.delivery else None
            detail = f"it is {state}, routed to {where}"
            yield HistoryViolation("settled", story.source, story.id, detail)


def _check_one_end(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for story in case.histories.values():
        ends = story.processed_receipts()
        if len(ends) > 1 and not case.is_excused(story):
            said = ", ".join(f"{end.node}: {end.outcome}" for end in ends)
            yield HistoryViolation("one end", story.source, story.id, said)
        outcomes = {(s.node, s.outcome) for s in story.receipts if s.status == "processed"}
        nodes = {node for node, _ in outcomes if node in story.routes}
        if len(nodes) < len([each for each in outcomes if each[0] in nodes]):
            yield HistoryViolation(
                "one end", story.source, story.id, f"ended in two ways: {outcomes}"
            )


def _check_one_turn(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    acked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for journal in case.journals.values():
        for mail in journal.mail:
            if mail.state == ACKED:
                acked[mail.event_id, mail.mailbox].add(journal.node)
    for (id, mailbox), nodes in acked.items():
        if len(nodes) > 1:
            detail = f"{mailbox} completed it on {sorted(nodes)}"
            yield HistoryViolation("one turn", min(nodes), id, detail)
    for (source, id), turns in case.completed.items():
        if len(turns) > 1:
            yield HistoryViolation("one turn", source, id, f"completed turns: {sorted(turns)}")


def _check_order(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    """Of the turns that mail had, by the receipts that ended them."""
    pairs: dict[tuple[str, str, str | None], list[tuple[int, int, str, int, str]]] = defaultdict(
        list
    )
    for story in case.histories.values():
        first = story.first
        for said in story.processed_receipts():
            # An answer that somebody waits for ends without a turn, mail that is passed on with
            # the turn somebody else had.
            passed_on = (story.source, story.id) in case.journals[said.node].forwarded
            is_turn = said.outcome == "ok" and story.id in case.acked[said.node] and not passed_on
            if is_turn and first.pair_seq and not case.is_excused(story):
                place = (case.time_on_disk(said.node, said.event), said.event.seq, said.node)
                key = (story.source, first.source_agent_id, first.to_agent_id)
                pairs[key].append((*place, first.pair_seq, story.id))
    for (source, sender, target), ended in pairs.items():
        highest = 0
        for at, _, node, number, id in sorted(ended):
            if number < highest:
                detail = f"{sender} to {target}: {number} ended on {node} at {at}, after {highest}"
                yield HistoryViolation("order", source, id, detail)
            highest = max(highest, number)


def _check_same_outcome(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for story in case.histories.values():
        delivery = story.delivery
        if delivery is None or case.is_excused(story):
            continue
        if story.given_up is not None and delivery.state != "dead_letter":
            detail = f"the sender gave it up, and says {delivery.state}"
            yield HistoryViolation("same outcome", story.source, story.id, detail)
        ends = {end.node: end.outcome for end in story.processed_receipts()}
        if delivery.state == "processed" and ends.get(delivery.node or "") != delivery.outcome:
            detail = f"the sender says {delivery.outcome}, of its owners {ends}"
            yield HistoryViolation("same outcome", story.source, story.id, detail)
        if delivery.state == "replied" and ends.get(delivery.node or "") != "ok":
            detail = f"the sender has a reply, the owners say {ends}"
            yield HistoryViolation("same outcome", story.source, story.id, detail)


def _check_routed(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for story in case.histories.values():
        delivery = story.delivery
        if delivery is None or delivery.state not in (
            "accepted",
            "processed",
            "replied",
            "incident",
        ):
            continue
        if case.is_excused(story):
            continue
        node = delivery.node or ""
        said = {receipt.status for receipt in story.receipts if receipt.node == node}
        backed = said & {"accepted", "processed"} or node in story.answered_by
        if node not in story.routes or not backed:
            detail = f"it is {delivery.state} at {node}, which said {sorted(said)}"
            yield HistoryViolation("routed", story.source, story.id, detail)


def _check_confirmed(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for story in case.histories.values():
        for end in story.processed_receipts():
            unsure = end.node in story.offered and end.node not in story.confirmed
            if unsure and not case.is_excused(story) and not _was_sure(story, end.node):
                yield HistoryViolation(
                    "confirmed", end.node, story.id, "engaged without a confirmation"
                )


def _was_sure(story: EventHistory, node: str) -> bool:
    """Whether it was ever routed there other than as an offer."""
    return story.routes.count(node) > 0 and node not in story.offered


def _check_accepted(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    """Looked at from both sides: receipts, and the mail itself."""
    for story in case.histories.values() if case.drained else ():
        ended = {end.node for end in story.processed_receipts()}
        for node in story.accepting_nodes() - ended:
            if not case.is_excused(story) and node not in case.seen.absent:
                yield HistoryViolation(
                    "accepted", node, story.id, "accepted for good, and then nothing"
                )
    for journal in case.journals.values() if case.drained else ():
        for mail in journal.mail:
            if mail.state not in (ACKED, DEAD, EXPIRED) and journal.node not in case.seen.absent:
                detail = f"still in the mailbox of {mail.mailbox}"
                yield HistoryViolation("accepted", journal.node, mail.event_id, detail)


def _check_amended(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for story in case.histories.values() if case.drained else ():
        delivery = story.delivery
        if not _is_amended(story) or delivery is None or case.is_excused(story):
            continue
        if delivery.verdict is None:
            ends = [f"{end.node}: {end.outcome}" for end in story.processed_receipts()]
            yield HistoryViolation("amended", story.source, story.id, f"nothing is noted of {ends}")


def _check_deserved(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for story in case.histories.values() if case.seen.brief else ():
        reason = story.given_up.read_payload()["reason"] if story.given_up else ""
        excuse = case.is_excused(story) and reason in _LOST
        if reason in ("exhausted", *_LOST) and not excuse:
            yield HistoryViolation("deserved", story.source, story.id, f"given up: {reason}")


_LOST = ("owner_lost_it", "owner_restored")


def _check_chains(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for journal in case.journals.values():
        yield from _check_chain(journal)


def _check_chain(journal: GatewayJournal) -> Iterator[HistoryViolation]:
    digests = {event.seq: event.digest for event in journal.events}
    for event in journal.events:
        if sha256(event.body).digest() != event.digest:
            yield HistoryViolation("chain", journal.node, event.event_id, f"digest of {event.seq}")
    starts = {first: life for life, first in journal.incarnations}
    chain, life, after = b"", "", (journal.incarnations[0][1] if journal.incarnations else 1) - 1
    for first, last, claimed, signature in journal.heads:
        if first in starts:
            life = starts[first]
            chain = sha256(_frame_parts("gatepost/genesis/1", journal.node, life)).digest()
        if first != after + 1 or not all(seq in digests for seq in range(first, last + 1)):
            yield HistoryViolation(
                "chain", journal.node, "", f"a gap before or in {first} to {last}"
            )
            return
        for seq in range(first, last + 1):
            chain = sha256(chain + digests[seq]).digest()
        if chain != claimed or not _is_signed(journal, life, first, last, chain, signature):
            yield HistoryViolation("chain", journal.node, "", f"the head of {first} to {last}")
            return
        after = last
    if digests and after != max(digests):
        yield HistoryViolation("chain", journal.node, "", f"no head after {after}")


def _is_signed(
    journal: GatewayJournal, life: str, first: int, last: int, chain: bytes, signature: bytes
) -> bool:
    if journal.key is None:
        return True
    span = first.to_bytes(8, "big") + last.to_bytes(8, "big")
    statement = _frame_parts("gatepost/head/1", journal.node, life, span, chain)
    try:
        VerifyKey(journal.key).verify(statement, signature)
    except BadSignatureError:
        return False
    return True


def _frame_parts(domain: str, *parts: str | bytes) -> bytes:
    encoded = [part.encode() if isinstance(part, str) else part for part in (domain, *parts)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def _check_told(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for journal in case.journals.values():
        last: dict[str, int] = defaultdict(int)
        for event in journal.events:
            reader = event.to_node_id
            if reader is None or reader == journal.node:
                continue
            if event.prev_seq_to != last[reader]:
                detail = f"{event.seq} for {reader} follows {event.prev_seq_to}, not {last[reader]}"
                yield HistoryViolation("told", journal.node, event.event_id, detail)
            last[reader] = event.seq
        if case.drained:
            yield from _check_taken(case, journal, last)


def _check_taken(
    case: _CheckedMesh, journal: GatewayJournal, last: dict[str, int]
) -> Iterator[HistoryViolation]:
    for reader, seq in last.items():
        other = case.journals.get(reader)
        if other is None or reader in case.seen.absent:
            continue
        mine = (at for (source, _), at in other.cursors.items() if source == journal.node)
        if (taken := max(mine, default=0)) < seq:
            yield HistoryViolation(
                "told", journal.node, "", f"{reader} has read up to {taken} of {seq}"
            )


def _check_written(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    """Of every outbox that is here from its first event on and was never rewound."""
    for journal in case.journals.values():
        for source, event_id in sorted(journal.inbox):
            other = case.journals.get(source)
            if other is None or source in ({journal.node} | case.seen.restored):
                continue
            if (source, event_id) not in case.histories:
                whole = not other.events or other.events[0].seq == other.incarnations[0][1]
                if whole:
                    detail = f"{source} never wrote it"
                    yield HistoryViolation("written", journal.node, event_id, detail)
            elif journal.node not in case.histories[source, event_id].routes:
                detail = f"{source} wrote it for others"
                yield HistoryViolation("written", journal.node, event_id, detail)


def _check_complete(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    """In brief histories only: later an inbox is compacted."""
    for history in case.histories.values() if case.seen.brief else ():
        first = history.first
        reader = case.journals.get(first.to_node_id or "")
        if reader is None or reader.node == history.source or case.is_excused(history):
            continue
        read = reader.cursors.get((history.source, first.incarnation), 0)
        if first.seq <= read and (history.source, history.id) not in reader.inbox:
            detail = f"{reader.node} has read up to {read}, and never took {first.seq}"
            yield HistoryViolation("complete", history.source, history.id, detail)


def _check_payload(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    """Mail that was forwarded has another event id, so its payload counts, whatever its event."""
    sent: dict[tuple[str, str], set[str]] = defaultdict(set)
    exact: dict[str, str] = {}
    for send in case.seen.sends:
        sent[send.sender, send.target].add(send.payload)
        if send.event_id:
            exact[send.event_id] = send.payload
    for turn in case.seen.turns:
        if turn.kind != "message" or not turn.payload:
            continue
        known = exact.get(turn.event_id)
        allowed = sent[turn.sender, turn.agent] if known is None else {known}
        if turn.payload not in allowed:
            detail = f"{turn.agent} got another payload from {turn.sender}"
            yield HistoryViolation("payload", turn.node, turn.event_id, detail)


def _check_blobs(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for history in case.histories.values():
        ref = history.first.payload_ref
        for receipt in history.receipts if ref is not None and case.seen.blobs else ():
            # A receipt of a gateway that the message never went to is a forgery.
            if receipt.status != "accepted" or receipt.node not in history.routes or ref is None:
                continue
            digest = ref.digest
            stored = case.seen.blobs.get((receipt.node, digest))
            if stored is None or stored > case.time_on_disk(receipt.node, receipt.event):
                detail = f"{receipt.node} accepted it before {digest} was there"
                yield HistoryViolation("blob here", receipt.node, history.id, detail)
            elif case.journals[receipt.node].blobs.get(digest) != digest:
                detail = f"{digest} is not intact at {receipt.node}"
                yield HistoryViolation("blob here", receipt.node, history.id, detail)


def _check_noticed(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for node, forgery, noticed in case.seen.forged:
        if not noticed:
            yield HistoryViolation("noticed", node, "", forgery)


def _check_left_out(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for (reader, source, seq), read in case.seen.left_out.items() if case.drained else ():
        if not read and case.seen.restored.isdisjoint((reader, source)):
            yield HistoryViolation("left out", reader, "", f"event {seq} of {source} never came")


def _check_calm(case: _CheckedMesh) -> Iterator[HistoryViolation]:
    for node, what in case.seen.surprises:
        yield HistoryViolation("calm", node, "", what)


_RULES = (
    _check_kept,
    _check_settled,
    _check_one_end,
    _check_one_turn,
    _check_order,
    _check_same_outcome,
    _check_routed,
    _check_confirmed,
    _check_accepted,
    _check_amended,
    _check_deserved,
    _check_chains,
    _check_told,
    _check_calm,
    _check_written,
    _check_complete,
    _check_payload,
    _check_blobs,
    _check_noticed,
    _check_left_out,
)


# -- the truth table


def _is_waiting(story: EventHistory) -> bool:
    if story.delivery is None:
        # A reply that was settled as it was sent has no delivery of its own.
        return not story.processed_receipts() and story.given_up is None
    return not story.delivery.closed


def _is_processed(story: EventHistory) -> bool:
    if story.delivery is None:
        return any(end.outcome == "ok" for end in story.processed_receipts())
    return story.given_up is None and story.delivery.outcome == "ok"


def _is_amended(story: EventHistory) -> bool:
    return story.given_up is not None and bool(story.processed_receipts())


def _count_outcomes(case: _CheckedMesh) -> OutcomeCounts:
    truth = OutcomeCounts(sent=len(case.histories))
    for key, story in case.histories.items():
        ends = story.processed_receipts()
        if _is_waiting(story):
            truth.waiting += 1
        elif _is_processed(story):
            truth.processed += 1
        else:
            truth.dead_lettered += 1
        truth.amended += _is_amended(story)
        oks = {end.node for end in ends if end.outcome == "ok"}
        truth.doubled += max(len(oks), len(case.completed.get(key, ()))) > 1
    for send in case.seen.sends:
        if send.result == "acknowledged" and (send.node, send.event_id) not in case.histories:
            truth.sent += 1
            if send.node in case.seen.restored:
                truth.rewound += 1
            else:
                truth.lost += 1
    return truth


def _count_reasons(case: _CheckedMesh) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for story in case.histories.values():
        if story.given_up is not None:
            reasons[story.given_up.read_payload()["reason"]] += 1
        else:
            reasons.update(
                str(end.outcome) for end in story.processed_receipts() if end.outcome != "ok"
            )
    return dict(reasons)
