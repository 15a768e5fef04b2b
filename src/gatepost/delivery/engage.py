"""The third transaction, `engage`: the turn of an agent ends, and its sender is told.

An ack brings the reply of the turn. The reply is a separate event, for the agent that sent the
message; the receipt `processed` follows it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Raw

from gatepost.delivery.blob_records import blob_fingerprint
from gatepost.delivery.close import apply_reply
from gatepost.delivery.decisions import Decisions, DeliveryEnded, ReplyArrived, TurnEnded
from gatepost.delivery.event_mail import decode_info, trace_of
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent, TurnReply
from gatepost.delivery.parts import DeliveryParts
from gatepost.delivery.send import (
    append_kept_reply,
    can_deliver_here,
    deliver_here,
    emit_event,
)
from gatepost.errors import MailboxFull, NoRoute, UnknownBlob
from gatepost.events import Envelope, EventKind, fingerprint_content
from gatepost.events.reserved_names import unqualify_sender
from gatepost.journal.transaction import Tx
from gatepost.mailbox import ClosedMail
from gatepost.mailbox.enqueue import pair_of_mail
from gatepost.mailbox.lookup import find_meta, pair_ends
from gatepost.routing import Route
from gatepost.wire.operations import Failure

_PAIRS_CACHED = 10_000


class GivenReplies(NamedTuple):
    """The replies of an ack and their fingerprints by lease handle, and the failed ones."""

    replies: dict[str, TurnReply]
    marks: dict[str, bytes]
    failures: list[Failure]


_NO_REPLIES = GivenReplies({}, {}, [])


def read_replies(tx: Tx, inline: Mapping[str, Raw], refs: Mapping[str, str]) -> GivenReplies:
    """Look up the replies of an ack, inline or uploaded before as blobs."""
    if not inline and not refs:
        return _NO_REPLIES
    given = GivenReplies({}, {}, [])
    for handle, raw in inline.items():
        payload = bytes(raw)
        given.replies[handle] = TurnReply(payload)
        given.marks[handle] = fingerprint_content(payload)
    for handle, digest in refs.items():
        try:
            given.marks[handle] = blob_fingerprint(tx, digest)
        except UnknownBlob as error:
            given.failures.append(Failure.from_error(error, handle))
        else:
            given.replies[handle] = TurnReply(EMPTY_PAYLOAD, digest)
    return given


class TurnReader:
    """Finds the turn of closed mail. Caches pairs, because an ack names its pair by number only."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[str, str]] = {}

    def read_turn(self, tx: Tx, closed: ClosedMail, reply: TurnReply | None) -> TurnEnded | None:
        """The turn that closed a mail; None if the mail was enqueued without an event."""
        meta = closed.meta or find_meta(tx, closed.mail_id)
        if meta is None:
            return None
        sender, mailbox = self._find_pair(tx, pair_of_mail(closed.mail_id))
        info = decode_info(meta)
        return TurnEnded(info, sender, mailbox, closed.outcome, closed.reason, reply)

    def rolled_back(self) -> None:
        self._pairs.clear()

    def _find_pair(self, tx: Tx, pair: int) -> tuple[str, str]:
        """(sender, mailbox) of a pair. Ids of pairs are never reused."""
        found = self._pairs.get(pair)
        if found is None:
            sender, mailbox = pair_ends(tx, pair)
            if len(self._pairs) >= _PAIRS_CACHED:
                self._pairs.clear()
            found = self._pairs[pair] = (unqualify_sender(sender), mailbox)
        return found


# -- the replies of turns


def send_reply(parts: DeliveryParts, tx: Tx, turn: TurnEnded) -> Decisions | None:
    """Send the reply of a turn; None if there is none, or it cannot be sent.

    It goes to no other node than the sender's.
    """
    if turn.reply is None:
        return None
    info = turn.info
    envelope = Envelope(
        event_id=parts.node.event_ids.next_id(),
        kind=EventKind.REPLY,
        source_agent_id=turn.to_agent,
        to_agent_id=turn.from_agent,
        corr_id=info.corr_id,
        ref_event_id=info.event_id,
        # The replies to unordered messages do not wait for each other either.
        order="none" if info.order == "none" else None,
        trace=trace_of(info.traceparent),
    )
    out = OutgoingEvent(envelope, turn.reply.payload, turn.reply.digest)
    if info.source_node in (None, parts.node.id):
        return _reply_here(parts, tx, out, info.event_id, turn.reply)
    try:
        return emit_event(parts, tx, out, Route(info.source_node or "", "reply"))
    except NoRoute as error:
        parts.incidents.raise_(tx, "reply_lost", out.event_id, error.message)
        return None


def _reply_here(
    parts: DeliveryParts, tx: Tx, out: OutgoingEvent, ref: str, reply: TurnReply
) -> Decisions:
    """End the delivery here; the reply is mail only if the sender of the message wants it."""
    here = parts.node.id
    decisions = apply_reply(parts, tx, ReplyArrived(here, ref, reply))
    wanted = any(
        isinstance(each, DeliveryEnded) and each.replies_to == "mailbox" for each in decisions
    )
    if not wanted or not parts.agents.is_registered(tx, out.to_agent):
        append_kept_reply(parts, tx, out)
        return decisions
    route = Route(here, "local")
    if can_deliver_here(parts, tx, out, route):
        try:
            deliver_here(parts, tx, out, route)
        except MailboxFull:
            # Nothing was written yet. Emitted to ourselves instead, the reply is held.
            pass
        else:
            return decisions
    return (*decisions, *emit_event(parts, tx, out, route))
