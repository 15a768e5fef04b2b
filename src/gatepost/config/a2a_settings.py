"""Settings of the door for A2A."""

from typing import Annotated

from msgspec import Meta

from gatepost.config.section import SettingsSection


class A2aSettings(SettingsSection, frozen=True, kw_only=True):
    """Clients of A2A, and agents of A2A elsewhere."""

    agents: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")], ...],
        Meta(
            max_length=1000,
            description="Agents that clients of A2A can reach, beside those that publish a"
            " capability.",
        ),
    ] = ()
    public_cards: Annotated[
        bool,
        Meta(description="Show agent cards to anybody who can reach this gateway."),
    ] = True
    anonymous_agent: Annotated[
        str,
        Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z",
            max_length=128,
            description="Agent as which clients without a token send their tasks. Default: they are"
            " refused.",
        ),
    ] = ""
    max_streams: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Streams and waiting calls of A2A at the same time."),
    ] = 256
    max_streams_per_caller: Annotated[
        int, Meta(ge=1, le=10_000, description="How many of these one caller can have.")
    ] = 16
    max_push_per_caller: Annotated[
        int,
        Meta(ge=0, le=1000, description="Push notifications that one caller can have set up."),
    ] = 50
    allow_private_push: Annotated[
        bool,
        Meta(
            description="Send push notifications to this machine, to private networks, and without"
            " TLS. Callers choose the addresses."
        ),
    ] = False
    outside_deadline_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="How long an agent of A2A elsewhere has for a message or task.",
        ),
    ] = 86_400.0
