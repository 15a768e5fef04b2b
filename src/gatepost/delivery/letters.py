"""Undelivered messages: what a sender gave up, looked at, sent again or discarded.

Whoever was asked last may have taken the turn though the sender never heard of it. So one is sent
again only if that cannot be, or if somebody insists.
"""

from collections.abc import Callable

from msgspec import UNSET, Raw, Struct

from gatepost.delivery.sender import NEVER_SENT, RESTORED, Outgoing
from gatepost.errors import GatepostError, UnknownMessage, UnsafeReplay
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Row, Tx
from gatepost.wire import Failure, Replayed, Undelivered

_COLUMNS = """
event_id, kind, from_agent, to_agent, corr_id, node, reason, attempts, failed_at, verdict,
digest, replayed_as, payload, traceparent, ref_id
"""
_FIND = f"SELECT {_COLUMNS} FROM undelivered WHERE (failed_at, event_id) > (?, ?)"
_POSITION = "SELECT failed_at, event_id FROM undelivered WHERE event_id = ?"
# Reasons after which the last owner's refusal tells all there is: no journal was lost.
_TELLING = ("no_route", "expired", "exhausted", "refused")
# Refusals that only say that this journal does not know of it.
_NO_ANSWER = ("refused: resend", "refused: unknown", f"refused: {RESTORED}")


class Filter(Struct, forbid_unknown_fields=True):
    """Which ones: all given conditions must hold; none given means every one.

    `agent` is either end; times are epoch seconds.
    """

    event_ids: list[str] | None = None
    agent: str | None = None
    reason: str | None = None
    failed_after: int | None = None
    failed_before: int | None = None
    replayed: bool | None = None

    def where(self) -> tuple[str, list[object]]:
        ids = None if self.event_ids is None else [parse_event_id(id) for id in self.event_ids]
        marks = ", ".join("?" * len(ids or ()))
        conditions: list[tuple[str, list[object] | None]] = [
            (f"event_id IN ({marks})", None if ids is None else [*ids]),
            ("? IN (from_agent, to_agent)", None if self.agent is None else [self.agent]),
            ("reason = ?", None if self.reason is None else [self.reason]),
            ("failed_at > ?", None if self.failed_after is None else [self.failed_after * 1000]),
            ("failed_at < ?", None if self.failed_before is None else [self.failed_before * 1000]),
            ("(replayed_as IS NOT NULL) = ?", None if self.replayed is None else [self.replayed]),
        ]
        used = [(sql, values) for sql, values in conditions if values is not None]
        sql = "".join(f" AND {condition}" for condition, _ in used)
        return sql, [value for _, values in used for value in values]


class Letter(Struct, frozen=True):
    """One row of the table."""

    event_id: bytes
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    node: str | None
    reason: str
    attempts: int
    failed_at: int
    verdict: str | None
    digest: str | None
    replayed_as: str | None
    payload: bytes
    traceparent: str | None
    ref_id: bytes | None

    @property
    def id(self) -> str:
        return format_event_id(self.event_id)

    def outgoing(self, event_id: str) -> Outgoing:
        """The same message as a new event, caused by the old one."""
        return Outgoing(
            event_id,
            self.kind,
            self.from_agent,
            self.to_agent,
            self.corr_id,
            self.payload,
            digest=self.digest,
            ref_event_id=None if self.ref_id is None else format_event_id(self.ref_id),
            traceparent=self.traceparent,
            replies_to="mailbox",
            causation_id=self.id,
        )


# Sends a letter again and returns the new event's id.
Resend = Callable[[Tx, Letter], str]


def is_safe(reason: str, verdict: str | None) -> bool:
    """Whether its turn can neither have been taken nor be taken yet."""
    if reason == "no_route":
        return True
    if reason not in _TELLING or verdict is None or verdict.startswith(_NO_ANSWER):
        return False
    return verdict in (NEVER_SENT, "processed: expired") or verdict.startswith("refused: ")


def find(tx: Tx, wanted: Filter, limit: int, after: str = "") -> list[Letter]:
    """Oldest first; `after` is the event id the previous page ended with."""
    start = _position(tx, after) if after else (-1, b"")
    sql, values = wanted.where()
    query = f"{_FIND}{sql} ORDER BY failed_at, event_id LIMIT ?"
    return [Letter(*row) for row in tx.fetch_all(query, (*start, *values, limit))]


def _position(tx: Tx, event_id: str) -> Row:
    row = tx.fetch_one(_POSITION, (parse_event_id(event_id),))
    if row is None:
        raise UnknownMessage(f"no undelivered message {event_id} here")
    return row


def view(letter: Letter, *, with_payload: bool) -> Undelivered:
    inline = with_payload and letter.digest is None
    return Undelivered(
        letter.id,
        letter.kind,
        letter.from_agent,
        letter.to_agent,
        letter.corr_id,
        letter.node,
        letter.reason,
        letter.attempts,
        letter.failed_at,
        is_safe(letter.reason, letter.verdict),
        letter.verdict,
        Raw(letter.payload) if inline else UNSET,
        letter.digest,
        letter.replayed_as,
    )


def replay(tx: Tx, letter: Letter, resend: Resend, *, force: bool, actor: str) -> Replayed:
    """Send one again as a new event. It stays, and remembers what it was replayed as."""
    mark = tx.begin_operation()
    try:
        _check(letter, force)
        new = resend(tx, letter)
    except GatepostError as error:
        tx.undo_operation(mark)
        return Replayed(letter.id, error=Failure.from_error(error, letter.id))
    tx.execute("UPDATE undelivered SET replayed_as = ? WHERE event_id = ?", (new, letter.event_id))
    detail = f"as {new}" + (f", by force ({letter.verdict or 'no verdict'})" if force else "")
    record_audit_entry(tx, actor, "undelivered.replay", letter.id, detail)
    tx.keep_operation()
    return Replayed(letter.id, as_event=new)


def _check(letter: Letter, force: bool) -> None:
    if letter.replayed_as is not None and not force:
        raise UnsafeReplay(f"{letter.id} was replayed before, as {letter.replayed_as}")
    if not force and not is_safe(letter.reason, letter.verdict):
        said = f"{letter.node} says {letter.verdict!r}" if letter.verdict else "it said nothing yet"
        raise UnsafeReplay(
            f"{letter.node or 'its owner'} may have taken {letter.id} ({letter.reason}; {said}):"
            " look there first, or replay it with force"
        )


def discard(tx: Tx, wanted: Filter, limit: int, actor: str) -> int:
    """Give up for good, payloads and all; what the deliveries' own records say stays."""
    letters = find(tx, wanted, limit)
    for letter in letters:
        tx.execute("DELETE FROM undelivered WHERE event_id = ?", (letter.event_id,))
        record_audit_entry(tx, actor, "undelivered.discard", letter.id, letter.reason)
    return len(letters)
