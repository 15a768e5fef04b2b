"""Signals and dead letters: a sender's later decisions about events it has sent.

An event that was accepted for good stays accepted: no later decision changes that.
"""

from gatepost.delivery.answers import answer_status_request
from gatepost.delivery.decisions import (
    HoldReported,
    ReaderRestored,
    TaskReportWanted,
    TransferSignal,
)
from gatepost.delivery.inbox.inbox_pairs import PairKey
from gatepost.delivery.inbox.inbox_states import InboxInput, InboxState
from gatepost.delivery.inbox.inbox_table import find_row
from gatepost.delivery.inbox.resuming import note_resumed
from gatepost.delivery.intake import Intake, confirm_offer, pair_key
from gatepost.delivery.transfers import TRANSFER_SIGNALS
from gatepost.events import DeadLetterNotice, Envelope, Signal, parse_event_id
from gatepost.journal.transaction import Tx


def apply_signal(intake: Intake, tx: Tx, envelope: Envelope, signal: Signal) -> None:
    ref = envelope.ref_event_id
    if signal.signal in TRANSFER_SIGNALS:
        intake.decisions.append(TransferSignal(intake.source, signal))
    elif signal.signal == "pair_closed" and signal.from_agent and signal.to_agent:
        agents = (signal.from_agent, signal.to_agent)
        key = PairKey(intake.source, *agents, signal.origin_node_id or "")
        if intake.admit_pair(tx, key):
            intake.close_through(tx, key, signal.through)
    elif signal.signal == "restored" and signal.text:
        position = (signal.incarnation or "", signal.through)
        intake.decisions.append(ReaderRestored(intake.source, signal.text, *position))
    elif signal.signal == "resumed":
        if signal.text == intake.parts.node.incarnation:
            note_resumed(tx, intake.source)
    elif ref is None:
        return
    elif signal.signal == "held":
        intake.decisions.append(HoldReported(intake.source, ref, signal.reason or ""))
    elif signal.signal in _DECISIONS:
        _DECISIONS[signal.signal](intake, tx, parse_event_id(ref))
    elif signal.signal == "expire":
        _expire_or_answer(intake, tx, envelope, ref)
    elif signal.signal == "status_request":
        _answer_status_request(intake, tx, envelope, ref)
    elif signal.signal == "report_request":
        intake.decisions.append(TaskReportWanted(intake.source, ref))


def apply_dead_letter(intake: Intake, tx: Tx, envelope: Envelope, letter: DeadLetterNotice) -> None:
    """The sender gave the event up: drop it, and continue without its number."""
    if envelope.ref_event_id is None:
        return
    intake.withdraw_and_report(
        tx, parse_event_id(envelope.ref_event_id), InboxInput.GIVE_UP, "given_up"
    )
    if envelope.to_agent_id is not None and intake.admit_pair(
        tx, pair_key(intake.source, envelope)
    ):
        intake.close_number(tx, pair_key(intake.source, envelope), letter.pair_seq)


def expire_event(intake: Intake, tx: Tx, event_id: bytes) -> None:
    """Let go of a held or offered event whose sender never decided about it."""
    row = intake.withdraw_and_report(tx, event_id, InboxInput.EXPIRE, "expired")
    if row is not None:
        intake.close_number(tx, row.pair_key(intake.source), row.pair_seq)


def _let_lapse(intake: Intake, tx: Tx, event_id: bytes) -> None:
    """The restored sender forgot the event, so it will never confirm or withdraw it."""
    row = intake.withdraw_event(tx, event_id, InboxInput.LAPSE)
    if row is not None and row.pair_seq:
        intake.release_held(tx, row.pair_key(intake.source))


def _withdraw_event(intake: Intake, tx: Tx, event_id: bytes) -> None:
    """The sender routed it elsewhere. Its number is open again: if the pair comes back to this
    node, it waits until that number is closed.
    """
    row = intake.withdraw_event(tx, event_id, InboxInput.WITHDRAW)
    if row is not None and row.pair_seq:
        intake.pairs.load_pair(tx, row.pair_key(intake.source)).go_back_to(row.pair_seq)


def _expire_or_answer(intake: Intake, tx: Tx, envelope: Envelope, ref: str) -> None:
    """An event has expired: withdraw it while it is held, or report its outcome."""
    row = find_row(tx, intake.source, parse_event_id(ref))
    # The receipt for an offer is under way; its sender decides when it arrives.
    if row is not None and row.state is InboxState.HELD:
        expire_event(intake, tx, parse_event_id(ref))
    else:
        _answer_status_request(intake, tx, envelope, ref)


def _answer_status_request(intake: Intake, tx: Tx, envelope: Envelope, ref: str) -> None:
    row = find_row(tx, intake.source, parse_event_id(ref))
    if row is not None and row.state is InboxState.HELD:
        # Only a restored sender asks about a held event, and it forgot the earlier numbers of the
        # pair.
        key = row.pair_key(intake.source)
        intake.pairs.load_pair(tx, key).forget_refused()
        intake.close_through(tx, key, row.pair_seq - 1)
        return
    corr_id = envelope.corr_id or ref
    intake.decisions += answer_status_request(
        intake.parts.writer, tx, intake.source, ref, corr_id, row
    )


_DECISIONS = {"confirm": confirm_offer, "forgotten": _let_lapse, "withdraw": _withdraw_event}
