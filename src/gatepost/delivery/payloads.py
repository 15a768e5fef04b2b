"""Encrypts the payloads of outgoing events, and again for the new node after a re-route."""

from typing import NamedTuple

from msgspec import UNSET, Raw, UnsetType

from gatepost.delivery.blob_records import find_blob
from gatepost.delivery.delivery_table import OpenDelivery
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent
from gatepost.delivery.parts import DeliveryParts
from gatepost.errors import EncryptionError
from gatepost.events import (
    EncryptedPayload,
    Envelope,
    PayloadRef,
    decode_event,
    decode_payload,
    encode_payload,
    format_event_id,
)
from gatepost.journal.outbox_reads import bodies_of
from gatepost.journal.transaction import Tx


class EncryptedContent(NamedTuple):
    """The payload of an event, inline or as a reference, and the key that opens it."""

    payload: Raw | UnsetType
    ref: PayloadRef | None
    key: bytes | None


def encrypt_for(parts: DeliveryParts, tx: Tx, out: OutgoingEvent, node: str) -> EncryptedContent:
    public_key = parts.routes.public_key(node)
    if out.digest:
        return _wrap_blob_key(parts, tx, out.digest, public_key)
    encrypted, content_key = parts.node.cipher.encrypt(
        out.payload, [public_key], event_id=out.event_id, source_node_id=parts.node.id
    )
    return EncryptedContent(encode_payload(encrypted), None, content_key)


def encrypt_again(
    parts: DeliveryParts, tx: Tx, delivery: OpenDelivery, first: Envelope, node: str
) -> EncryptedContent:
    """The payload of the first attempt, encrypted for another node."""
    public_key = parts.routes.public_key(node)
    if delivery.digest:
        return _wrap_blob_key(parts, tx, delivery.digest, public_key)
    if delivery.content_key is None:
        return EncryptedContent(UNSET, None, None)
    encrypted = decode_payload(first, EncryptedPayload)
    again = parts.node.cipher.replace_recipients(encrypted, delivery.content_key, [public_key])
    return EncryptedContent(encode_payload(again), None, delivery.content_key)


def decrypt_own(node: LocalNode, delivery: OpenDelivery, first: Envelope) -> bytes:
    """The clear payload of a delivery, to keep it as undelivered."""
    if delivery.content_key is None or delivery.digest:
        return EMPTY_PAYLOAD
    return node.cipher.decrypt_with_key(
        decode_payload(first, EncryptedPayload),
        delivery.content_key,
        event_id=delivery.id,
        source_node_id=node.id,
    )


def _wrap_blob_key(
    parts: DeliveryParts, tx: Tx, digest: str, public_key: bytes
) -> EncryptedContent:
    content_key, size = find_blob(tx, digest)
    keys = parts.node.cipher.wrap_key(content_key, [public_key])
    return EncryptedContent(UNSET, PayloadRef(digest, size, keys), content_key)


def find_first_event(tx: Tx, event_id: bytes) -> Envelope:
    """The first attempt of an event, with its payload; it may be a draft of this group.

    Attempts after the first have no payload.
    """
    for body in bodies_of(tx, event_id):
        envelope = decode_event(body)
        if envelope.payload is not UNSET or envelope.payload_ref is not None:
            return envelope
    id = format_event_id(event_id)
    for draft in tx.appended_drafts:
        if draft.event_id == id and (draft.payload is not UNSET or draft.payload_ref):
            return draft
    raise EncryptionError(f"the payload of {id} is no longer in the outbox")
