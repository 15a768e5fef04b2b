"""Where push notifications may go. Callers choose the addresses, so the gateway checks them.

The name is looked up once for each request, and the request goes to the address that was checked:
a name that is pointed elsewhere in between gains nothing. Redirects are not followed.
"""

import asyncio
import socket
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

import httpx

from gatepost.errors import InvalidRequest

_MAX_URL = 2000
_TIMEOUT_SECS = 10.0


def check_push_url(url: str, *, allow_private: bool) -> SplitResult:
    """The parts of a URL that can be a target; what its name stands for is checked later."""
    try:
        parts = urlsplit(url)
        is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise InvalidRequest("the url of a push notification cannot be read") from None
    schemes = ("http", "https") if allow_private else ("https",)
    if len(url) > _MAX_URL or not is_valid or parts.scheme not in schemes or not parts.hostname:
        raise InvalidRequest(f"the url of a push notification begins with {schemes[-1]}://")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest("give credentials in `authentication`, not in the url")
    return parts


async def find_address(parts: SplitResult, *, allow_private: bool) -> str:
    """An address of the target. InvalidRequest if any of them is not a public one."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidRequest("the host of the push notification is not known") from None
    addresses = [str(each[4][0]) for each in found]
    if not allow_private and not all(map(_is_public, addresses)):
        raise InvalidRequest(
            "push notifications go to public addresses only; see a2a.allow_private_push"
        )
    return addresses[0]


def _is_public(text: str) -> bool:
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        # Forms that carry an IPv4 address are judged by that one.
        inside = address.ipv4_mapped or address.sixtofour
        if inside is not None:
            address = inside
        elif address.teredo is not None or address in _NAT64:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


class _Nat64:
    """64:ff9b::/96 and 64:ff9b:1::/48 lead to any IPv4 address."""

    def __contains__(self, address: IPv6Address) -> bool:
        return int(address) >> 80 in (0x0064FF9B0000, 0x0064FF9B0001)


_NAT64 = _Nat64()


async def post_push(
    client: httpx.AsyncClient,
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    allow_private: bool,
) -> int:
    """Post to a target that is checked again; return the status. httpx.HTTPError if it is away."""
    parts = check_push_url(url, allow_private=allow_private)
    address = await find_address(parts, allow_private=allow_private)
    host = f"[{address}]" if ":" in address else address
    netloc = f"{host}:{parts.port}" if parts.port else host
    request = client.build_request(
        "POST",
        parts._replace(netloc=netloc, fragment="").geturl(),
        content=body,
        headers={**headers, "host": parts.netloc, "content-type": "application/json"},
        extensions={"sni_hostname": parts.hostname or ""},
        timeout=_TIMEOUT_SECS,
    )
    response = await client.send(request, stream=True)
    # Nothing that the target answers is read.
    await response.aclose()
    return response.status_code


def create_push_client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=32, max_keepalive_connections=0)
    return httpx.AsyncClient(trust_env=False, follow_redirects=False, limits=limits)
