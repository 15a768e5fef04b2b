"""Held and offered events: accept those whose reason to wait is gone, and drop the others."""

from collections.abc import Iterable
from functools import partial

from gatepost.delivery import answers, signals
from gatepost.delivery.acceptance_check import BLOB, mailbox_capacity
from gatepost.delivery.blob_records import keep_blob
from gatepost.delivery.decisions import (
    BlobMissing,
    Decision,
    Decisions,
    ForwardEnded,
    ForwardMail,
)
from gatepost.delivery.inbox import held_events
from gatepost.delivery.inbox.cursors import last_incarnation
from gatepost.delivery.inbox.inbox_pairs import PairKey, pair_incarnation
from gatepost.delivery.inbox.inbox_states import InboxInput
from gatepost.delivery.inbox.inbox_table import change_state, find_row, select_undecided
from gatepost.delivery.inbox.offers import forget_undecided
from gatepost.delivery.intake import Intake
from gatepost.delivery.outbox_writer import RESTORED
from gatepost.delivery.parts import DeliveryParts
from gatepost.errors import GatepostError
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.transaction import Tx, try_operation


def release_for_blob(parts: DeliveryParts, tx: Tx, digest: str) -> Decisions:
    """A blob was fetched and verified: keep its key, and accept the events that waited for it."""
    parts.counts.blobs += 1
    decisions: list[Decision] = []
    for key, envelope in held_events.events_held_for_blob(tx, digest):
        ref = envelope.payload_ref
        if ref is not None:
            sender_key = parts.routes.sender_key(key[0])
            keep_blob(tx, ref, parts.node.cipher.unwrap_key(ref.keys, sender_key))
        decisions += _release_pairs(parts, tx, [key])
    return decisions


def release_checked(
    parts: DeliveryParts, tx: Tx, source: str, event_ids: Iterable[str]
) -> Decisions:
    """The contents of these events are checked: accept those that nothing else holds."""
    intake = Intake(parts, source, last_incarnation(tx, source), tx.now)
    ordered: dict[PairKey, None] = {}
    for id in event_ids:
        found = held_events.find_event_to_check(tx, source, parse_event_id(id))
        if found is not None and found[1].is_numbered:
            ordered[found[0]] = None
        elif found is not None:
            intake.release_checked(tx, *found)
    return [*intake.finish(tx), *_release_pairs(parts, tx, ordered)]


def report_missing_blob(parts: DeliveryParts, tx: Tx, missing: BlobMissing) -> Decisions:
    """Tell the senders that their events wait for the blob.

    A sender that was restored has perhaps forgotten the event too.
    """
    decisions: list[Decision] = []
    for key, envelope in held_events.events_held_for_blob(tx, missing.digest):
        id = envelope.event_id
        decisions += answers.report_hold(parts.writer, tx, key.source, id, BLOB)
    return decisions


def room_changed(parts: DeliveryParts, tx: Tx) -> Decisions:
    """The room may now confirm where the senders of held events live."""
    if next_due(parts, tx) is None:
        return []
    return _release_pairs(parts, tx, parts.holds.suspects.take_pairs(tx))


def next_due(parts: DeliveryParts, tx: Tx) -> int | None:
    """When the first event that is held for its sender has to be decided."""
    return parts.holds.suspects.next_due(tx)


def before_commit(parts: DeliveryParts, tx: Tx) -> Decisions:
    """Rewind cursors to gaps, and release what was held for long enough."""
    parts.gaps.rewind_cursors(tx)
    decisions: list[Decision] = []
    due = next_due(parts, tx)
    if due is not None and due <= tx.now:
        decisions += _release_each(parts, tx, parts.holds.suspects.take_pairs(tx))
    for mailbox in parts.holds.full.names(tx):
        if mailbox_capacity(tx, parts.dispatcher, mailbox) > 0:
            waiting = held_events.pairs_held_for_capacity(tx, mailbox)
            decisions += _release_each(parts, tx, waiting)
            if not held_events.pairs_held_for_capacity(tx, mailbox):
                parts.holds.full.discard(mailbox)
    return decisions


def _release_each(parts: DeliveryParts, tx: Tx, keys: Iterable[PairKey]) -> list[Decision]:
    """Release pairs between operations, so that one failing pair does not fail every group."""
    decisions: list[Decision] = []
    for key in keys:
        released, error = try_operation(tx, partial(_release_pairs, parts, keys=[key]))
        if error is not None:
            released = _refuse_first_held(parts, tx, key, error)
        decisions += released or ()
    return decisions


def _refuse_first_held(
    parts: DeliveryParts, tx: Tx, key: PairKey, error: GatepostError
) -> list[Decision]:
    """Refuse the first held event of a pair, which cannot be released; its sender decides."""
    intake = Intake(parts, key.source, pair_incarnation(tx, key), tx.now)
    held = held_events.first_held(tx, key) or held_events.first_unordered(tx, key)
    if held is not None and held.event_id is not None:
        reason = f"unreadable: {error.message}"
        intake.withdraw_and_report(tx, held.event_id, InboxInput.EXPIRE, reason)
        subject = f"{key.source}/{format_event_id(held.event_id)}"
        parts.incidents.raise_(tx, "unreadable_event", subject, error.message)
    return intake.finish(tx)


def _release_pairs(parts: DeliveryParts, tx: Tx, keys: Iterable[PairKey]) -> list[Decision]:
    decisions: list[Decision] = []
    for key in keys:
        intake = Intake(parts, key[0], pair_incarnation(tx, key), tx.now)
        intake.release_held(tx, key)
        intake.release_unordered(tx, key)
        decisions += intake.finish(tx)
    return decisions


# -- mail that is forwarded


def reopen_number(parts: DeliveryParts, tx: Tx, forward: ForwardMail) -> None:
    """Accepted mail was forwarded and may come back: its pair waits for its end."""
    source = forward.info.source_node if forward.info else None
    if forward.info is None or source in (None, parts.node.id):
        return
    row = find_row(tx, source, parse_event_id(forward.info.event_id))
    if row is not None and row.pair_seq:
        key = row.pair_key(source)
        intake = Intake(parts, source, pair_incarnation(tx, key), tx.now)
        pair = intake.pairs.load_pair(tx, key)
        pair.reopen_number(row.pair_seq)
        held_events.hold_forwarded_number(tx, key, pair, row.pair_seq)
        intake.finish(tx)


def close_forwarded(parts: DeliveryParts, tx: Tx, ended: ForwardEnded) -> Decisions:
    """Forwarded mail has ended: its pair continues without its number."""
    source, original = ended
    row = find_row(tx, source, original)
    if row is None or not row.pair_seq:
        return []
    key = row.pair_key(source)
    intake = Intake(parts, source, pair_incarnation(tx, key), tx.now)
    intake.close_number(tx, key, row.pair_seq)
    return intake.finish(tx)


# -- letting go


def expire_event(parts: DeliveryParts, tx: Tx, source: str, event_id: bytes) -> Decisions:
    """Let go of a held or offered event whose sender never decided about it."""
    intake = Intake(parts, source, last_incarnation(tx, source), tx.now)
    signals.expire_event(intake, tx, event_id)
    return intake.finish(tx)


def disown_undecided(parts: DeliveryParts, tx: Tx) -> tuple[int, Decisions]:
    """In a restored journal, hand held and offered events back to their senders; they may be done.

    Returns how many there were.
    """
    decisions: list[Decision] = []
    rows = select_undecided(tx)
    for source, id, mailbox, corr_id in rows:
        change_state(tx, source, id, InboxInput.RESTORE)
        decisions += answers.report_refusal(
            parts.writer, tx, source, mailbox, format_event_id(id), corr_id, RESTORED
        )
    pairs = held_events.drop_all_events(tx)
    forget_undecided(tx)
    decisions += _release_pairs(parts, tx, pairs)
    return len(rows), decisions
