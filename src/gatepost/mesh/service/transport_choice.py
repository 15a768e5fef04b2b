"""The transport that the settings choose."""

from gatepost.access import Issuer
from gatepost.core.gateway_core import Core
from gatepost.mesh.onion.onion_identity import OnionIdentity
from gatepost.mesh.service.tunnel_peers import create_wireguard_transport
from gatepost.mesh.transport import DatagramTransport
from gatepost.mesh.transports.tor import OnionService, TorTransport
from gatepost.mesh.transports.tor_process import TorProcess
from gatepost.mesh.transports.udp import UdpTransport


def create_transport(core: Core) -> DatagramTransport | None:
    """None if this gateway is in no mesh."""
    settings, mesh = core.settings, core.settings.mesh
    issuer = Issuer(core.node.id, core.node.key, core.clock)
    match mesh.transport:
        case "off":
            return None
        case "wireguard":
            return create_wireguard_transport(settings, issuer, mesh.port)
        case "tor":
            service = OnionService(OnionIdentity(issuer.derive_key("onion service")))
            return TorTransport(create_tor_process(core, "tor"), service)
    return UdpTransport(mesh.host or settings.listen.host, mesh.port)


def create_tor_process(core: Core, folder: str, *lines: str) -> TorProcess:
    settings = core.settings.tor
    path = core.settings.node.state_dir.expanduser().resolve() / folder
    extra = core.settings.named_file(settings.torrc)
    return TorProcess(path, extra, settings.bootstrap_secs, lines)
