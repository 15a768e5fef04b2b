"""The steps of an event as recorded in one gateway's journal.

As a sender, a gateway knows its sends and the receipts it read; as an owner, the events it took,
held and handed to agents. A peer is told only of events that it sent to us or that we sent to it,
and never of their payloads.
"""

from collections.abc import Iterable, Iterator

from gatepost.delivery.delivery_reads import find_record, local_mailboxes, sent_in
from gatepost.delivery.forward import find_forwards
from gatepost.delivery.frames import TRACE_STEPS, TraceStep
from gatepost.delivery.inbox.cursors import all_sources
from gatepost.delivery.inbox.inbox_reads import find_taken, taken_in
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
from gatepost.journal import outbox_reads
from gatepost.journal.transaction import Tx
from gatepost.mailbox import MailState
from gatepost.mailbox.lookup import find_mail

# Bounds on the work that one event, or one answer, costs its gateway.
_ROWS = 200
_EVENTS = 256
_DETAIL = 300

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
            ids |= dict.fromkeys(outbox_reads.replies_to(self._tx, id, _ROWS))
        return list(ids)[:_EVENTS]

    def _trace_event(self, id: bytes) -> Iterator[TraceStep]:
        envelopes = list(map(decode_event, outbox_reads.journey_bodies(self._tx, id, _ROWS)))
        for envelope in envelopes:
            if self._is_visible(envelope.to_node_id):
                yield describe_event_step(envelope)
        yield from self._receipt_steps(id, pruned=not envelopes)
        yield from self._inbox_steps(id)
        if self._peer is None:
            mailboxes = {
                e.to_agent_id
                for e in envelopes
                if e.to_node_id == self._node and e.kind in TRACKED_KINDS and e.to_agent_id
            }
            if not envelopes:
                mailboxes |= set(local_mailboxes(self._tx, id, self._node))
            for mailbox in mailboxes:
                yield from self._mail_steps(id, mailbox)

    def _is_visible(self, node: str | None) -> bool:
        return self._peer is None or node == self._peer

    def _receipt_steps(self, id: bytes, *, pruned: bool) -> Iterator[TraceStep]:
        """The times at which the receipts of an event of ours were read here.

        If the event has left the outbox, its send comes from the record of its delivery.
        """
        told = find_record(self._tx, id)
        if told is None or not (pruned or told.node != self._node):
            return
        if not self._is_visible(told.node):
            return
        ends = (format_event_id(id), told.kind, told.from_agent, told.to_agent, told.node or "")
        is_given_up = told.state == "dead_letter"
        if pruned and told.emitted_at is not None:
            yield TraceStep(told.emitted_at, "sent", *ends)
        if told.accepted_at is not None:
            yield TraceStep(told.accepted_at, "heard_accepted", *ends)
        if told.processed_at is not None and not is_given_up:
            detail = _join_details(told.outcome, told.reason)
            yield TraceStep(told.processed_at, "heard_processed", *ends, detail)
        if told.verdict_at is not None and is_given_up:
            yield TraceStep(told.verdict_at, "verdict", *ends, _join_details(told.verdict))

    def _inbox_steps(self, id: bytes) -> Iterator[TraceStep]:
        event = format_event_id(id)
        found = (find_taken(self._tx, source, id) for source in self._sources())
        for source, state, mailbox, sender, at, reason in filter(None, found):
            what = "taken" if state == "accepted" else str(state)
            yield TraceStep(at, what, event, "", sender, mailbox, source, _join_details(reason))
            yield from self._mail_steps(id, mailbox)
            for ours, forwarded_at in find_forwards(self._tx, source, id):
                detail = f"as {format_event_id(ours)}"
                yield TraceStep(forwarded_at, "forwarded", event, "", sender, mailbox, "", detail)

    def _sources(self) -> list[str]:
        if self._peer is not None:
            return [self._peer]
        return [self._node, *all_sources(self._tx)]

    def _mail_steps(self, id: bytes, mailbox: str) -> Iterator[TraceStep]:
        event = format_event_id(id)
        mail = find_mail(self._tx, mailbox, event)
        if mail is None:
            return
        state, attempt, settled, not_before, failed, reason, consumer = mail
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
    ids = {*sent_in(tx, corr_id, _EVENTS), *taken_in(tx, corr_id, _EVENTS)}
    return [format_event_id(id) for id in sorted(ids)][:_EVENTS]


def sent_conversation_events(tx: Tx, corr_id: str) -> list[str]:
    """The events of a conversation that this gateway sent: a cheap query."""
    return list(map(format_event_id, sent_in(tx, corr_id, _EVENTS)))


def is_pruned(tx: Tx, event_id: str) -> bool:
    """Whether an event that we sent is no longer in our outbox, or was never known here."""
    id = parse_event_id(event_id)
    if outbox_reads.has_event(tx, id):
        return False
    return find_record(tx, id) is not None or not outbox_reads.is_referred_to(tx, id)


def traced_event(tx: Tx, event_id: str) -> str:
    """The event to trace: for a receipt, signal or dead letter, the event that it is about."""
    kind, ref = outbox_reads.kind_and_ref(tx, parse_event_id(event_id)) or ("", None)
    return event_id if ref is None or kind in TRACKED_KINDS else format_event_id(ref)


def describe_event_step(envelope: Envelope) -> TraceStep:
    """The step of a trace that an event of our outbox represents."""
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
