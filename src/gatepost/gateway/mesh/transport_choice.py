"""The transport that the settings choose."""

from gatepost.config import Settings
from gatepost.mesh.transports.transport import DatagramTransport
from gatepost.mesh.transports.udp import UdpTransport


def create_transport(settings: Settings) -> DatagramTransport | None:
    """None if this gateway is in no mesh."""
    mesh = settings.mesh
    if mesh.transport == "off":
        return None
    return UdpTransport(mesh.host or settings.listen.host, mesh.port)
