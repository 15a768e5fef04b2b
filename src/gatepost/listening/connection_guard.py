"""First checks on connections from outside: rate limit per address, and TLS."""

from typing import Any

from litestar.connection import ASGIConnection

from gatepost.access import SourceRateLimiter, rate_limit_source
from gatepost.clock import Clock
from gatepost.config import RoomSettings, is_loopback
from gatepost.errors import Forbidden

AnyConnection = ASGIConnection[Any, Any, Any, Any]


class ConnectionGuard:
    """Limits attempts per source address, and refuses plain HTTP from other machines."""

    def __init__(self, settings: RoomSettings, clock: Clock) -> None:
        self._settings = settings
        self._limiter = SourceRateLimiter(settings.joins_per_sec, settings.join_burst, clock)

    def check_attempt(self, connection: AnyConnection) -> None:
        """Count an attempt of this address against its rate limit, and require TLS."""
        self._limiter.take_token(rate_limit_source(client_host(connection)))
        self.require_tls(connection)

    def require_tls(self, connection: AnyConnection) -> None:
        if is_exposed(connection) and not self._settings.allow_plain:
            raise Forbidden("use TLS: plain HTTP from other machines is refused")


def is_exposed(connection: AnyConnection) -> bool:
    """Whether others can read the connection: it comes from another machine, without TLS."""
    if connection.scope["scheme"] not in {"http", "ws"}:
        return False
    client, server = client_host(connection), connection.scope.get("server")
    # A client at the address of the server is on the same machine.
    return not is_loopback(client) and not (server is not None and client == server[0])


def client_host(connection: AnyConnection) -> str:
    return connection.client.host if connection.client else ""
