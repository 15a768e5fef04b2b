"""Settings of the mesh's transports that need other programs: WireGuard and Tor."""

from typing import Annotated

from msgspec import Meta

from gatepost.config.section import SettingsSection


class TorSettings(SettingsSection, frozen=True, kw_only=True):
    """The Tor of this gateway, if the mesh is in Tor."""

    torrc: Annotated[
        str,
        Meta(
            max_length=4096,
            description="File with further settings of Tor, such as bridges or a private network,"
            " in the state directory or with its whole path.",
        ),
    ] = ""
    bootstrap_secs: Annotated[
        float,
        Meta(gt=0, le=3600, description="Time after which a Tor without network is reported."),
    ] = 120.0
    master_service: Annotated[
        bool,
        Meta(
            description="Answer at the onion service that all nodes share, so that machines can"
            " join there. Only backbone nodes that accept joins do."
        ),
    ] = True
    period_minutes: Annotated[
        int,
        Meta(
            ge=1,
            le=14_400,
            description="How long the key of an onion service lasts; other than 1440 in private"
            " networks only.",
        ),
    ] = 1440


class WireGuardSettings(SettingsSection, frozen=True, kw_only=True):
    """The WireGuard tunnel of the mesh."""

    network: Annotated[
        str,
        Meta(
            min_length=4,
            max_length=50,
            description="Network of the addresses in the tunnel, the same at every node.",
        ),
    ] = "10.200.0.0/16"
    port: Annotated[
        int, Meta(ge=1, le=65_535, description="UDP port at which WireGuard receives.")
    ] = 51_820
    endpoint: Annotated[
        str,
        Meta(
            max_length=64,
            description="IP:PORT at which others reach WireGuard here. Without it, this node"
            " begins every conversation.",
        ),
    ] = ""
