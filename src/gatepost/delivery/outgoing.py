"""An event on its way out, before it has a route, a pair number and an encrypted payload."""

from typing import NamedTuple

from msgspec import Struct

from gatepost.events import Order, TaskInfo

EMPTY_PAYLOAD = b"null"


class TurnReply(NamedTuple):
    """The reply of a turn: its payload, or the digest of the blob that holds it."""

    payload: bytes
    digest: str | None = None


class SenderPair(NamedTuple):
    """A pair as its sender numbers it: one sequence of numbers for each origin.

    `origin_node` is the node for which this gateway forwards mail; empty for mail of its own.
    """

    from_agent: str
    to_agent: str
    origin_node: str = ""


class OutgoingEvent(Struct):
    """One event for one agent.

    `origin_event_id` is the event that its sender emitted, if this one is forwarded in its stead;
    `origin_node` is the gateway of that event, unless it is this one.
    """

    event_id: str
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    payload: bytes
    digest: str | None = None
    ref_event_id: str | None = None
    ttl: int | None = None
    traceparent: str | None = None
    replies_to: str = "caller"
    causation_id: str | None = None
    fingerprint: bytes | None = None
    priority: int | None = None
    origin_event_id: str | None = None
    origin_node: str = ""
    order: Order | None = None
    not_before: int | None = None
    max_retries: int | None = None
    task: TaskInfo | None = None

    @property
    def is_unordered(self) -> bool:
        return self.order == "none"

    def due_at(self, now: int) -> int:
        """When its turn may begin."""
        return max(now, self.not_before or 0)

    def expires_at(self, now: int, default_ttl: int) -> int:
        """When it expires: the default TTL begins when the event is due."""
        return self.due_at(now) + default_ttl if self.ttl is None else now + self.ttl

    @property
    def pair(self) -> SenderPair:
        return SenderPair(self.from_agent, self.to_agent, self.origin_node)

    @property
    def agents(self) -> tuple[str, str]:
        """(sender, receiver)"""
        return self.from_agent, self.to_agent
