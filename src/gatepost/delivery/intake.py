"""The intake: events of one source, taken in one transaction in the order of their pairs.

Each event is accepted, offered, refused or held; then the events that waited for it are released.
"""

from msgspec import UNSET

from gatepost.delivery import answers
from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.acceptance_check import (
    BLOB,
    CHECK,
    FULL,
    HOLD_REASONS,
    NO_AGENT,
    AcceptanceCheck,
)
from gatepost.delivery.decisions import BlobWanted, CheckWanted, Decision, MailOvertaken
from gatepost.delivery.event_acceptor import EventAcceptor
from gatepost.delivery.event_mail import origin_of
from gatepost.delivery.inbox import held_events
from gatepost.delivery.inbox.held_events import FORWARDED, HeldEvent
from gatepost.delivery.inbox.inbox_pairs import InboxPair, InboxPairs, PairKey
from gatepost.delivery.inbox.inbox_states import (
    FINAL,
    UNDECIDED,
    InboxInput,
    InboxState,
    is_taken_anew,
)
from gatepost.delivery.inbox.inbox_table import (
    InboxRow,
    change_state,
    find_row,
    find_unseen,
    lowest_offered,
    state_of,
)
from gatepost.delivery.inbox.offers import keep_offer, take_offer, withdraw_offers_of
from gatepost.delivery.inbox.source_quota import QUOTA, excess_of_events, excess_of_pairs
from gatepost.delivery.parts import DeliveryParts
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
    """The events that one transaction takes from one source; it lives no longer than that.

    Call `finish` before reading `decisions`.
    """

    def __init__(self, parts: DeliveryParts, source: str, incarnation: str, now: int) -> None:
        self.parts = parts
        self.source = source
        self.decisions: list[Decision] = []
        self.pairs = InboxPairs(incarnation)
        # New events of this batch, and pairs to save at its end.
        self._unseen: set[bytes] = set()
        # Pair → the highest number of an offer that was confirmed in this batch.
        self.confirmed: dict[PairKey, int] = {}
        self._added_pairs = 0
        self._check = AcceptanceCheck(parts, source, now)
        self.acceptor = EventAcceptor(parts, source, now, self._check, self.decisions)

    # -- events

    def take_event(self, tx: Tx, envelope: Envelope, body: bytes) -> None:
        """Take a tracked event. `body` is empty for an event of this gateway itself."""
        if self.acceptor.is_in_run(envelope.event_id):
            self.acceptor.flush_runs(tx)
        state = self.state_of(tx, parse_event_id(envelope.event_id))
        if not is_taken_anew(state):
            self.parts.counts.duplicates += 1
            self.acceptor.flush_runs(tx)
            self._answer_again(tx, envelope, state)
        elif envelope.payload is UNSET and envelope.payload_ref is None:
            # A retry without payload of an unknown event: ask for the whole event.
            self.acceptor.append_receipt(tx, envelope, Receipt(status="refused", reason="resend"))
        elif envelope.to_agent_id is None:
            self.acceptor.refuse_unrecorded(tx, envelope, NO_AGENT)
        elif self._is_for_unknown_agent(tx, envelope):
            # Check this before anything is stored: a peer can name any number of unknown agents.
            self.acceptor.refuse_unrecorded(tx, envelope, NO_AGENT)
        elif envelope.pair_seq:
            self._take_in_order(tx, envelope, body)
        else:
            self._take_unordered(tx, envelope, body)

    def _is_for_unknown_agent(self, tx: Tx, envelope: Envelope) -> bool:
        """Whether the agent is unknown everywhere, and never got mail from this sender here."""
        if envelope.kind == EventKind.REPLY or not self._check.is_unknown(
            tx, envelope.to_agent_id or ""
        ):
            return False
        return (
            not envelope.pair_seq
            or self.pairs.load_pair(tx, pair_key(self.source, envelope)).is_new
        )

    def look_up(self, tx: Tx, envelopes: list[Envelope]) -> None:
        """Find out, for many events at once, which were never seen before."""
        self._unseen = find_unseen(tx, self.source, envelopes)

    def state_of(self, tx: Tx, event_id: bytes) -> InboxState:
        is_unseen = event_id in self._unseen
        return InboxState.UNSEEN if is_unseen else state_of(tx, self.source, event_id)

    def finish(self, tx: Tx) -> list[Decision]:
        """Enqueue the accepted mail and save the pairs; returns the decisions."""
        self.acceptor.flush_runs(tx)
        self.pairs.save_changed(tx)
        return self.decisions

    def _answer_again(self, tx: Tx, envelope: Envelope, state: InboxState) -> None:
        if state is InboxState.HELD:
            held_events.renew_offer(tx, self.source, envelope)
            self._answer_held(tx, envelope.event_id)
        elif state is InboxState.OFFERED and not envelope.offer:
            # Its sender has decided, so it is not an offer any longer.
            id = parse_event_id(envelope.event_id)
            confirm_offer(self, tx, id)
            self.acceptor.flush_runs(tx)
            state = self.state_of(tx, id)
            self._repeat_receipts(tx, envelope, state)
        else:
            self._repeat_receipts(tx, envelope, state)

    def _repeat_receipts(self, tx: Tx, envelope: Envelope, state: InboxState) -> None:
        self.decisions += answers.repeat_receipts(
            self.parts.writer, tx, self.source, envelope, state
        )

    def _report_hold(self, tx: Tx, event_id: str, why: str) -> None:
        self.decisions += answers.report_hold(self.parts.writer, tx, self.source, event_id, why)

    def _answer_held(self, tx: Tx, event_id: str) -> None:
        """A held event comes again: report the hold, and resume the fetch of its blob if needed."""
        found = held_events.find_reason(tx, self.source, parse_event_id(event_id))
        if found is not None:
            why, digest = found
            self.decisions += [] if digest is None else [BlobWanted(digest, self.source)]
            self._report_hold(tx, event_id, why)

    def _take_in_order(self, tx: Tx, envelope: Envelope, body: bytes) -> None:
        key = pair_key(self.source, envelope)
        number = envelope.pair_seq
        if not self.admit_pair(tx, key):
            self._report_hold(tx, envelope.event_id, QUOTA)
            return
        pair = self._load_for_arrival(tx, key, envelope)
        if number > pair.next:
            self._hold_event(tx, key, pair, envelope, body, "order")
        elif pair.offered and not envelope.offer:
            self._hold_event(tx, key, pair, envelope, body, "offer")
        else:
            self._accept_or_hold(tx, key, pair, envelope, body)
            if pair.held:
                self.release_held(tx, key)

    def admit_pair(self, tx: Tx, key: PairKey) -> bool:
        """Admit a pair; False if it is new and its source has too many pairs here."""
        pair = self.pairs.load_pair(tx, key)
        if pair.is_new:
            excess = excess_of_pairs(tx, self.source, self.parts.limits, self._added_pairs)
            pair.is_new = self._report_excess(excess)
            self._added_pairs += not pair.is_new
        return not pair.is_new

    def _admit_held(self, tx: Tx, size: int) -> bool:
        """Admit one more held event of this size, or report the source and return False."""
        return not self._report_excess(excess_of_events(tx, self.source, self.parts.limits, size))

    def _report_excess(self, excess: str) -> bool:
        """Report that the source exceeds its quota, if it does. This gateway has none."""
        if not excess or self.source == self.parts.node.id:
            return False
        self.parts.abuse.report_abuse(self.source, AbuseKind.QUOTA_EXCEEDED, excess)
        return True

    def _hold_event(
        self, tx: Tx, key: PairKey, pair: InboxPair, envelope: Envelope, body: bytes, why: str
    ) -> None:
        if self._admit_event(tx, envelope, body):
            held_events.hold_event(tx, self.parts.holds, key, pair, envelope, body, why)
            if why == FULL:
                # That may take long; the sender must not take the silence for an absent owner.
                self._report_hold(tx, envelope.event_id, why)

    def _admit_event(self, tx: Tx, envelope: Envelope, body: bytes) -> bool:
        """Admit an event to be held or offered; False if its sender is told to ask again."""
        is_held = self.state_of(tx, parse_event_id(envelope.event_id)) is InboxState.HELD
        if is_held or self._admit_held(tx, len(body)):
            return True
        self._report_hold(tx, envelope.event_id, QUOTA)
        return False

    def _take_unordered(self, tx: Tx, envelope: Envelope, body: bytes) -> None:
        """Take an event without a pair number: it waits for no other, and none waits for it."""
        reason = self._reason_against(tx, envelope)
        if reason in HOLD_REASONS:
            self._hold_unordered(tx, envelope, body, reason)
        else:
            self._decide_unordered(tx, envelope, body, reason)

    def _hold_unordered(self, tx: Tx, envelope: Envelope, body: bytes, reason: str) -> None:
        if not self._admit_event(tx, envelope, body):
            return
        held_events.hold_unordered(
            tx, self.parts.holds, pair_key(self.source, envelope), envelope, body, reason
        )
        if reason == FULL:
            self._report_hold(tx, envelope.event_id, reason)

    def _decide_unordered(self, tx: Tx, envelope: Envelope, body: bytes, reason: str) -> None:
        if reason:
            self.acceptor.refuse_event(tx, envelope, reason)
        elif not envelope.offer:
            self.acceptor.accept_event(tx, envelope)
        elif self._admit_event(tx, envelope, body):
            self._keep_offer(tx, envelope, body)

    def _load_for_arrival(self, tx: Tx, key: PairKey, envelope: Envelope) -> InboxPair:
        pair = self.pairs.load_pair(tx, key)
        if pair.incarnation != self.pairs.incarnation:
            pair.begin_incarnation(self.pairs.incarnation, envelope.pair_seq)
            withdraw_offers_of(tx, key, pair)
            held_events.withdraw_held_offers(tx, key, pair)
        pair.advance_to(envelope.pair_base)
        return pair

    def _accept_or_hold(
        self, tx: Tx, key: PairKey, pair: InboxPair, envelope: Envelope, body: bytes
    ) -> None:
        reason = self._reason_against(tx, envelope)
        if reason in HOLD_REASONS:
            self._hold_event(tx, key, pair, envelope, body, reason)
        elif reason:
            # No later number overtakes it until its sender has decided.
            pair.note_refused(envelope.pair_seq)
            self.acceptor.refuse_event(tx, envelope, reason)
        elif not envelope.offer:
            pair.advance_to(envelope.pair_seq + 1)
            self.acceptor.accept_event(tx, envelope)
        elif self._admit_event(tx, envelope, body):
            pair.advance_to(envelope.pair_seq + 1)
            self._accept_offer(tx, pair, envelope, body)

    def _accept_offer(self, tx: Tx, pair: InboxPair, envelope: Envelope, body: bytes) -> None:
        self._keep_offer(tx, envelope, body)
        pair.count_offered(1)

    def _keep_offer(self, tx: Tx, envelope: Envelope, body: bytes) -> None:
        keep_offer(tx, self.source, envelope, body)
        self.acceptor.append_acceptance(tx, envelope, envelope.offer)

    def _reason_against(self, tx: Tx, envelope: Envelope) -> str:
        reason = self._check.reason_against(tx, envelope)
        if reason == BLOB and isinstance(envelope.payload_ref, PayloadRef):
            self.decisions.append(BlobWanted(envelope.payload_ref.digest, self.source))
        elif reason == CHECK:
            self.decisions.append(CheckWanted(self.source))
        return reason

    # -- releasing held events

    def release_held(self, tx: Tx, key: PairKey) -> None:
        """Accept the held events of a pair, in order, up to the first that still has to wait."""
        pair = self.pairs.load_pair(tx, key)
        while pair.held and (held := held_events.first_held(tx, key)) is not None:
            if held.number > pair.next:
                may_go_on = _skip_closed_numbers(pair, held)
            elif held.event_id is None:
                may_go_on = _pass_empty_number(self, tx, key, pair, held)
            else:
                may_go_on = self._release_event(tx, key, pair, held)
            if not may_go_on:
                return
        if not pair.held and pair.is_next_closed():
            pair.advance_to(pair.closed + 1)

    def _release_event(self, tx: Tx, key: PairKey, pair: InboxPair, held: HeldEvent) -> bool:
        """Take the next held event of a pair, unless it still has to wait."""
        envelope = decode_event(held.body)
        reason = self._reason_against(tx, envelope)
        if reason in HOLD_REASONS:
            held_events.keep_waiting(tx, self.parts.holds, key, held, envelope, reason)
            return False
        if pair.offered and not envelope.offer:
            return False
        held_events.remove_number(tx, key, pair, held.number)
        self._accept_or_hold(tx, key, pair, envelope, held.body)
        return True

    def release_unordered(self, tx: Tx, key: PairKey) -> None:
        """Accept the held events of a pair that have no number, as far as the mailbox has capacity.

        An event that still waits for its blob, or for a check, holds up none of the others.
        """
        while (held := held_events.first_unordered(tx, key)) is not None:
            envelope = decode_event(held.body)
            reason = self._reason_against(tx, envelope)
            if reason in HOLD_REASONS:
                held_events.keep_waiting(tx, self.parts.holds, key, held, envelope, reason)
                if reason not in (BLOB, CHECK):
                    held_events.share_reason(tx, key, reason)
                    return
                continue
            held_events.remove_unordered(tx, self.source, parse_event_id(envelope.event_id))
            self._decide_unordered(tx, envelope, held.body, reason)

    def release_checked(self, tx: Tx, key: PairKey, held: HeldEvent) -> None:
        """Accept an event without a number whose content is checked, unless it waits for more."""
        envelope = decode_event(held.body)
        reason = self._reason_against(tx, envelope)
        if reason in HOLD_REASONS:
            held_events.keep_waiting(tx, self.parts.holds, key, held, envelope, reason)
            return
        held_events.remove_unordered(tx, self.source, parse_event_id(envelope.event_id))
        self._decide_unordered(tx, envelope, held.body, reason)

    def close_number(self, tx: Tx, key: PairKey, number: int) -> None:
        """Note that a number of a pair never comes."""
        pair = self.pairs.load_pair(tx, key)
        held_events.end_forwarded_number(tx, key, pair, number)
        if number == pair.next:
            pair.advance_to(number + 1)
        elif number > pair.next and self._admit_held(tx, 0):
            held_events.hold_gone_number(tx, key, pair, number)
        self.release_held(tx, key)

    def close_through(self, tx: Tx, key: PairKey, through: int) -> None:
        """Note that the numbers through `through` never come, except those that are held here."""
        self.pairs.load_pair(tx, key).close_through(through)
        self.release_held(tx, key)

    # -- letting go of events that are not accepted for good

    def withdraw_event(self, tx: Tx, event_id: bytes, input: InboxInput) -> InboxRow | None:
        """Withdraw an event; returns its row as it was, or None if it is accepted for good."""
        row = find_row(tx, self.source, event_id)
        if row is None or row.state in FINAL:
            return None
        if row.state is InboxState.HELD:
            _remove_held(self, tx, row, event_id)
        elif row.state is InboxState.OFFERED:
            take_offer(tx, self.source, event_id)
            _count_decided_offer(self, tx, row.pair_key(self.source), row.pair_seq)
        change_state(tx, self.source, event_id, input)
        return row

    def withdraw_and_report(
        self, tx: Tx, event_id: bytes, input: InboxInput, reason: str
    ) -> InboxRow | None:
        """Withdraw an event, and if it was undecided report that no agent was engaged with it."""
        row = self.withdraw_event(tx, event_id, input)
        if row is not None and row.state in UNDECIDED:
            id = format_event_id(event_id)
            self.decisions += answers.report_refusal(
                self.parts.writer, tx, self.source, row.mailbox, id, row.corr_id, reason
            )
        return row


def pair_key(source: str, envelope: Envelope) -> PairKey:
    to_agent = envelope.to_agent_id or ""
    return PairKey(source, envelope.source_agent_id, to_agent, origin_of(envelope))


def confirm_next_offer(intake: Intake, tx: Tx, event_id: bytes) -> None:
    """Confirm an offer whose `confirm` is further on in the outbox, unless its turn is to come.

    What the outbox decides about earlier numbers of the pair may be further on as well.
    """
    row = find_row(tx, intake.source, event_id)
    if row is None or row.state is not InboxState.OFFERED:
        return
    key = row.pair_key(intake.source)
    if row.pair_seq in (0, lowest_offered(tx, key, intake.confirmed.get(key, 0))):
        confirm_offer(intake, tx, event_id)


def confirm_offer(intake: Intake, tx: Tx, event_id: bytes) -> None:
    envelope = take_offer(tx, intake.source, event_id)
    if envelope is None:
        return
    key = pair_key(intake.source, envelope)
    _count_decided_offer(intake, tx, key, envelope.pair_seq)
    intake.acceptor.accept_confirmed(tx, envelope)
    intake.confirmed[key] = max(envelope.pair_seq, intake.confirmed.get(key, 0))
    if envelope.pair_seq > intake.pairs.load_pair(tx, key).next:
        intake.decisions.append(MailOvertaken(key.mailbox))
    intake.release_held(tx, key)


def _count_decided_offer(intake: Intake, tx: Tx, key: PairKey, number: int) -> None:
    """An offer was confirmed or withdrawn. The offers without a number hold up no others."""
    if number:
        intake.pairs.load_pair(tx, key).count_offered(-1)


def _skip_closed_numbers(pair: InboxPair, held: HeldEvent) -> bool:
    """Advance past numbers that never come, to a held one; False if the next may still come."""
    if not pair.is_next_closed():
        return False
    pair.advance_to(min(held.number, pair.closed + 1))
    return True


def _pass_empty_number(
    intake: Intake, tx: Tx, key: PairKey, pair: InboxPair, held: HeldEvent
) -> bool:
    """Advance past a number without an event; False while its forwarded mail is open."""
    if held.why == FORWARDED and held.number == pair.next:
        return False
    pair.advance_to(held.number + 1)
    held_events.remove_number(tx, key, pair, held.number)
    return True


def _remove_held(intake: Intake, tx: Tx, row: InboxRow, event_id: bytes) -> None:
    if row.pair_seq:
        key = row.pair_key(intake.source)
        held_events.remove_event(tx, key, intake.pairs.load_pair(tx, key), event_id)
    else:
        held_events.remove_unordered(tx, intake.source, event_id)
