"""The steps of an event that one gateway's journal knows.

As a sender, a gateway knows its sends and the receipts it read; as an owner, the events it took,
held and handed to agents. A peer is told only of events that it sent to us or that we sent to it,
and never of their payloads.
"""

from collections.abc import Iterable, Iterator

from gatepost.delivery.frames import TRACE_STEPS, TraceStep
from gatepost.durations import format_duration
from gatepost.errors import GatepostError
from gatepost.events import (
    TRACKED_KINDS,
    DeadLetterNotice,
    Envelope,
    EventKind,
    Receipt,
    Signal,
    decode_event,
    decode_payload,
    format_event_id,
    parse_event_id,
)
from gatepost.journal.transaction import Tx
from gatepost.mailbox import MailState
from gatepost.mailbox.enqueue import PAIR_NUMBER_BITS

# Bounds on the work that one event, or one answer, costs its gateway.
_ROWS = 200
_EVENTS = 256
_DETAIL = 300

_OUTBOX = f"""
SELECT body FROM outbox WHERE event_id = ?1 UNION ALL SELECT body FROM outbox WHERE ref_id = ?1
LIMIT {_ROWS}
"""
_REPLIES = f"""
SELECT DISTINCT event_id FROM outbox WHERE ref_id = ? AND kind = '{EventKind.REPLY}' LIMIT {_ROWS}
"""
_ABOUT = "SELECT ref_id, kind FROM outbox WHERE event_id = ? LIMIT 1"
_DELIVERY = """
SELECT kind, from_agent, to_agent, node, outcome, reason, accepted_at, processed_at, state, verdict,
    verdict_at, emitted_at
FROM delivery WHERE event_id = ?
"""
_UNDELIVERED = """
SELECT kind, from_agent, to_agent, node, NULL, reason, NULL, failed_at, 'dead_letter', verdict,
    verdict_at, NULL
FROM undelivered WHERE event_id = ?
"""
_LOCAL = "SELECT to_agent FROM delivery WHERE event_id = ? AND node = ?"
_IS_PRUNED = """
SELECT NOT EXISTS (SELECT 1 FROM outbox WHERE event_id = ?1) AND (
    EXISTS (SELECT 1 FROM delivery WHERE event_id = ?1)
    OR EXISTS (SELECT 1 FROM undelivered WHERE event_id = ?1)
    OR NOT EXISTS (SELECT 1 FROM outbox WHERE ref_id = ?1)
)
"""
_INBOX = """
SELECT source, state, mailbox, sender, at, reason FROM inbox WHERE source = ? AND event_id = ?
"""
_SOURCES = "SELECT DISTINCT source FROM cursor"
_MAIL = f"""
SELECT m.state, m.attempt, m.settled_at, m.not_before, d.failed_at, d.reason, l.consumer
FROM mail m JOIN mailbox b ON b.id = m.mailbox
LEFT JOIN dead_letter d ON d.id = m.id
LEFT JOIN lease l ON l.slot IN (m.id, m.id >> {PAIR_NUMBER_BITS}) AND l.id = m.lease
WHERE b.name = ? AND m.msg_id = ?
"""
_FORWARDED = "SELECT event_id, at FROM forwarded WHERE source = ? AND original = ?"
_SENT_IN = f"SELECT event_id FROM delivery WHERE corr_id = ? ORDER BY event_id LIMIT {_EVENTS}"
_TAKEN_IN = f"SELECT event_id FROM inbox WHERE corr_id = ? ORDER BY event_id LIMIT {_EVENTS}"
# The steps of mail that is not settled.
_OPEN_MAIL_STEPS = {
    MailState.PENDING: "waiting",
    MailState.IN_FLIGHT: "in_hand",
    MailState.NACKED: "backing_off",
}


class EventTrace:
    """The steps that one journal knows of some events. For a `peer`, only those that concern it."""

    def __init__(self, tx: Tx, node: str, peer: str | None = None) -> None:
        self._tx = tx
        self._node = node
        self._peer = peer

    def trace_events(self, event_ids: Iterable[str]) -> list[TraceStep]:
        """The steps of these events, and of the replies that this gateway sent to them."""
        steps: list[TraceStep] = []
        for id in self._with_replies(event_ids):
            steps += self._trace_event(id)
            if len(steps) >= TRACE_STEPS:
                break
        return steps[:TRACE_STEPS]

    def _with_replies(self, event_ids: Iterable[str]) -> list[bytes]:
        ids = dict.fromkeys(map(parse_event_id, event_ids))
        for id in list(ids):
            ids |= dict.fromkeys(row[0] for row in self._tx.fetch_all(_REPLIES, (id,)))
        return list(ids)[:_EVENTS]

    def _trace_event(self, id: bytes) -> Iterator[TraceStep]:
        envelopes = [decode_event(body) for (body,) in self._tx.fetch_all(_OUTBOX, (id,))]
        for envelope in envelopes:
            if self._is_visible(envelope.to_node_id):
                yield _outbox_step(envelope)
        yield from self._receipt_steps(id, pruned=not envelopes)
        yield from self._inbox_steps(id)
        if self._peer is None:
            mailboxes = {
                e.to_agent_id
                for e in envelopes
                if e.to_node_id == self._node and e.kind in TRACKED_KINDS and e.to_agent_id
            }
            if not envelopes:
                mailboxes |= {row[0] for row in self._tx.fetch_all(_LOCAL, (id, self._node))}
            for mailbox in mailboxes:
                yield from self._mail_steps(id, mailbox)

    def _is_visible(self, node: str | None) -> bool:
        return self._peer is None or node == self._peer

    def _receipt_steps(self, id: bytes, *, pruned: bool) -> Iterator[TraceStep]:
        """The times at which the receipts of an event of ours were read here.

        Of an event that has left the outbox, the record of its delivery also tells the send.
        """
        row = self._tx.fetch_one(_DELIVERY, (id,)) or self._tx.fetch_one(_UNDELIVERED, (id,))
        is_told = row is not None and (pruned or row[3] != self._node)
        if row is None or not is_told or not self._is_visible(row[3]):
            return
        kind, sender, to, node, outcome, reason, accepted, processed, state, verdict, late, sent = (
            row
        )
        ends = (format_event_id(id), kind, sender, to, node or "")
        if pruned and sent is not None:
            yield TraceStep(sent, "sent", *ends)
        if accepted is not None:
            yield TraceStep(accepted, "heard_accepted", *ends)
        if processed is not None and state != "dead_letter":
            yield TraceStep(processed, "heard_processed", *ends, _join_details(outcome, reason))
        if late is not None and state == "dead_letter":
            yield TraceStep(late, "verdict", *ends, _join_details(verdict))

    def _inbox_steps(self, id: bytes) -> Iterator[TraceStep]:
        event = format_event_id(id)
        found = (self._tx.fetch_one(_INBOX, (source, id)) for source in self._sources())
        for source, state, mailbox, sender, at, reason in filter(None, found):
            what = "taken" if state == "accepted" else str(state)
            yield TraceStep(at, what, event, "", sender, mailbox, source, _join_details(reason))
            yield from self._mail_steps(id, mailbox)
            for ours, forwarded_at in self._tx.fetch_all(_FORWARDED, (source, id)):
                detail = f"as {format_event_id(ours)}"
                yield TraceStep(forwarded_at, "forwarded", event, "", sender, mailbox, "", detail)

    def _sources(self) -> list[str]:
        if self._peer is not None:
            return [self._peer]
        return [self._node, *(row[0] for row in self._tx.fetch_all(_SOURCES))]

    def _mail_steps(self, id: bytes, mailbox: str) -> Iterator[TraceStep]:
        event = format_event_id(id)
        row = self._tx.fetch_one(_MAIL, (mailbox, event))
        if row is None:
            return
        state, attempt, settled, not_before, failed, reason, consumer = row
        turns = f"attempt {attempt + 1}"
        if state in _OPEN_MAIL_STEPS:
            what, at = _OPEN_MAIL_STEPS[state], self._tx.now
            wait = (not_before or 0) - at
            due = f"due in {format_duration(wait / 1000)}" if wait > 0 else None
            detail = _join_details(turns, consumer if state == MailState.IN_FLIGHT else due)
            yield TraceStep(at, what, event, "", "", mailbox, "", detail)
        elif failed is not None:
            yield TraceStep(
                failed, "turn_failed", event, "", "", mailbox, "", _join_details(turns, reason)
            )
        elif settled is not None:
            yield TraceStep(settled, "turn_ended", event, "", "", mailbox, "", turns)


def conversation_events(tx: Tx, corr_id: str) -> list[str]:
    """The tracked events of a conversation that this gateway sent or took, oldest first."""
    rows = [*tx.fetch_all(_SENT_IN, (corr_id,)), *tx.fetch_all(_TAKEN_IN, (corr_id,))]
    return [format_event_id(id) for id in sorted({row[0] for row in rows})][:_EVENTS]


def sent_conversation_events(tx: Tx, corr_id: str) -> list[str]:
    """The events of a conversation that this gateway sent: a cheap query."""
    return [format_event_id(row[0]) for row in tx.fetch_all(_SENT_IN, (corr_id,))]


def is_pruned(tx: Tx, event_id: str) -> bool:
    """Whether an event that we sent has left our outbox, or one of which nothing is there."""
    ((pruned,),) = tx.fetch_all(_IS_PRUNED, (parse_event_id(event_id),))
    return bool(pruned)


def traced_event(tx: Tx, event_id: str) -> str:
    """The event to trace: for a receipt, signal or dead letter, the event that it is about."""
    row = tx.fetch_one(_ABOUT, (parse_event_id(event_id),))
    if row is None or row[0] is None or row[1] in TRACKED_KINDS:
        return event_id
    return format_event_id(row[0])


def _outbox_step(envelope: Envelope) -> TraceStep:
    """The step that an event of our outbox stands for."""
    what, detail = _describe_event(envelope)
    about = envelope.event_id if envelope.kind in TRACKED_KINDS else envelope.ref_event_id
    return TraceStep(
        envelope.created_at,
        what,
        about or envelope.event_id,
        envelope.kind,
        envelope.source_agent_id,
        envelope.to_agent_id or "",
        envelope.to_node_id or "",
        detail[:_DETAIL],
    )


def _describe_event(envelope: Envelope) -> tuple[str, str]:
    try:
        if envelope.kind == EventKind.ACK:
            receipt = decode_payload(envelope, Receipt)
            return receipt.status, _join_details(receipt.outcome, receipt.reason)
        if envelope.kind == EventKind.SIGNAL:
            signal = decode_payload(envelope, Signal)
            return signal.signal, _join_details(signal.reason)
        if envelope.kind == EventKind.DEAD_LETTER:
            letter = decode_payload(envelope, DeadLetterNotice)
            return "given_up", _join_details(letter.reason, letter.detail)
    except GatepostError as error:
        return "unreadable", error.message
    decision = envelope.trace.route_decision if envelope.trace else None
    again = f"attempt {envelope.attempt}" if envelope.attempt > 1 else None
    cause = f"replay of {envelope.causation_id}" if envelope.causation_id else None
    return "sent_again" if again else "sent", _join_details(again, decision, cause)


def _join_details(*parts: str | None) -> str:
    return ", ".join(filter(None, parts))[:_DETAIL]
