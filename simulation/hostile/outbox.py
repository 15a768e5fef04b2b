"""The outbox of a hostile node: well-formed events by default, and any lie on demand."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.clock import Clock
from gatepost.delivery.frames import CommitGroup, EventsFrame, HelloFrame, IncarnationsFrame
from gatepost.events import (
    Envelope,
    EventIdGenerator,
    NodeKey,
    PayloadCipher,
    Receipt,
    Signal,
    encode_event,
    encode_payload,
    event_digest,
    extend_chain,
    genesis_chain,
    sign_head,
)
from gatepost.links.proof import sign_incarnations


class HostileOutbox:
    """Events of `node` in one incarnation. `bodies` are all of them, as they travel.

    Each method that makes an event takes its other fields as they are named in `Envelope`, so that
    a test may state any of them. The outbox fills in only the fields that the test leaves out.
    """

    def __init__(self, node: str, key: NodeKey, clock: Clock, incarnation: str) -> None:
        self.node = node
        self.key = key
        self.incarnation = incarnation
        self.bodies: list[bytes] = []
        self._clock = clock
        self._cipher = PayloadCipher(key, clock)
        self._ids = EventIdGenerator(clock)
        self._last_to: dict[str | None, int] = {}
        self._chain = genesis_chain(node, incarnation)

    @property
    def head(self) -> int:
        return len(self.bodies)

    def next_id(self) -> str:
        return self._ids.next_id()

    # -- events

    def make_event(self, kind: str, to_node: str | None, **fields: Any) -> Envelope:
        """The next event. It is in the outbox once `append` has it."""
        own = {
            "event_id": self.next_id(),
            "seq": self.head + 1,
            "prev_seq_to": self._last_to.get(to_node, 0),
            "source_node_id": self.node,
            "source_agent_id": "mallory",
            "to_node_id": to_node,
            "created_at": self._clock.now(),
        }
        return Envelope(kind=kind, **{**own, **fields})

    def add_message(
        self, to_node: str, to_key: bytes, to_agent: str, payload: bytes = b'"hello"', **fields: Any
    ) -> Envelope:
        """A message without order. `payload` is encrypted for the key as it is, JSON or not.

        With `payload_ref` among the fields it has no payload of its own.
        """
        kind = fields.pop("kind", "message")
        fields.setdefault("event_id", self.next_id())
        if "payload_ref" not in fields:
            fields.setdefault("payload", self._encrypt(payload, to_key, fields["event_id"]))
        return self.append(self.make_event(kind, to_node, to_agent_id=to_agent, **fields))

    def _encrypt(self, payload: bytes, to_key: bytes, event_id: str) -> Raw:
        encrypted, _ = self._cipher.encrypt(
            payload, [to_key], event_id=event_id, source_node_id=self.node
        )
        return encode_payload(encrypted)

    def add_signal(self, to_node: str, ref: str | None, signal: Signal, **fields: Any) -> Envelope:
        given = {"ref_event_id": ref, "payload": encode_payload(signal), **fields}
        return self.append(self.make_event("signal", to_node, **given))

    def add_receipt(self, to_node: str, ref: str, receipt: Receipt, **fields: Any) -> Envelope:
        given = {"ref_event_id": ref, "payload": encode_payload(receipt), **fields}
        return self.append(self.make_event("ack", to_node, **given))

    def append(self, event: Envelope) -> Envelope:
        self.append_body(encode_event(event), event.to_node_id)
        return event

    def append_body(self, body: bytes, to_node: str | None = None) -> None:
        """Append bytes that need not be an event at all."""
        self.bodies.append(body)
        self._last_to[to_node] = self.head

    # -- frames

    def hello_frame(self) -> HelloFrame:
        return HelloFrame(self.node, [(self.incarnation, 1)], self.head, self._clock.now())

    def incarnations_frame(self) -> IncarnationsFrame:
        """The answer to `follow`."""
        return sign_incarnations(self.key, self.node, [(self.incarnation, 1)])

    def events_frame(self, after: int = 0, to_node: str | None = None) -> EventsFrame:
        """All events behind `after`, or those for one node, as on a link with their reader."""
        bodies = self.bodies[after:]
        if to_node is not None:
            bodies = [each for each in bodies if _addressee(each) in (None, to_node)]
        now = self._clock.now()
        return EventsFrame(self.node, self.incarnation, 1, self.head, now, bodies)

    def relay_frame(self, after: int = 0) -> EventsFrame:
        """All events behind `after` as one signed commit group, for a relay that follows."""
        bodies, previous = self.bodies[after:], self._chain_at(after)
        chain = extend_chain(previous, map(event_digest, bodies))
        first, last = after + 1, self.head
        head = sign_head(
            self.key,
            node=self.node,
            incarnation=self.incarnation,
            first=first,
            last=last,
            chain=chain,
        )
        group = CommitGroup(first, last, previous, chain, head.signature)
        now = self._clock.now()
        return EventsFrame(
            self.node, self.incarnation, 1, last, now, bodies, [group], stream="follow"
        )

    def _chain_at(self, seq: int) -> bytes:
        return extend_chain(self._chain, map(event_digest, self.bodies[:seq]))


def _addressee(body: bytes) -> str | None:
    """The node that an event names; None if it names none, or is no event."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Raw])
        named = fields.get("toNodeId", UNSET)
        return None if named is UNSET else msgspec.json.decode(named, type=str)
    except ValueError:
        return None
