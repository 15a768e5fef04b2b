"""The undelivered messages in the journal, kept so that they can be sent again."""

from msgspec import Struct
from msgspec.structs import astuple

from gatepost.delivery.event_mail import trace_of
from gatepost.delivery.outgoing import OutgoingEvent
from gatepost.events import Envelope, Order, format_event_id, parse_event_id
from gatepost.journal.transaction import Tx


class UndeliveredMessage(Struct, frozen=True, kw_only=True):
    """One row of the table; its fields are the columns.

    `ordering`, `max_retries` and `subject` are those of the message. `replayed_as` is the event
    that sent it again.
    """

    event_id: bytes
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    node: str | None
    reason: str
    attempts: int
    failed_at: int
    payload: bytes
    digest: str | None = None
    traceparent: str | None = None
    ref_id: bytes | None = None
    ordering: Order | None = None
    max_retries: int | None = None
    verdict: str | None = None
    verdict_at: int | None = None
    replayed_as: str | None = None
    subject: str | None = None

    @property
    def id(self) -> str:
        return format_event_id(self.event_id)

    def outgoing_event(self, event_id: str) -> OutgoingEvent:
        """The same message as a new event, caused by the old one."""
        envelope = Envelope(
            event_id=event_id,
            kind=self.kind,
            source_agent_id=self.from_agent,
            to_agent_id=self.to_agent,
            corr_id=self.corr_id,
            ref_event_id=None if self.ref_id is None else format_event_id(self.ref_id),
            causation_id=self.id,
            order=self.ordering,
            max_retries=self.max_retries,
            subject=self.subject,
            trace=trace_of(self.traceparent),
        )
        return OutgoingEvent(envelope, self.payload, self.digest, replies_to="mailbox")


_FIELDS = UndeliveredMessage.__struct_fields__
_KEEP = f"""
INSERT OR IGNORE INTO undelivered ({", ".join(_FIELDS)}) VALUES ({", ".join("?" * len(_FIELDS))})
"""
_SELECT = f"SELECT {', '.join(_FIELDS)} FROM undelivered WHERE (failed_at, event_id) > (?, ?)"


def said_by_event(first: Envelope) -> dict[str, object]:
    """The columns for the fields of a message other than its payload."""
    return {
        "traceparent": None if first.trace is None else first.trace.traceparent,
        "ref_id": None if first.ref_event_id is None else parse_event_id(first.ref_event_id),
        "ordering": first.order,
        "max_retries": first.max_retries,
        "subject": first.subject,
    }


def keep_undelivered(tx: Tx, message: UndeliveredMessage) -> None:
    tx.execute(_KEEP, astuple(message))


def select_undelivered(
    tx: Tx, start: tuple[int, bytes], where: str, values: list[object], limit: int
) -> list[UndeliveredMessage]:
    """Up to `limit` messages behind the position `start`, the oldest first.

    `where` are further conditions, each with its AND.
    """
    query = f"{_SELECT}{where} ORDER BY failed_at, event_id LIMIT ?"
    rows = tx.fetch_all(query, (*start, *values, limit))
    return [UndeliveredMessage(**dict(zip(_FIELDS, row, strict=True))) for row in rows]
