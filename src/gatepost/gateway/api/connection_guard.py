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
        self._limiter.take_token(rate_limit_source(_client_host(connection)))
        self.require_tls(connection)

    def require_tls(self, connection: AnyConnection) -> None:
        plain = connection.scope["scheme"] in {"http", "ws"}
        if plain and not is_loopback(_client_host(connection)) and not self._settings.allow_plain:
            raise Forbidden("use TLS: plain HTTP from other machines is refused")


def _client_host(connection: AnyConnection) -> str:
    return connection.client.host if connection.client else ""
