"""The receiver: batches of other outboxes, events for this gateway itself, and held events."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gatepost.delivery.blob_records import keep_blob
from gatepost.delivery.decisions import (
    BlobMissing,
    Decision,
    Decisions,
    ForwardEnded,
    ForwardMail,
    OwnEvent,
    ReceiptArrived,
    TaskReported,
)
from gatepost.delivery.frames import SkipFrame
from gatepost.delivery.receiver import held_events
from gatepost.delivery.receiver.acceptance import BLOB, ReceiverParts, mailbox_capacity
from gatepost.delivery.receiver.answers import ReceiptAnswers
from gatepost.delivery.receiver.cursors import OutboxCursor, OutboxGaps, last_incarnation
from gatepost.delivery.receiver.inbox_pairs import PairKey, pair_incarnation
from gatepost.delivery.receiver.inbox_states import InboxInput
from gatepost.delivery.receiver.inbox_table import InboxTable, select_undecided
from gatepost.delivery.receiver.intake import Intake
from gatepost.delivery.receiver.offers import forget_undecided
from gatepost.delivery.receiver.signals import apply_dead_letter, apply_signal, expire_event
from gatepost.delivery.sender.receipts import RESTORED
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
    format_event_id,
    parse_event_id,
)
from gatepost.journal.outbox import EventDraft
from gatepost.journal.transaction import Tx

_DRAFT_FIELDS = [name for name in EventDraft.__struct_fields__ if name != "everybody"]


class EventBatch(Struct, frozen=True):
    """Events of one outbox, all that are for us up to `upto`. `now` is the emitter's clock."""

    source: str
    incarnation: str
    first_seq: int
    upto: int
    now: int
    events: list[bytes]


class TakenBatch(NamedTuple):
    """`seq` is how far the outbox is read now; `new` are the events that did not come before."""

    seq: int
    new: list[tuple[Envelope, bytes]]
    decisions: Decisions


class Receiver:
    """Counts since the process started: events that came again, and blobs fetched."""

    def __init__(self, parts: ReceiverParts) -> None:
        self._parts = parts
        self._gaps = OutboxGaps()
        self.duplicates = 0
        self.blobs = 0

    # -- events of other gateways, and of this one for itself

    def take_batch(self, tx: Tx, batch: EventBatch) -> TakenBatch:
        """Take a batch in, all of it or nothing. Of a revoked node nothing counts beyond a seq."""
        cursor = OutboxCursor.load(tx, batch.source, batch.incarnation, batch.first_seq)
        events = [(decode_event(body), body) for body in batch.events]
        last = self._parts.routes.honoured_seqs.get(batch.source)
        if last is not None:
            batch = replace(batch, upto=min(batch.upto, max(last, cursor.seq)))
            events = [each for each in events if each[0].seq <= last]
        new = [each for each in events if self._is_new(each[0], batch.source, cursor)]
        decisions = self._take_events(tx, batch, new)
        cursor.read_through(batch.upto)
        cursor.save(tx)
        return TakenBatch(cursor.seq, new, decisions)

    def take_own(self, tx: Tx, own: OwnEvent) -> Decisions:
        """Take an event of this gateway for itself, in the transaction that appends it."""
        node = self._parts.node
        fields = {name: getattr(own.draft, name) for name in _DRAFT_FIELDS}
        envelope = Envelope(seq=1, source_node_id=node.id, created_at=tx.now, **fields)
        intake = Intake(self._parts, tx, node.id, node.incarnation, tx.now)
        self._handle_event(intake, envelope, b"")
        return self._finish_intake(intake)

    def skip_events(self, tx: Tx, skip: SkipFrame) -> None:
        """The events for us up to here are gone; the next one starts anew."""
        cursor = OutboxCursor.load(tx, skip.source, skip.incarnation, skip.first_seq)
        if skip.upto >= cursor.seq:
            cursor.skip_through(skip.upto)
            cursor.save(tx)
            subject = f"{skip.source}/{skip.upto}"
            detail = f"nothing before this: {skip.why}"
            self._parts.incidents.raise_(tx, "skipped", subject, detail)

    def _take_events(
        self, tx: Tx, batch: EventBatch, new: list[tuple[Envelope, bytes]]
    ) -> Decisions:
        source, incarnation = batch.source, batch.incarnation
        intake = Intake(self._parts, tx, source, incarnation, batch.now)
        intake.inbox.look_up([envelope for envelope, _ in new if envelope.kind in TRACKED_KINDS])
        for envelope, body in new:
            self._handle_event(intake, envelope, body)
        return self._finish_intake(intake)

    def _is_new(self, envelope: Envelope, source: str, cursor: OutboxCursor) -> bool:
        """Whether an event is new; LinkError if it does not belong here, or one was left out."""
        if envelope.source_node_id != source:
            raise LinkError(f"an event of {envelope.source_node_id} in the outbox of {source}")
        if envelope.to_node_id not in (None, self._parts.node.id):
            raise LinkError(f"{source} sent an event that is for {envelope.to_node_id}")
        if cursor.has_read(envelope):
            self.duplicates += 1
            return False
        self._gaps.check_follows(cursor, envelope)
        cursor.read_event(envelope)
        return True

    def _handle_event(self, intake: Intake, envelope: Envelope, body: bytes) -> None:
        if envelope.kind in TRACKED_KINDS:
            intake.take_event(envelope, body)
            return
        try:
            self._handle_untracked(intake, envelope)
        except GatepostError as error:
            subject = f"{intake.source}/{envelope.seq}"
            self._parts.incidents.raise_(intake.tx, "unreadable_event", subject, error.message)

    def _handle_untracked(self, intake: Intake, envelope: Envelope) -> None:
        if envelope.kind == EventKind.ACK:
            receipt = decode_payload(envelope, Receipt)
            if envelope.ref_event_id is not None:
                arrived = ReceiptArrived(intake.source, envelope.ref_event_id, receipt)
                intake.decisions.append(arrived)
            return
        intake.acceptor.flush_runs()
        if envelope.kind in REPORT_KINDS:
            intake.decisions.append(TaskReported(intake.source, envelope))
        elif envelope.kind == EventKind.SIGNAL:
            apply_signal(intake, envelope, decode_payload(envelope, Signal))
        elif envelope.kind == EventKind.DEAD_LETTER:
            apply_dead_letter(intake, envelope, decode_payload(envelope, DeadLetterNotice))

    # -- held events that can be accepted now

    def release_for_blob(self, tx: Tx, digest: str) -> Decisions:
        """A blob was fetched and verified: keep its key, and accept what waited for it."""
        self.blobs += 1
        decisions: list[Decision] = []
        for key, envelope in held_events.events_held_for_blob(tx, digest):
            ref = envelope.payload_ref
            if ref is not None:
                sender_key = self._parts.routes.sender_key(key[0])
                keep_blob(tx, ref, self._parts.node.cipher.unwrap_key(ref.keys, sender_key))
            decisions += self._release_pairs(tx, [key])
        return decisions

    def report_missing_blob(self, tx: Tx, missing: BlobMissing) -> Decisions:
        """Tell the senders that their events wait for the blob.

        A sender that was restored has perhaps forgotten the event too.
        """
        decisions: list[Decision] = []
        for key, envelope in held_events.events_held_for_blob(tx, missing.digest):
            answers = ReceiptAnswers(tx, key[0], self._parts.writer)
            decisions += answers.report_hold(envelope.event_id, BLOB)
        return decisions

    def room_changed(self, tx: Tx) -> Decisions:
        """The room may say now that the senders of held events live where these came from."""
        if self.next_due(tx) is None:
            return []
        return self._release_pairs(tx, self._parts.suspects.take_pairs(tx))

    def next_due(self, tx: Tx) -> int | None:
        """When the first event that is held for its sender has to be decided."""
        return self._parts.suspects.next_due(tx)

    def before_commit(self, tx: Tx) -> Decisions:
        """Rewind cursors to gaps, and release what was held for long enough."""
        self._gaps.rewind_cursors(tx)
        decisions: list[Decision] = []
        due = self.next_due(tx)
        if due is not None and due <= tx.now:
            decisions += self._release_pairs(tx, self._parts.suspects.take_pairs(tx))
        for mailbox in self._parts.full.names(tx):
            if mailbox_capacity(tx, self._parts.dispatcher, mailbox) > 0:
                waiting = held_events.pairs_held_for_capacity(tx, mailbox)
                decisions += self._release_pairs(tx, waiting)
                if not held_events.pairs_held_for_capacity(tx, mailbox):
                    self._parts.full.discard(mailbox)
        return decisions

    def rolled_back(self) -> None:
        self._parts.full.rolled_back()
        self._parts.suspects.rolled_back()

    def _release_pairs(self, tx: Tx, keys: Iterable[PairKey]) -> list[Decision]:
        decisions: list[Decision] = []
        for key in keys:
            intake = Intake(self._parts, tx, key[0], pair_incarnation(tx, key), tx.now)
            intake.release_held(key)
            intake.release_unordered(key)
            decisions += self._finish_intake(intake)
        return decisions

    # -- mail that is forwarded

    def reopen_number(self, tx: Tx, forward: ForwardMail) -> None:
        """Accepted mail leaves this gateway, and may come back: its pair waits for its end."""
        source = forward.info.source_node if forward.info else None
        if forward.info is None or source in (None, self._parts.node.id):
            return
        row = InboxTable(tx, source).find_row(parse_event_id(forward.info.event_id))
        if row is not None and row.pair_seq:
            key = row.pair_key(source)
            intake = Intake(self._parts, tx, source, pair_incarnation(tx, key), tx.now)
            pair = intake.pairs.load_pair(key)
            pair.reopen_number(row.pair_seq)
            intake.held.hold_forwarded_number(key, pair, row.pair_seq)
            self._finish_intake(intake)

    def close_forwarded(self, tx: Tx, ended: ForwardEnded) -> Decisions:
        """Mail that was forwarded has ended: the pair goes on without its number."""
        source, original = ended
        row = InboxTable(tx, source).find_row(original)
        if row is None or not row.pair_seq:
            return []
        key = row.pair_key(source)
        intake = Intake(self._parts, tx, source, pair_incarnation(tx, key), tx.now)
        intake.close_number(key, row.pair_seq)
        return self._finish_intake(intake)

    # -- letting go

    def expire_event(self, tx: Tx, source: str, event_id: bytes) -> Decisions:
        """Let go of a held or offered event whose sender never decided about it."""
        intake = Intake(self._parts, tx, source, last_incarnation(tx, source), tx.now)
        expire_event(intake, event_id)
        return self._finish_intake(intake)

    def disown_undecided(self, tx: Tx) -> tuple[int, Decisions]:
        """In a restored journal: a held or offered event may be done, so its sender has to decide.

        Returns how many there were.
        """
        decisions: list[Decision] = []
        rows = select_undecided(tx)
        for source, id, mailbox, corr_id in rows:
            InboxTable(tx, source).change_state(id, InboxInput.RESTORE)
            answers = ReceiptAnswers(tx, source, self._parts.writer)
            decisions += answers.report_refusal(mailbox, format_event_id(id), corr_id, RESTORED)
        pairs = held_events.drop_all_events(tx)
        forget_undecided(tx)
        decisions += self._release_pairs(tx, pairs)
        return len(rows), decisions

    def _finish_intake(self, intake: Intake) -> list[Decision]:
        self.duplicates += intake.duplicates
        return intake.finish()
