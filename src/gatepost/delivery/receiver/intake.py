"""The intake: tracked events of one source, taken in one transaction in the order of their pairs.

Each event is accepted, offered, refused or held; whatever it frees is released behind it.
"""

from msgspec import UNSET

from gatepost.delivery.decisions import BlobWanted, Decision, MailOvertaken
from gatepost.delivery.outbox_writer import draft_acceptance
from gatepost.delivery.receiver.acceptance import (
    BLOB,
    FULL,
    HOLD_REASONS,
    NO_AGENT,
    AcceptanceCheck,
    ReceiverParts,
)
from gatepost.delivery.receiver.accepting import EventAcceptor
from gatepost.delivery.receiver.answers import ReceiptAnswers
from gatepost.delivery.receiver.held_events import FORWARDED, HeldEvent, HeldEvents
from gatepost.delivery.receiver.inbox_pairs import InboxPair, InboxPairs, PairKey
from gatepost.delivery.receiver.inbox_states import (
    FINAL,
    UNDECIDED,
    InboxInput,
    InboxState,
    is_taken_anew,
)
from gatepost.delivery.receiver.inbox_table import InboxRow, InboxTable, origin_of
from gatepost.delivery.receiver.offers import OfferTable
from gatepost.delivery.receiver.source_quota import QUOTA, SourceQuota
from gatepost.events import (
    Envelope,
    EventKind,
    PayloadRef,
    Receipt,
    decode_event,
    format_event_id,
    parse_event_id,
)
from gatepost.journal.transaction import Tx


class Intake:
    """`decisions` collects what the other parts of the core have to do; `finish` it first."""

    def __init__(
        self,
        parts: ReceiverParts,
        tx: Tx,
        source: str,
        incarnation: str,
        now: int,
    ) -> None:
        self.tx = tx
        self.source = source
        self.own_incarnation = parts.node.incarnation
        self._quota = SourceQuota(parts, tx, source)
        self.decisions: list[Decision] = []
        self.duplicates = 0
        self.inbox = InboxTable(tx, source)
        self.pairs = InboxPairs(tx, incarnation)
        self.held = HeldEvents(tx, self.inbox, parts.full, parts.suspects)
        self.offers = OfferTable(tx, source, self.inbox)
        self.answers = ReceiptAnswers(tx, source, parts.writer)
        self._check = AcceptanceCheck(parts, tx, source, now)
        self.acceptor = EventAcceptor(
            parts, tx, source, now, self.inbox, self._check, self.decisions
        )

    # -- events

    def take_event(self, envelope: Envelope, body: bytes) -> None:
        """Take a tracked event. `body` is empty for an event of this gateway itself."""
        if self.acceptor.is_in_run(envelope.event_id):
            self.acceptor.flush_runs()
        state = self.inbox.state_of(parse_event_id(envelope.event_id))
        if not is_taken_anew(state):
            self.duplicates += 1
            self.acceptor.flush_runs()
            self._answer_again(envelope, state)
        elif envelope.payload is UNSET and envelope.payload_ref is None:
            # A retry of an event we do not have: we need all of it.
            self.acceptor.append_receipt(envelope, Receipt(status="refused", reason="resend"))
        elif envelope.to_agent_id is None:
            self.acceptor.refuse_unrecorded(envelope, NO_AGENT)
        elif self._is_for_unknown_agent(envelope):
            # Before anything is kept of it: there is no end of unknown agents.
            self.acceptor.refuse_unrecorded(envelope, NO_AGENT)
        elif envelope.pair_seq:
            self._take_in_order(envelope, body)
        else:
            self._take_unordered(envelope, body)

    def _is_for_unknown_agent(self, envelope: Envelope) -> bool:
        """Whether its agent lives nowhere, and never got mail of this sender here."""
        if envelope.kind == EventKind.REPLY or not self._check.is_unknown(
            envelope.to_agent_id or ""
        ):
            return False
        return not envelope.pair_seq or self.pairs.load_pair(pair_key(self.source, envelope)).is_new

    def finish(self) -> list[Decision]:
        """Put away what is accepted and save the pairs; returns the decisions."""
        self.acceptor.flush_runs()
        self.pairs.save_changed()
        return self.decisions

    def _answer_again(self, envelope: Envelope, state: InboxState) -> None:
        if state is InboxState.HELD:
            self.held.renew_offer(self.source, envelope)
            self._answer_held(envelope.event_id)
        elif state is InboxState.OFFERED and not envelope.offer:
            # It is no offer any more: its sender has decided.
            id = parse_event_id(envelope.event_id)
            confirm_offer(self, id)
            state = self.inbox.state_of(id)
            self.decisions += self.answers.repeat_receipts(envelope, state)
        else:
            self.decisions += self.answers.repeat_receipts(envelope, state)

    def _answer_held(self, event_id: str) -> None:
        """Its sender asks where it is: perhaps the fetch of its blob was given up."""
        found = self.held.find_reason(self.source, parse_event_id(event_id))
        if found is not None:
            why, digest = found
            self.decisions += [] if digest is None else [BlobWanted(digest, self.source)]
            self.decisions += self.answers.report_hold(event_id, why)

    def _take_in_order(self, envelope: Envelope, body: bytes) -> None:
        key = pair_key(self.source, envelope)
        number = envelope.pair_seq
        if not self.can_keep_pair(key):
            self.decisions += self.answers.report_hold(envelope.event_id, QUOTA)
            return
        pair = self._load_for_arrival(key, envelope)
        if number > pair.next:
            self._hold_event(key, pair, envelope, body, "order")
        elif pair.offered and not envelope.offer:
            self._hold_event(key, pair, envelope, body, "offer")
        else:
            self._accept_or_hold(key, pair, envelope, body)
            if pair.held:
                self.release_held(key)

    def can_keep_pair(self, key: PairKey) -> bool:
        """Whether a pair is known, or may become so."""
        pair = self.pairs.load_pair(key)
        if pair.is_new:
            pair.is_new = not self._quota.can_add_pair()
        return not pair.is_new

    def _hold_event(
        self, key: PairKey, pair: InboxPair, envelope: Envelope, body: bytes, why: str
    ) -> None:
        if self._can_keep_event(envelope, body):
            self.held.hold_event(key, pair, envelope, body, why)
            if why == FULL:
                # That may take long; the sender must not think that nobody is here.
                self.decisions += self.answers.report_hold(envelope.event_id, why)

    def _can_keep_event(self, envelope: Envelope, body: bytes) -> bool:
        """Whether an event may be held or offered; if not, its sender is told to ask again."""
        is_held = self.inbox.state_of(parse_event_id(envelope.event_id)) is InboxState.HELD
        if is_held or self._quota.can_hold(len(body)):
            return True
        self.decisions += self.answers.report_hold(envelope.event_id, QUOTA)
        return False

    def _take_unordered(self, envelope: Envelope, body: bytes) -> None:
        """Take an event without a pair number: it waits for no other, and none waits for it."""
        reason = self._reason_against(envelope)
        if reason in HOLD_REASONS:
            self._hold_unordered(envelope, body, reason)
        else:
            self._decide_unordered(envelope, body, reason)

    def _hold_unordered(self, envelope: Envelope, body: bytes, reason: str) -> None:
        if not self._can_keep_event(envelope, body):
            return
        self.held.hold_unordered(pair_key(self.source, envelope), envelope, body, reason)
        if reason == FULL:
            self.decisions += self.answers.report_hold(envelope.event_id, reason)

    def _decide_unordered(self, envelope: Envelope, body: bytes, reason: str) -> None:
        if reason:
            self.acceptor.refuse_event(envelope, reason)
        elif not envelope.offer:
            self.acceptor.accept_event(envelope)
        elif self._can_keep_event(envelope, body):
            self._keep_offer(envelope, body)

    def _load_for_arrival(self, key: PairKey, envelope: Envelope) -> InboxPair:
        pair = self.pairs.load_pair(key)
        if pair.incarnation != self.pairs.incarnation:
            pair.begin_incarnation(self.pairs.incarnation, envelope.pair_seq)
            self.offers.withdraw_all(key, pair)
            self.held.withdraw_offers(key, pair)
        pair.advance_to(envelope.pair_base)
        return pair

    def _accept_or_hold(
        self, key: PairKey, pair: InboxPair, envelope: Envelope, body: bytes
    ) -> None:
        reason = self._reason_against(envelope)
        if reason in HOLD_REASONS:
            self._hold_event(key, pair, envelope, body, reason)
        elif reason:
            # Its sender decides what becomes of it; until then no later number overtakes it.
            pair.note_refused(envelope.pair_seq)
            self.acceptor.refuse_event(envelope, reason)
        elif not envelope.offer:
            pair.advance_to(envelope.pair_seq + 1)
            self.acceptor.accept_event(envelope)
        elif self._can_keep_event(envelope, body):
            pair.advance_to(envelope.pair_seq + 1)
            self._accept_offer(pair, envelope, body)

    def _accept_offer(self, pair: InboxPair, envelope: Envelope, body: bytes) -> None:
        self._keep_offer(envelope, body)
        pair.count_offered(1)

    def _keep_offer(self, envelope: Envelope, body: bytes) -> None:
        self.offers.keep_offer(envelope, body)
        self.acceptor.append_receipt(envelope, draft_acceptance(envelope.offer))

    def _reason_against(self, envelope: Envelope) -> str:
        reason = self._check.reason_against(envelope)
        if reason == BLOB and isinstance(envelope.payload_ref, PayloadRef):
            self.decisions.append(BlobWanted(envelope.payload_ref.digest, self.source))
        return reason

    # -- releasing held events

    def release_held(self, key: PairKey) -> None:
        """Accept the held events of a pair, in order, up to the first that still has to wait."""
        pair = self.pairs.load_pair(key)
        while pair.held and (held := self.held.first_held(key)) is not None:
            if held.number > pair.next:
                may_go_on = _skip_closed_numbers(pair, held)
            elif held.event_id is None:
                may_go_on = _pass_empty_number(self, key, pair, held)
            else:
                may_go_on = self._release_event(key, pair, held)
            if not may_go_on:
                return
        if not pair.held and pair.is_next_closed():
            pair.advance_to(pair.closed + 1)

    def _release_event(self, key: PairKey, pair: InboxPair, held: HeldEvent) -> bool:
        """Take the next held event of a pair, unless it still has to wait."""
        envelope = decode_event(held.body)
        reason = self._reason_against(envelope)
        if reason in HOLD_REASONS:
            self.held.keep_waiting(key, held, envelope, reason)
            return False
        if pair.offered and not envelope.offer:
            return False
        self.held.remove_number(key, pair, held.number)
        self._accept_or_hold(key, pair, envelope, held.body)
        return True

    def release_unordered(self, key: PairKey) -> None:
        """Accept the held events of a pair that have no number, as far as the mailbox has capacity.

        An event that still waits for its blob holds up none of the others.
        """
        while (held := self.held.first_unordered(key)) is not None:
            envelope = decode_event(held.body)
            reason = self._reason_against(envelope)
            if reason in HOLD_REASONS:
                self.held.keep_waiting(key, held, envelope, reason)
                if reason != BLOB:
                    self.held.share_reason(key, reason)
                    return
                continue
            self.held.remove_unordered(self.source, parse_event_id(envelope.event_id))
            self._decide_unordered(envelope, held.body, reason)

    def close_number(self, key: PairKey, number: int) -> None:
        """This number of a pair never comes."""
        pair = self.pairs.load_pair(key)
        self.held.end_forwarded_number(key, pair, number)
        if number == pair.next:
            pair.advance_to(number + 1)
        elif number > pair.next and self._quota.can_hold(0):
            self.held.hold_gone_number(key, pair, number)
        self.release_held(key)

    def close_through(self, key: PairKey, through: int) -> None:
        """Of the numbers up to `through`, those that are not held here never come."""
        self.pairs.load_pair(key).close_through(through)
        self.release_held(key)

    # -- letting go of events that are not accepted for good

    def withdraw_event(self, event_id: bytes, input: InboxInput) -> InboxRow | None:
        """Withdraw an event; returns its row as it was, or None if it is accepted for good."""
        row = self.inbox.find_row(event_id)
        if row is None or row.state in FINAL:
            return None
        if row.state is InboxState.HELD:
            _remove_held(self, row, event_id)
        elif row.state is InboxState.OFFERED:
            self.offers.take_offer(event_id)
            _count_decided_offer(self, row.pair_key(self.source), row.pair_seq)
        self.inbox.change_state(event_id, input)
        return row

    def withdraw_and_report(
        self, event_id: bytes, input: InboxInput, reason: str
    ) -> InboxRow | None:
        """Withdraw an event, and if it was undecided report that no agent was engaged with it."""
        row = self.withdraw_event(event_id, input)
        if row is not None and row.state in UNDECIDED:
            id = format_event_id(event_id)
            self.decisions += self.answers.report_refusal(row.mailbox, id, row.corr_id, reason)
        return row


def pair_key(source: str, envelope: Envelope) -> PairKey:
    to_agent = envelope.to_agent_id or ""
    return PairKey(source, envelope.source_agent_id, to_agent, origin_of(envelope))


def confirm_offer(intake: Intake, event_id: bytes) -> None:
    envelope = intake.offers.take_offer(event_id)
    if envelope is None:
        return
    key = pair_key(intake.source, envelope)
    _count_decided_offer(intake, key, envelope.pair_seq)
    intake.acceptor.accept_confirmed(envelope)
    if envelope.pair_seq > intake.pairs.load_pair(key).next:
        intake.decisions.append(MailOvertaken(key.mailbox))
    intake.release_held(key)


def _count_decided_offer(intake: Intake, key: PairKey, number: int) -> None:
    """An offer was confirmed or withdrawn. The offers without a number hold up no others."""
    if number:
        intake.pairs.load_pair(key).count_offered(-1)


def _skip_closed_numbers(pair: InboxPair, held: HeldEvent) -> bool:
    """Advance over numbers that never come, up to a held one; False if the next may still come."""
    if not pair.is_next_closed():
        return False
    pair.advance_to(min(held.number, pair.closed + 1))
    return True


def _pass_empty_number(intake: Intake, key: PairKey, pair: InboxPair, held: HeldEvent) -> bool:
    """Go on behind a number without an event; False while its mail is forwarded and open."""
    if held.why == FORWARDED and held.number == pair.next:
        return False
    pair.advance_to(held.number + 1)
    intake.held.remove_number(key, pair, held.number)
    return True


def _remove_held(intake: Intake, row: InboxRow, event_id: bytes) -> None:
    if row.pair_seq:
        key = row.pair_key(intake.source)
        intake.held.remove_event(key, intake.pairs.load_pair(key), event_id)
    else:
        intake.held.remove_unordered(intake.source, event_id)
