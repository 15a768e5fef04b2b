"""Checks addresses from the room before a gateway dials them.

A member writes its own address into the room, and others dial it. So the address must not be one
that only makes sense on the dialling machine: its loopback ports, or services on its link. A name
is resolved once, each of its addresses is checked, and exactly a checked one is dialled.
"""

import asyncio
import ipaddress
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from gatepost.connect.http_calls import httpx
from gatepost.errors import WrongHost

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_RESOLVE_SECS = 5.0
# Separate threads, because a member may name a host whose name servers never answer.
_resolvers = ThreadPoolExecutor(4, thread_name_prefix="resolve")
# Addresses that stand for IPv4 ones, in networks without IPv4.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class PinnedTransport(httpx.AsyncHTTPTransport):
    """Connects to `address`, whatever the name in the URL resolves to by now."""

    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(**options)
        self._address = address

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # The header `host` and the name in the certificate stay those of the URL.
        request.extensions = {**request.extensions, "sni_hostname": request.url.host}
        request.url = request.url.copy_with(host=self._address)
        return await super().handle_async_request(request)


async def resolve_address(url: str, *, allow_loopback: bool) -> str:
    """One of the addresses of a URL; WrongHost if any of them must not be dialled."""
    addresses = await _find_addresses(urlsplit(url).hostname or "")
    for address in addresses:
        check_address(address, allow_loopback=allow_loopback)
    # Choose another one with each attempt, because some may be unreachable from here.
    return random.choice(addresses)


async def _find_addresses(host: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_RESOLVE_SECS):
        found = await loop.run_in_executor(_resolvers, _resolve_name, host)
    return [str(each[4][0]) for each in found]


def _resolve_name(host: str) -> list[Any]:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)


def check_address(text: str, *, allow_loopback: bool) -> None:
    """Raise WrongHost unless the address can be another machine's, or is allowed."""
    address = _embedded_ipv4(ipaddress.ip_address(text.partition("%")[0]))
    if address.is_loopback or address.is_unspecified:
        if not allow_loopback:
            raise WrongHost(
                f"the address {text} in the room is on this machine, and not dialled;"
                " set room.dial_loopback = true if that gateway runs here"
            )
    elif address.is_link_local or address.is_multicast or address.is_reserved:
        raise WrongHost(f"the address {text} in the room is not one that a gateway can have")


def _embedded_ipv4(address: IpAddress) -> IpAddress:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(address.packed[-4:])
    return address
