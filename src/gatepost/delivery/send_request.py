"""Requests to send: validation, fingerprint, and the result of an earlier identical request."""

from hashlib import blake2b
from typing import NamedTuple, TypeVar

from msgspec import UNSET, UnsetType

from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent
from gatepost.errors import IdempotencyConflict, InvalidRequest
from gatepost.events import (
    Envelope,
    EventIdGenerator,
    EventKind,
    Trace,
    check_digest,
    fingerprint_content,
    format_event_id,
    parse_event_id,
)
from gatepost.events.reserved_names import require_sender_name
from gatepost.journal.transaction import Tx
from gatepost.mailbox.policy import check_delay
from gatepost.wire.operations import NewSend

_SELECT_KEY = "SELECT fingerprint, event_id FROM idempotency WHERE agent = ? AND key = ?"
_SELECT_SENT = "SELECT from_agent, to_agent, fingerprint FROM delivery WHERE event_id = ?"
_REMEMBER_KEY = """
INSERT INTO idempotency (agent, key, fingerprint, event_id, at) VALUES (?, ?, ?, ?, ?)
"""
# A key is kept as long as its delivery, which may outlive the tombstone time.
_FORGET_KEYS = """
DELETE FROM idempotency WHERE (agent, key) IN (
    SELECT agent, key FROM idempotency i WHERE at <= ?
    AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.event_id = i.event_id) LIMIT ?
)
"""

# The terms of a message that states none, as nearly every message does.
_NO_TERMS = (UNSET,) * 5

T = TypeVar("T")


class UsedKey(NamedTuple):
    """The use of an idempotency key: the fingerprint of the request, and the event it made."""

    fingerprint: bytes
    event_id: str


def check_send(new: NewSend) -> None:
    """Checks beyond decoding: a message has one payload or reference, and one kind of target.

    InvalidRequest if it has not; ReservedName for a sender that only a gateway is.
    """
    require_sender_name(new.from_agent)
    if bool(new.to_agent) != isinstance(new.to_agents, UnsetType):
        raise InvalidRequest("a message needs either `to_agent` or `to_agents`")
    if isinstance(new.payload, UnsetType) == isinstance(new.payload_ref, UnsetType):
        raise InvalidRequest("a message needs either `payload` or `payload_ref`")
    if not isinstance(new.payload_ref, UnsetType):
        check_digest(new.payload_ref)


def fingerprint_payload(new: NewSend) -> bytes | None:
    """The fingerprint of an inline payload; None if the payload is a blob."""
    return None if isinstance(new.payload, UnsetType) else fingerprint_content(bytes(new.payload))


def fingerprint_send(new: NewSend, content: bytes | None = None) -> bytes:
    """A fingerprint that tells a repeated call from a different one with the same key.

    `content` is the fingerprint of the payload before encryption. The digest of an encrypted blob
    would not do: it differs with every upload of the same payload.
    """
    content = content or fingerprint_payload(new) or str(new.payload_ref).encode()
    given = (new.ttl_secs, new.priority, new.order, new.not_before, new.max_retries)
    terms = "" if given == _NO_TERMS else " ".join(str(_value_or_none(each)) for each in given)
    # Without a subject, the fingerprint is the one from before subjects existed.
    if not isinstance(new.subject, UnsetType):
        terms += f" subject={new.subject}"
    mark = blake2b(content, digest_size=16)
    mark.update(f"{len(content)} {new.to_agent} {terms}".encode())
    return mark.digest()


def find_earlier_send(tx: Tx, new: NewSend, fingerprint: bytes) -> str | None:
    """The event an earlier, identical call made; IdempotencyConflict if it was a different one."""
    if not isinstance(new.idempotency_key, UnsetType):
        used = find_used_key(tx, new.from_agent, new.idempotency_key)
        if used is not None and used.fingerprint != fingerprint:
            raise IdempotencyConflict("this idempotency key was used with another message")
        if used is not None:
            return used.event_id
    if isinstance(new.event_id, UnsetType):
        return None
    row = tx.fetch_one(_SELECT_SENT, (parse_event_id(new.event_id),))
    if row is None:
        return None
    if row[:2] != (new.from_agent, new.to_agent) or row[2] not in (None, fingerprint):
        raise IdempotencyConflict(f"event {new.event_id} was another message")
    return new.event_id


def remember_send(tx: Tx, new: NewSend, fingerprint: bytes, event_id: str) -> None:
    """Remember the idempotency key of a message, if it has one."""
    if not isinstance(new.idempotency_key, UnsetType):
        remember_key(tx, new.from_agent, new.idempotency_key, fingerprint, event_id)


def find_used_key(tx: Tx, agent: str, key: str) -> UsedKey | None:
    """The earlier use of an idempotency key by an agent, if there was one."""
    row = tx.fetch_one(_SELECT_KEY, (agent, key))
    return None if row is None else UsedKey(row[0], format_event_id(row[1]))


def remember_key(tx: Tx, agent: str, key: str, fingerprint: bytes, event_id: str) -> None:
    tx.execute(_REMEMBER_KEY, (agent, key, fingerprint, parse_event_id(event_id), tx.now))


def choose_event_id(new: NewSend, ids: EventIdGenerator) -> str:
    return ids.next_id() if new.event_id is UNSET else str(new.event_id)


def outgoing_message(new: NewSend, event_id: str, fingerprint: bytes, now: int) -> OutgoingEvent:
    parse_event_id(event_id)
    ttl = None if isinstance(new.ttl_secs, UnsetType) else int(new.ttl_secs * 1000)
    not_before = None
    if not isinstance(new.not_before, UnsetType):
        not_before = int(new.not_before * 1000)
        check_delay(now, not_before, ttl)
    envelope = Envelope(
        event_id=event_id,
        kind=EventKind.MESSAGE,
        source_agent_id=new.from_agent,
        to_agent_id=new.to_agent,
        corr_id=event_id if new.corr_id is UNSET else new.corr_id,
        expires_at=None if ttl is None else now + ttl,
        order=None if new.order is UNSET else new.order,
        not_before=not_before,
        max_retries=None if new.max_retries is UNSET else new.max_retries,
        subject=None if new.subject is UNSET else new.subject,
        trace=None if new.traceparent is UNSET else Trace(traceparent=new.traceparent),
    )
    return OutgoingEvent(
        envelope,
        EMPTY_PAYLOAD if isinstance(new.payload, UnsetType) else bytes(new.payload),
        None if new.payload_ref is UNSET else new.payload_ref,
        None if new.priority is UNSET else new.priority,
        new.replies,
        fingerprint,
    )


def _value_or_none(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value


def forget_idempotency_keys(tx: Tx, before: int, batch: int) -> int:
    """Forget keys that were used before that time; returns how many."""
    tx.execute(_FORGET_KEYS, (before, batch))
    return tx.changed_rows()
