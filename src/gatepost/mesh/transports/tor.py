"""Datagrams over streams between onion services, through a Tor of this gateway."""

import asyncio
import contextlib
import importlib.util
import logging
import re
from collections.abc import Mapping

from msgspec import Struct

from gatepost.errors import TransportUnavailable
from gatepost.mesh.onion.onion_identity import OnionIdentity
from gatepost.mesh.transport import ReceiveDatagram, TransportCounts
from gatepost.mesh.transports.datagram_streams import DatagramStreams, Streams
from gatepost.mesh.transports.tor_control import TorCommandFailed, TorControlLost
from gatepost.mesh.transports.tor_process import TorProcess

log = logging.getLogger(__name__)

DATAGRAM_PORT = 7433
HTTP_PORT = 80
_is_onion_address = re.compile(rf"[a-z2-7]{{56}}\.onion:{DATAGRAM_PORT}").fullmatch


class OnionService(Struct, frozen=True):
    """The service of this node. Its `http_port` leads to the gateway at `http_target`."""

    identity: OnionIdentity
    http_target: str | None = None
    http_port: int = HTTP_PORT


class TorTransport:
    """A transport whose address is its onion service. A forged address gets no answers."""

    def __init__(self, tor: TorProcess, service: OnionService) -> None:
        self._tor = tor
        self.service = service
        self._port = 0
        self._watching: asyncio.Task[None] | None = None
        self._streams = DatagramStreams(
            self._connect_stream, lambda text: _is_onion_address(text) is not None
        )

    @property
    def local_address(self) -> str:
        return self._streams.own_address

    @property
    def authenticated_hosts(self) -> Mapping[str, str]:
        return {}

    @property
    def counts(self) -> TransportCounts:
        return self._streams.counts

    @property
    def onion_host(self) -> str:
        return self.service.identity.host

    @property
    def socks_url(self) -> str:
        """The proxy through which onion services are reached."""
        return f"socks5h://127.0.0.1:{self._tor.socks_port}"

    async def start(self, receive: ReceiveDatagram) -> None:
        if importlib.util.find_spec("python_socks") is None:
            raise TransportUnavailable(
                "Tor needs the package python-socks: pip install 'gatepost[tor]',"
                " or choose another mesh.transport"
            )
        try:
            self._port = await self._streams.listen(receive)
            await self._open_service()
            self._streams.own_address = f"{self.onion_host}:{DATAGRAM_PORT}"
        except BaseException:
            await self.close()
            raise

    async def restart_when_ended(self) -> None:
        """Wait until Tor ends, and start it with the same service; TransportUnavailable if not."""
        await self._tor.wait_until_ended()
        log.warning("Tor has ended; it is started again")
        await self._stop_tor()
        await self._open_service()

    async def _open_service(self) -> None:
        control = await self._tor.start()
        ports = [(DATAGRAM_PORT, f"127.0.0.1:{self._port}")]
        if self.service.http_target is not None:
            ports.append((self.service.http_port, self.service.http_target))
        try:
            await control.add_onion(self.service.identity.key_blob, ports)
        except (TorCommandFailed, TorControlLost) as failed:
            await self._stop_tor()
            raise TransportUnavailable(f"tor opens no onion service: {failed}") from None
        self._watching = asyncio.create_task(self._report_network())

    def send(self, address: str, datagram: bytes) -> None:
        self._streams.send(address, datagram)

    async def close(self) -> None:
        await self._streams.close()
        await self._stop_tor()

    async def _stop_tor(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        with contextlib.suppress(OSError):
            await self._tor.stop()

    async def _report_network(self) -> None:
        """Log once whether Tor found its network; Tor keeps trying by itself."""
        try:
            await self._tor.wait_for_network()
            log.info("Tor is connected; this node is %s", self.onion_host)
        except TransportUnavailable as error:
            log.warning("%s", error.message)

    async def _connect_stream(self, address: str) -> Streams:
        from python_socks.async_.asyncio import Proxy

        host, _, port = address.rpartition(":")
        proxy = Proxy.from_url(self.socks_url.replace("socks5h", "socks5"), rdns=True)
        connected = await proxy.connect(dest_host=host, dest_port=int(port))
        return await asyncio.open_connection(sock=connected)
