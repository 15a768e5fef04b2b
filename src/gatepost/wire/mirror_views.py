"""API bodies of the send mirror; the migration tools decode the same types."""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType


class MirrorSwitch(Struct, frozen=True, forbid_unknown_fields=True):
    on: bool


class MirroredMessage(Struct, frozen=True, omit_defaults=True):
    """A message that was sent through the gateway. A large payload is named by its digest.

    For a task that was created by the hub's API, the payload is its request.
    """

    number: int
    event_id: str
    from_agent: str
    to_agent: str
    corr_id: str
    sent_at: int
    payload: Raw | UnsetType = UNSET
    payload_ref: str | None = None
    is_task: bool = False


class MirrorPage(Struct, frozen=True):
    """The oldest messages that wait to be mirrored, and how many wait."""

    on: bool
    waiting: int
    messages: list[MirroredMessage]


class MirrorDone(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages up to this number are in the legacy document."""

    through: Annotated[int, Meta(ge=0, le=2**53)]
