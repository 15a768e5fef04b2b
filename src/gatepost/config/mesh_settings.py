"""Settings of the mesh: liveness of gateways, and the election of the one that leads."""

from typing import Annotated, Literal

from msgspec import Meta

from gatepost.config.section import SettingsSection
from gatepost.errors import ConfigError

_ADDRESS = r"^[0-9A-Fa-f.:\[\]]{3,45}:[0-9]{1,5}\Z"


class MeshSettings(SettingsSection, frozen=True, kw_only=True):
    """Datagrams between gateways: who is alive, and who leads."""

    transport: Annotated[
        Literal["off", "udp", "wireguard", "tor"],
        Meta(
            description="How datagrams travel: udp, in a WireGuard tunnel, or between onion"
            " services; off: no mesh, and the genesis leads."
        ),
    ] = "off"
    host: Annotated[
        str,
        Meta(max_length=64, description="IP address to receive at. Default: listen.host."),
    ] = ""
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="UDP port to receive at; 0: any free one.")
    ] = 7433
    peers: Annotated[
        tuple[Annotated[str, Meta(pattern=_ADDRESS)], ...],
        Meta(
            max_length=64,
            description="Addresses of other gateways in the mesh, as IP:PORT. One is enough; the"
            " others are found through it.",
        ),
    ] = ()
    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=2**32 - 1,
            description="Rank in elections: of the living backbone nodes the lowest number leads.",
        ),
    ] = 100
    heartbeat_secs: Annotated[
        float, Meta(ge=0.05, le=3600, description="Time between two heartbeats.")
    ] = 10.0
    suspect_secs: Annotated[
        float, Meta(ge=0.1, le=86_400, description="Silence after which a gateway is suspect.")
    ] = 30.0
    grace_secs: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Time after that until another gateway takes over."),
    ] = 90.0
    clock_tolerance_secs: Annotated[
        int,
        Meta(ge=1, le=300, description="Most that the clocks of two gateways may differ."),
    ] = 5

    def __post_init__(self) -> None:
        if self.suspect_secs < 2 * self.heartbeat_secs:
            raise ConfigError(
                "mesh.suspect_secs must be at least twice mesh.heartbeat_secs: one lost datagram"
                " is no reason for suspicion"
            )
