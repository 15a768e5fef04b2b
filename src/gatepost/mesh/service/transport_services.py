"""Services that a transport depends on: tunnel peers from the room, or onion services."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from msgspec.structs import replace

from gatepost.mesh.service.master_onion import MasterOnionService
from gatepost.mesh.service.mesh_secret_sharing import MeshSecretSharing
from gatepost.mesh.service.transport_choice import create_tor_process
from gatepost.mesh.service.tunnel_peers import TunnelPeers
from gatepost.mesh.transport import DatagramTransport
from gatepost.mesh.transports.tor import TorTransport
from gatepost.mesh.transports.wireguard import WireGuardTransport
from gatepost.room.service.current_publisher import CurrentPublisher
from gatepost.room.service.room_replica import RoomReplica

_PAUSE_SECS = 0.5
_TOR_SECS = 5.0
_HTTPS_PORT = 443


class TransportServices:
    """`prepare` comes before the transport starts, `running` after it."""

    def __init__(
        self,
        replica: RoomReplica,
        transport: DatagramTransport | None,
        sharing: MeshSecretSharing,
        current: CurrentPublisher,
    ) -> None:
        self._replica = replica
        self._transport = transport
        self._sharing = sharing
        self._current = current

    def prepare(self, local_url: str | None) -> None:
        """Give the onion service its place behind the gateway that listens at `local_url`."""
        if not isinstance(self._transport, TorTransport) or local_url is None:
            return
        parts = urlsplit(local_url)
        is_tls = parts.scheme == "https"
        service = replace(self._transport.service, http_target=f"{parts.hostname}:{parts.port}")
        if is_tls:
            service = replace(service, http_port=_HTTPS_PORT)
        self._transport.service = service
        host = self._transport.onion_host
        self._replica.transport = replace(self._replica.transport, onion=host)
        if not self._replica.core.settings.room.public_url:
            self._replica.endpoint = f"{'wss' if is_tls else 'ws'}://{host}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loops = self._replica.core.background
        transport = self._transport
        if isinstance(transport, WireGuardTransport):
            peers = TunnelPeers(self._replica, transport)
            work = loops.repeat_forever(
                _PAUSE_SECS, peers.follow_once, "the tunnel did not follow the room"
            )
            async with _background(asyncio.create_task(work)):
                yield
        elif isinstance(transport, TorTransport):
            self._replica.onion_proxy = transport.socks_url
            work = loops.repeat_forever(
                _TOR_SECS, transport.restart_when_ended, "Tor was not started again"
            )
            async with _background(asyncio.create_task(work)), self._master_service(transport):
                yield
        else:
            yield

    @contextlib.asynccontextmanager
    async def _master_service(self, transport: TorTransport) -> AsyncIterator[None]:
        core, target = self._replica.core, transport.service.http_target
        if target is None or not core.settings.tor.master_service:
            yield
            return
        # Its Tor publishes nothing until this node is the publisher of the mesh.
        tor = create_tor_process(core, "master-tor", "PublishHidServDescriptors 0")
        port = (transport.service.http_port, target)
        master = MasterOnionService(self._replica, self._sharing, self._current, tor, port)
        work = core.background.repeat_forever(
            _TOR_SECS, master.serve_once, "the onion service of the mesh is not served"
        )
        try:
            async with _background(asyncio.create_task(work)):
                yield
        finally:
            await tor.stop()


@contextlib.asynccontextmanager
async def _background(task: "asyncio.Task[None]") -> AsyncIterator[None]:
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
