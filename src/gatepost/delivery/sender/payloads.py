"""Encrypting the payloads of outgoing events, and again for another node after a re-route."""

from typing import Any, NamedTuple

from msgspec import UNSET, Raw, UnsetType

from gatepost.delivery.blob_records import find_blob
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.sender.delivery_table import OpenDelivery
from gatepost.errors import EncryptionError
from gatepost.events import (
    EncryptedPayload,
    PayloadRef,
    decode_event,
    decode_payload,
    encode_payload,
    format_event_id,
)
from gatepost.journal.transaction import Tx

_SELECT_BODIES = """
SELECT body FROM outbox WHERE event_id = ? AND kind <> 'ack' ORDER BY seq
"""


class EncryptedContent(NamedTuple):
    """The payload of an event, inline or as a reference, and the key that opens it."""

    payload: Raw | UnsetType
    ref: PayloadRef | None
    key: bytes | None


class PayloadEncryption:
    def __init__(self, node: LocalNode, routes: RouteFinder) -> None:
        self._node = node
        self._routes = routes

    def encrypt_for(self, tx: Tx, out: OutgoingEvent, node: str) -> EncryptedContent:
        public_key = self._routes.public_key(node)
        if out.digest:
            return self._wrap_blob_key(tx, out.digest, public_key)
        encrypted, content_key = self._node.cipher.encrypt(
            out.payload, [public_key], event_id=out.event_id, source_node_id=self._node.id
        )
        return EncryptedContent(encode_payload(encrypted), None, content_key)

    def encrypt_again(
        self, tx: Tx, delivery: OpenDelivery, first: Any, node: str
    ) -> EncryptedContent:
        """The payload of the event as it was first appended, for another node."""
        public_key = self._routes.public_key(node)
        if delivery.digest:
            return self._wrap_blob_key(tx, delivery.digest, public_key)
        if delivery.content_key is None:
            return EncryptedContent(UNSET, None, None)
        encrypted = decode_payload(first, EncryptedPayload)
        again = self._node.cipher.replace_recipients(encrypted, delivery.content_key, [public_key])
        return EncryptedContent(encode_payload(again), None, delivery.content_key)

    def decrypt_own(self, delivery: OpenDelivery, first: Any) -> bytes:
        """The clear payload of a delivery, for keeping it as undelivered."""
        if delivery.content_key is None or delivery.digest:
            return EMPTY_PAYLOAD
        return self._node.cipher.decrypt_with_key(
            decode_payload(first, EncryptedPayload),
            delivery.content_key,
            event_id=delivery.id,
            source_node_id=self._node.id,
        )

    def _wrap_blob_key(self, tx: Tx, digest: str, public_key: bytes) -> EncryptedContent:
        content_key, size = find_blob(tx, digest)
        keys = self._node.cipher.wrap_key(content_key, [public_key])
        return EncryptedContent(UNSET, PayloadRef(digest, size, keys), content_key)


def find_first_event(tx: Tx, event_id: bytes) -> Any:
    """The event as it was first appended, payload and all: an envelope, or a draft of this group.

    Attempts after the first have no payload.
    """
    for (body,) in tx.fetch_all(_SELECT_BODIES, (event_id,)):
        envelope = decode_event(body)
        if envelope.payload is not UNSET or envelope.payload_ref is not None:
            return envelope
    id = format_event_id(event_id)
    for draft in tx.appended_drafts:
        if draft.event_id == id and (draft.payload is not UNSET or draft.payload_ref):
            return draft
    raise EncryptionError(f"the payload of {id} is not in the outbox any more")
