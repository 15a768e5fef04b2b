"""Settings of the rendezvous: the descriptor of the mesh, and joining with the join secret."""

from typing import Annotated, Literal

from msgspec import Meta

from gatepost.config.section import SettingsSection


class BootstrapSettings(SettingsSection, frozen=True, kw_only=True):
    """How machines that are not in the mesh yet find it and join it."""

    serve_descriptor: Annotated[
        bool,
        Meta(
            description="Show the descriptor of the mesh, with the names and addresses of its"
            " nodes, to anybody who can reach this gateway."
        ),
    ] = True
    accept_joins: Annotated[
        bool,
        Meta(description="Let machines join through this gateway that have the join secret."),
    ] = True
    tier: Annotated[
        Literal["edge", "backbone"],
        Meta(description="Tier of the machines that join with the join secret."),
    ] = "edge"
    attempts_per_min: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Attempts to join with a join secret that one address may make a minute.",
        ),
    ] = 10
