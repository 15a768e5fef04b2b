"""First checks on connections from outside: rate limit per address, and TLS."""

from typing import Any

from litestar.connection import ASGIConnection

from gatepost.access import SourceRateLimiter, rate_limit_source
from gatepost.clock import Clock
from gatepost.config import RoomSettings, is_loopback
from gatepost.errors import Forbidden

Connection = ASGIConnection[Any, Any, Any, Any]


class Threshold:
    """Limits attempts per source address, and refuses plain HTTP from other machines."""

    def __init__(self, settings: RoomSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._limiter = SourceRateLimiter(settings.knocks_per_sec, settings.knock_burst)

    def cross(self, connection: Connection) -> None:
        """Count an attempt of this address against its rate limit, and require TLS."""
        self._limiter.take_token(rate_limit_source(_host(connection)), self._clock.now())
        self.check_plain(connection)

    def check_plain(self, connection: Connection) -> None:
        plain = connection.scope["scheme"] in {"http", "ws"}
        if plain and not is_loopback(_host(connection)) and not self._settings.allow_plain:
            raise Forbidden("use TLS: plain HTTP from other machines is refused")


def _host(connection: Connection) -> str:
    return connection.client.host if connection.client else ""
