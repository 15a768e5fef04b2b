"""What the local API says of journeys, incidents and reviews; the command line reads the same."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

# Part of a key in the room.
ReviewId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z", max_length=128)]
ReviewStatus = Literal["open", "resolved", "dismissed"]


class Step(Struct, frozen=True, omit_defaults=True):
    """Something a node says happened. `at` is by our clock, as far as clocks can be compared."""

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
    """`unreachable` says why other gateways could not be asked, by name.

    `clocks` are those which differ from ours, with the milliseconds they are ahead.
    """

    ref: str
    corr_id: str
    event_ids: list[str]
    steps: list[Step]
    unreachable: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    more_in_conversation: int = 0


class IncidentView(Struct, frozen=True, rename={"class_": "class"}):
    """`source` is the node that saw it, or `pipeline`."""

    id: str
    class_: str
    subject: str
    detail: str
    raised_at: int
    source: str
    corr_ids: list[str]


class Incidents(Struct, frozen=True):
    """A page, newest first, and how many there are of each class in all."""

    incidents: list[IncidentView]
    counts: dict[str, int]


class ReviewView(Struct, frozen=True):
    """One misfire, and what was decided about it."""

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


class Noted(Struct, frozen=True):
    """How many were new, of how many that were given."""

    given: int
    new: int


class Settling(Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody found when looking at a review."""

    note: Annotated[str, Meta(max_length=1000)] = ""
