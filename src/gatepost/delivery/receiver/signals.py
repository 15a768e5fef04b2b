"""Signals and dead letters: a sender's later decisions about events it has sent.

An event that was accepted for good stays accepted: no later decision changes that.
"""

from gatepost.delivery.decisions import HoldReported, ReaderRestored, TransferSignal
from gatepost.delivery.receiver.inbox_pairs import PairKey
from gatepost.delivery.receiver.inbox_states import InboxInput, InboxState
from gatepost.delivery.receiver.intake import Intake, confirm_offer, pair_key
from gatepost.delivery.receiver.resuming import note_resumed
from gatepost.delivery.transfers import TRANSFER_SIGNALS
from gatepost.events import DeadLetterNotice, Envelope, Signal, parse_event_id


def apply_signal(intake: Intake, envelope: Envelope, signal: Signal) -> None:
    ref = envelope.ref_event_id
    if signal.signal in TRANSFER_SIGNALS:
        intake.decisions.append(TransferSignal(intake.source, signal))
    elif signal.signal == "pair_closed" and signal.from_agent and signal.to_agent:
        agents = (signal.from_agent, signal.to_agent)
        key = PairKey(intake.source, *agents, signal.origin_node_id or "")
        if intake.can_keep_pair(key):
            intake.close_through(key, signal.through)
    elif signal.signal == "restored" and signal.text:
        position = (signal.incarnation or "", signal.through)
        intake.decisions.append(ReaderRestored(intake.source, signal.text, *position))
    elif signal.signal == "resumed":
        if signal.text == intake.own_incarnation:
            note_resumed(intake.tx, intake.source)
    elif ref is None:
        return
    elif signal.signal == "held":
        intake.decisions.append(HoldReported(intake.source, ref, signal.reason or ""))
    elif signal.signal in _DECISIONS:
        _DECISIONS[signal.signal](intake, parse_event_id(ref))
    elif signal.signal == "expire":
        _expire_or_answer(intake, envelope, ref)
    elif signal.signal == "status_request":
        _answer_status_request(intake, envelope, ref)


def apply_dead_letter(intake: Intake, envelope: Envelope, letter: DeadLetterNotice) -> None:
    """The sender waits no more: let go of the event, and go on without its number."""
    if envelope.ref_event_id is None:
        return
    intake.withdraw_and_report(
        parse_event_id(envelope.ref_event_id), InboxInput.GIVE_UP, "given_up"
    )
    if envelope.to_agent_id is not None and intake.can_keep_pair(pair_key(intake.source, envelope)):
        intake.close_number(pair_key(intake.source, envelope), letter.pair_seq)


def expire_event(intake: Intake, event_id: bytes) -> None:
    """Let go of a held or offered event whose sender never decided about it."""
    row = intake.withdraw_and_report(event_id, InboxInput.EXPIRE, "expired")
    if row is not None:
        intake.close_number(row.pair_key(intake.source), row.pair_seq)


def _let_lapse(intake: Intake, event_id: bytes) -> None:
    """The sender was restored and forgot the event, so nobody will decide about it any more."""
    row = intake.withdraw_event(event_id, InboxInput.LAPSE)
    if row is not None and row.pair_seq:
        intake.release_held(row.pair_key(intake.source))


def _withdraw_event(intake: Intake, event_id: bytes) -> None:
    """The sender routed it elsewhere. Its number is open again: if the pair comes back to this
    node, it waits until that number is closed.
    """
    row = intake.withdraw_event(event_id, InboxInput.WITHDRAW)
    if row is not None and row.pair_seq:
        intake.pairs.load_pair(row.pair_key(intake.source)).go_back_to(row.pair_seq)


def _expire_or_answer(intake: Intake, envelope: Envelope, ref: str) -> None:
    """It has expired: take it back while it is held, or say what became of it."""
    row = intake.inbox.find_row(parse_event_id(ref))
    # The receipt for an offer is under way, and its sender decides when it comes.
    if row is not None and row.state is InboxState.HELD:
        expire_event(intake, parse_event_id(ref))
    else:
        _answer_status_request(intake, envelope, ref)


def _answer_status_request(intake: Intake, envelope: Envelope, ref: str) -> None:
    row = intake.inbox.find_row(parse_event_id(ref))
    if row is not None and row.state is InboxState.HELD:
        # Only a sender that was restored asks about a held event, and the numbers this one waits
        # for never come.
        key = row.pair_key(intake.source)
        intake.pairs.load_pair(key).forget_refused()
        intake.close_through(key, row.pair_seq - 1)
        return
    corr_id = envelope.corr_id or ref
    intake.decisions += intake.answers.answer_status_request(ref, corr_id, row)


_DECISIONS = {"confirm": confirm_offer, "forgotten": _let_lapse, "withdraw": _withdraw_event}
