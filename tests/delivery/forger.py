"""A gateway whose core is bypassed: it emits events that no honest core would."""

from typing import Any

from msgspec import Struct

from gatepost.events import Envelope, EventKind, encode_payload
from gatepost.journal import Tx
from tests.delivery.mesh import Gate


class Forger:
    """Speaks through the outbox of `gate`, so that links carry and sign everything it says."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def emit(self, to: Gate, content: bytes | Struct = b'"hi"', **fields: Any) -> str:
        """Emit one event; bytes are encrypted for `to`, a struct is a clear payload."""
        return self.emit_many(to, [{"content": content, **fields}])[0]

    def emit_many(self, to: Gate, events: list[dict[str, Any]]) -> list[str]:
        """Emit several events in one commit group."""
        drafts = [self._draft_event(to, **fields) for fields in events]

        def append(tx: Tx) -> None:
            for draft in drafts:
                tx.append_event(draft)

        self.gate.do(append)
        return [draft.event_id for draft in drafts]

    def _draft_event(
        self, to: Gate, content: bytes | Struct | None = b'"hi"', **fields: Any
    ) -> Envelope:
        node = self.gate.node
        event_id = fields.pop("event_id", None) or node.event_ids.next_id()
        if isinstance(content, bytes):
            content, _ = node.cipher.encrypt(
                content, [to.key.public], event_id=event_id, source_node_id=node.id
            )
        given = {} if content is None else {"payload": encode_payload(content)}
        told = {
            "kind": EventKind.MESSAGE,
            "source_agent_id": self.gate.id.upper(),
            "to_node_id": to.id,
            "to_agent_id": to.id.upper(),
        }
        return Envelope(event_id=event_id, **(told | given | fields))
