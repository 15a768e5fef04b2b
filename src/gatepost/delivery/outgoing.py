"""An event on its way out, before it has a route, a pair number and an encrypted payload."""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gatepost.events import Envelope, TaskInfo, Trace

EMPTY_PAYLOAD = b"null"
_NO_TRACE = Trace()


class TurnReply(NamedTuple):
    """The reply of a turn: its payload, or the digest of the blob that holds it."""

    payload: bytes
    digest: str | None = None


class SenderPair(NamedTuple):
    """A pair as its sender numbers it: one sequence of numbers for each origin.

    `origin_node` is the node for which this gateway forwards mail; empty for its own mail.
    """

    from_agent: str
    to_agent: str
    origin_node: str = ""


class OutgoingEvent(Struct):
    """One event for one agent: its unfinished envelope, and values that are not part of it.

    The payload is clear; with a `digest` it is the blob of that digest instead. Without a
    `priority` the event takes the one of its route. `eta_secs` is for the receipt of a task that
    goes to an agent of this gateway.

    In the envelope, `expires_at` is set only if the sender chose it, and `origin_node_id` only if
    it is another gateway. The trace has at most a traceparent, and the version of the capability
    index by which a task was routed.
    """

    envelope: Envelope
    payload: bytes
    digest: str | None = None
    priority: int | None = None
    replies_to: str = "caller"
    fingerprint: bytes | None = None
    eta_secs: int | None = None

    @property
    def event_id(self) -> str:
        return self.envelope.event_id

    @property
    def kind(self) -> str:
        return self.envelope.kind

    @property
    def to_agent(self) -> str:
        return self.envelope.to_agent_id or ""

    @property
    def corr_id(self) -> str:
        return self.envelope.corr_id or self.envelope.event_id

    @property
    def is_unordered(self) -> bool:
        return self.envelope.order == "none"

    @property
    def pair(self) -> SenderPair:
        event = self.envelope
        return SenderPair(
            event.source_agent_id, event.to_agent_id or "", event.origin_node_id or ""
        )

    @property
    def agents(self) -> tuple[str, str]:
        """(sender, receiver)"""
        return self.envelope.source_agent_id, self.to_agent

    def due_at(self, now: int) -> int:
        """When its turn may begin."""
        return max(now, self.envelope.not_before or 0)

    def expires_at(self, now: int, default_ttl: int) -> int:
        """When it expires: the default TTL begins when the event is due."""
        expires = self.envelope.expires_at
        return self.due_at(now) + default_ttl if expires is None else expires

    def set_task(self, info: TaskInfo, policy_version: int | None) -> None:
        trace = replace(self.envelope.trace or _NO_TRACE, policy_version=policy_version)
        self.envelope = replace(self.envelope, task=info, trace=trace)

    def priority_on(self, route_priority: int) -> int:
        return route_priority if self.priority is None else self.priority

    def first_trace(self, decision: str | None = None, version: int | None = None) -> Trace:
        """The trace of its first attempt, by a route with this decision and version.

        The version of the capability index precedes the one of a routing rule.
        """
        given = self.envelope.trace or _NO_TRACE
        return Trace(
            attempt=1,
            route_decision=decision,
            policy_version=version if given.policy_version is None else given.policy_version,
            traceparent=given.traceparent,
        )
