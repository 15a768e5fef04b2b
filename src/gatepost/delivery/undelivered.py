"""Undelivered messages: given up by their sender, and kept until they are replayed or discarded.

The last owner of a message may have run its turn without reporting it. Such a message is replayed
only with `force`.
"""

from collections.abc import Callable

from msgspec import UNSET, Raw, Struct

from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.delivery_table import NEVER_SENT
from gatepost.delivery.outbox_writer import RESTORED
from gatepost.delivery.reroute import OpenFilter, give_up_open
from gatepost.delivery.undelivered_table import UndeliveredMessage, select_undelivered
from gatepost.errors import GatepostError, UnknownMessage, UnsafeReplay
from gatepost.events import parse_event_id
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.conditions import join_conditions, optional_millis, optional_value
from gatepost.journal.transaction import Tx
from gatepost.wire.gateway_views import Replayed, Undelivered
from gatepost.wire.operations import Failure

_SELECT_POSITION = "SELECT failed_at, event_id FROM undelivered WHERE event_id = ?"
# For these reasons no journal was lost, so a refusal of the last owner is reliable.
_RELIABLE = ("no_route", "expired", "exhausted", "refused")
# Refusals that only say that the owner's journal does not know the event.
_NO_ANSWER = ("refused: resend", "refused: unknown", f"refused: {RESTORED}")


class UndeliveredFilter(Struct, forbid_unknown_fields=True):
    """Selects messages: all given conditions must hold; none given means every one.

    `agent` is either end; times are epoch seconds.
    """

    event_ids: list[str] | None = None
    agent: str | None = None
    reason: str | None = None
    failed_after: int | None = None
    failed_before: int | None = None
    replayed: bool | None = None

    def where_clause(self) -> tuple[str, list[object]]:
        ids = None if self.event_ids is None else [parse_event_id(id) for id in self.event_ids]
        marks = ", ".join("?" * len(ids or ()))
        return join_conditions(
            [
                (f"event_id IN ({marks})", None if ids is None else [*ids]),
                ("? IN (from_agent, to_agent)", optional_value(self.agent)),
                ("reason = ?", optional_value(self.reason)),
                ("failed_at > ?", optional_millis(self.failed_after)),
                ("failed_at < ?", optional_millis(self.failed_before)),
                ("(replayed_as IS NOT NULL) = ?", optional_value(self.replayed)),
            ]
        )


# Sends a message again and returns the new event's id.
Resend = Callable[[Tx, UndeliveredMessage], str]


def is_safe_to_replay(reason: str, verdict: str | None) -> bool:
    """Whether the message had no turn and cannot have one later."""
    if reason == "no_route":
        return True
    if reason not in _RELIABLE or verdict is None or verdict.startswith(_NO_ANSWER):
        return False
    return verdict in (NEVER_SENT, "processed: expired") or verdict.startswith("refused: ")


def find_undelivered(
    tx: Tx, wanted: UndeliveredFilter, limit: int, after: str = ""
) -> list[UndeliveredMessage]:
    """A page of undelivered messages, oldest first; `after` is the last event id before it."""
    start = _page_start(tx, after) if after else (-1, b"")
    sql, values = wanted.where_clause()
    return select_undelivered(tx, start, sql, values, limit)


def _page_start(tx: Tx, event_id: str) -> tuple[int, bytes]:
    row = tx.fetch_one(_SELECT_POSITION, (parse_event_id(event_id),))
    if row is None:
        raise UnknownMessage(f"no undelivered message {event_id} here")
    return row[0], row[1]


def view_message(message: UndeliveredMessage, *, with_payload: bool) -> Undelivered:
    inline = with_payload and message.digest is None
    return Undelivered(
        message.id,
        message.kind,
        message.from_agent,
        message.to_agent,
        message.corr_id,
        message.node,
        message.reason,
        message.attempts,
        message.failed_at,
        is_safe_to_replay(message.reason, message.verdict),
        message.verdict,
        Raw(message.payload) if inline else UNSET,
        message.digest,
        message.replayed_as,
        message.verdict_at,
        message.subject,
    )


def replay_message(
    tx: Tx, message: UndeliveredMessage, resend: Resend, *, force: bool, actor: str
) -> Replayed:
    """Send a message again as a new event. Its row stays, with the id it was replayed as."""
    mark = tx.begin_operation()
    try:
        _check_replay(message, force)
        new = resend(tx, message)
    except GatepostError as error:
        tx.undo_operation(mark)
        return Replayed(message.id, error=Failure.from_error(error, message.id))
    tx.execute("UPDATE undelivered SET replayed_as = ? WHERE event_id = ?", (new, message.event_id))
    detail = f"as {new}" + (f", by force ({message.verdict or 'no verdict'})" if force else "")
    record_audit_entry(tx, actor, "undelivered.replay", message.id, detail)
    tx.keep_operation()
    return Replayed(message.id, as_event=new)


def _check_replay(message: UndeliveredMessage, force: bool) -> None:
    if message.replayed_as is not None and not force:
        raise UnsafeReplay(f"{message.id} was replayed before, as {message.replayed_as}")
    if not force and not is_safe_to_replay(message.reason, message.verdict):
        said = (
            f"{message.node} says {message.verdict!r}" if message.verdict else "it said nothing yet"
        )
        raise UnsafeReplay(
            f"{message.node or 'its owner'} may have taken {message.id} ({message.reason}; {said}):"
            " look there first, or replay it with force"
        )


def give_up_messages(tx: Tx, core: DeliveryCore, wanted: OpenFilter, limit: int, actor: str) -> int:
    """Give up open messages whose owner never comes back; returns how many."""
    decisions = give_up_open(core.parts, tx, wanted, limit, actor)
    core.coordinator.apply_decisions(tx, decisions)
    for decision in decisions:
        record_audit_entry(tx, actor, "undelivered.give_up", decision.delivery.id, "")
    return len(decisions)


def discard_messages(tx: Tx, wanted: UndeliveredFilter, limit: int, actor: str) -> int:
    """Delete messages and their payloads for good. The rows of their deliveries stay."""
    messages = find_undelivered(tx, wanted, limit)
    for message in messages:
        tx.execute("DELETE FROM undelivered WHERE event_id = ?", (message.event_id,))
        record_audit_entry(tx, actor, "undelivered.discard", message.id, message.reason)
    return len(messages)
