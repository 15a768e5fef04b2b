"""API bodies for journeys, incidents and reviews; the command line decodes the same types."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gatepost.events.envelope import EpochMs

# Review ids become part of a key in the room.
ReviewId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z", max_length=128)]
ReviewStatus = Literal["open", "resolved", "dismissed"]


class JourneyStep(Struct, frozen=True, omit_defaults=True):
    """One event of a journey, reported by `node`. `at` is converted to our clock."""

    at: int
    node: str
    what: str
    event_id: str
    kind: str = ""
    agent: str = ""
    to_agent: str = ""
    peer: str = ""
    detail: str = ""


class Journey(Struct, frozen=True):
    """The journey of an event or a conversation, as reported by all gateways involved.

    `unreachable`: node → why it could not be asked. `clocks`: node → milliseconds its clock is
    ahead of ours, where it differs. `relays`: node → the relay through which it was asked. `notes`:
    sentences about where the steps come from. `ended`: messages that have left the journal, so
    their deliveries have ended.
    """

    ref: str
    corr_id: str
    event_ids: list[str]
    steps: list[JourneyStep]
    unreachable: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    more_in_conversation: int = 0
    notes: list[str] = field(default_factory=list)
    relays: dict[str, str] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)


class IncidentView(Struct, frozen=True, rename={"class_": "class"}):
    """An incident. `source` is the node that raised it, or `pipeline`.

    `ended_at` is None while it lasts, or if its end was not reported. `count` deliveries are
    concerned, as the pipeline counted them.
    """

    id: str
    class_: str
    subject: str
    detail: str
    raised_at: int
    source: str
    corr_ids: list[str]
    status: str = "open"
    settled_at: int | None = None
    settled_by: str | None = None
    ended_at: int | None = None
    count: int | None = None


class IncidentPage(Struct, frozen=True):
    """A page of incidents, newest first.

    `counts`: class → incidents of this gateway that are open and not over. `nodes`: node → class →
    the same count for every node, from the room.
    """

    incidents: list[IncidentView]
    counts: dict[str, int]
    nodes: dict[str, dict[str, int]] = field(default_factory=dict)


class ReviewView(Struct, frozen=True):
    """One misfire to review, and the decision about it."""

    id: str
    capability_id: str
    delegation_skill_version: str
    executor_skill_version: str
    failure_class: str
    count: int
    corr_ids: list[str]
    event_ids: list[str]
    raised_at: int
    status: str
    settled_at: int | None
    settled_by: str | None
    note: str


class EtaAdviceView(Struct, frozen=True):
    capability_id: str
    p50_secs: float
    p95_secs: float
    recommended_eta_seconds: int
    samples: int
    at: int


class NotedCounts(Struct, frozen=True):
    """Number of findings posted, and how many of them were new."""

    given: int
    new: int


class IncidentDecision(Struct, frozen=True, forbid_unknown_fields=True):
    """The decision that an incident needs no further action."""

    id: Annotated[str, Meta(max_length=1000)]
    note: Annotated[str, Meta(max_length=1000)] = ""


class IncidentSweep(Struct, frozen=True, rename={"class_": "class"}, forbid_unknown_fields=True):
    """The decision that all open incidents of a class, or of some age, need no further action.

    `before` is in epoch milliseconds. Without it, incidents of any age match; without `class`,
    those of all classes.
    """

    class_: Annotated[str, Meta(max_length=100)] | None = None
    before: EpochMs | None = None
    note: Annotated[str, Meta(max_length=1000)] = ""


class ReviewDecision(Struct, frozen=True, forbid_unknown_fields=True):
    """The decision to resolve or dismiss a review, with a note."""

    note: Annotated[str, Meta(max_length=1000)] = ""
