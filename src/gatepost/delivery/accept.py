"""The second transaction, `accept`: take events of another outbox, each once and in order.

A whole batch is taken in one transaction with the cursor. A tracked event is accepted into its
agent's mailbox, or refused, or held: a number of its pair is missing, its blob is not here yet, or
the mailbox is full. A held event has no receipt and stops no other pair. An offer is accepted
without engaging its agent until its sender confirms it.
"""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gatepost.delivery.decisions import (
    NOTHING,
    Decisions,
    EventsSkipped,
    OwnEvent,
    ReceiptArrived,
    TaskReported,
)
from gatepost.delivery.frames import SkipFrame
from gatepost.delivery.inbox.cursors import OutboxCursor
from gatepost.delivery.intake import Intake, confirm_next_offer
from gatepost.delivery.parts import DeliveryParts
from gatepost.delivery.signals import apply_dead_letter, apply_signal
from gatepost.errors import GatepostError, LinkError
from gatepost.events import (
    REPORT_KINDS,
    TRACKED_KINDS,
    DeadLetterNotice,
    Envelope,
    EventKind,
    Receipt,
    Signal,
    decode_event,
    decode_payload,
)
from gatepost.journal.transaction import Tx


class EventBatch(Struct, frozen=True):
    """All events for us in one outbox through `upto`. `now` is the emitter's clock.

    `confirmed` are offers of ours that the outbox confirms further on.
    """

    source: str
    incarnation: str
    first_seq: int
    upto: int
    now: int
    events: list[bytes]
    confirmed: list[bytes] = []


class TakenBatch(NamedTuple):
    """`seq` is how far the outbox is read now; `new` are the events that did not come before."""

    seq: int
    new: list[tuple[Envelope, bytes]]
    decisions: Decisions


def take_batch(parts: DeliveryParts, tx: Tx, batch: EventBatch) -> TakenBatch:
    """Take a whole batch or nothing. Events of a revoked node count through a fixed seq only."""
    cursor = OutboxCursor.load(tx, batch.source, batch.incarnation, batch.first_seq)
    events = [(decode_event(body), body) for body in batch.events]
    last = parts.routes.honoured_seqs.get(batch.source)
    if last is not None:
        upto = min(batch.upto, max(last, cursor.seq))
        batch = replace(batch, upto=upto, confirmed=[])
        events = [each for each in events if each[0].seq <= last]
    new = _read_events(parts, cursor, events)
    decisions = _take_events(parts, tx, batch, new)
    cursor.read_through(batch.upto)
    cursor.save(tx)
    return TakenBatch(cursor.seq, new, decisions)


def take_own(parts: DeliveryParts, tx: Tx, own: OwnEvent) -> Decisions:
    """Take an event of this gateway for itself, in the transaction that appends it."""
    node = parts.node
    envelope = replace(own.draft, seq=1, source_node_id=node.id, created_at=tx.now)
    intake = Intake(parts, node.id, node.incarnation, tx.now)
    _handle_event(intake, tx, envelope, b"")
    return intake.finish(tx)


def skip_events(parts: DeliveryParts, tx: Tx, skip: SkipFrame) -> Decisions:
    """The events for us through this seq are gone; continue with the next one."""
    cursor = OutboxCursor.load(tx, skip.source, skip.incarnation, skip.first_seq)
    if skip.upto < cursor.seq:
        return NOTHING
    cursor.skip_through(skip.upto)
    cursor.save(tx)
    detail = f"nothing before this: {skip.why}"
    parts.incidents.raise_(tx, "skipped", f"{skip.source}/{skip.upto}", detail)
    return (EventsSkipped(skip.source),)


def _take_events(
    parts: DeliveryParts, tx: Tx, batch: EventBatch, new: list[tuple[Envelope, bytes]]
) -> Decisions:
    source, incarnation = batch.source, batch.incarnation
    intake = Intake(parts, source, incarnation, batch.now)
    intake.look_up(tx, [envelope for envelope, _ in new if envelope.kind in TRACKED_KINDS])
    for envelope, body in new:
        _handle_event(intake, tx, envelope, body)
    if batch.confirmed:
        intake.acceptor.flush_runs(tx)
    for id in batch.confirmed:
        confirm_next_offer(intake, tx, id)
    return intake.finish(tx)


def _read_events(
    parts: DeliveryParts, cursor: OutboxCursor, events: list[tuple[Envelope, bytes]]
) -> list[tuple[Envelope, bytes]]:
    """Move the cursor over these events, and return those that did not come before.

    LinkError if one of them does not belong here, or if one is missing.
    """
    new = []
    for envelope, body in events:
        _require_own_place(parts.node.id, cursor.source, envelope)
        if cursor.has_read(envelope):
            parts.counts.duplicates += 1
            continue
        parts.gaps.check_follows(cursor, envelope)
        cursor.read_event(envelope)
        new.append((envelope, body))
    return new


def _require_own_place(here: str, source: str, envelope: Envelope) -> None:
    """LinkError if an event is of another outbox, or for another node."""
    if envelope.source_node_id != source:
        raise LinkError(f"an event of {envelope.source_node_id} in the outbox of {source}")
    if envelope.to_node_id not in (None, here):
        raise LinkError(f"{source} sent an event that is for {envelope.to_node_id}")


def _handle_event(intake: Intake, tx: Tx, envelope: Envelope, body: bytes) -> None:
    if envelope.kind in TRACKED_KINDS:
        intake.take_event(tx, envelope, body)
        return
    try:
        _handle_untracked(intake, tx, envelope)
    except GatepostError as error:
        subject = f"{intake.source}/{envelope.seq}"
        intake.parts.incidents.raise_(tx, "unreadable_event", subject, error.message)


def _handle_untracked(intake: Intake, tx: Tx, envelope: Envelope) -> None:
    if envelope.kind == EventKind.ACK:
        receipt = decode_payload(envelope, Receipt)
        if envelope.ref_event_id is not None:
            arrived = ReceiptArrived(intake.source, envelope.ref_event_id, receipt)
            intake.decisions.append(arrived)
        return
    intake.acceptor.flush_runs(tx)
    if envelope.kind in REPORT_KINDS:
        intake.decisions.append(TaskReported(intake.source, envelope))
    elif envelope.kind == EventKind.SIGNAL:
        apply_signal(intake, tx, envelope, decode_payload(envelope, Signal))
    elif envelope.kind == EventKind.DEAD_LETTER:
        apply_dead_letter(intake, tx, envelope, decode_payload(envelope, DeadLetterNotice))
