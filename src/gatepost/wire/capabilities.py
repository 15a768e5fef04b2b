"""Capabilities on the wire: as a gateway shows them to its operator."""

from msgspec import Struct


class CapabilityView(Struct, omit_defaults=True):
    """A capability of the room. `published_here`: this gateway publishes it.

    `note` names checks that were skipped when it was published.
    """

    capability_id: str
    name: str
    version: str
    owner_agent_id: str
    delegation_skill: str
    executor_skill: str
    default_eta_seconds: int
    contract: str
    status: str
    eligible_agent_ids: tuple[str, ...] = ()
    policy_version: int = 0
    published_here: bool = False
    progress_seconds: int | None = None
    note: str = ""


class InstallView(Struct, omit_defaults=True):
    """The delegation skill of a capability at one agent. `at` is in epoch milliseconds."""

    agent: str
    version: str
    status: str
    at: int | None = None
    error: str | None = None


class CapabilityHealth(Struct):
    """The health of a capability: tasks requested here by state, skill installs, open reviews."""

    capability: CapabilityView
    tasks: dict[str, int]
    installs: list[InstallView]
    open_reviews: int
