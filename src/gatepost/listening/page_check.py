"""Requests of web pages: those of other origins are refused, and names that were pointed at us."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from gatepost.config import Settings
from gatepost.errors import Forbidden
from gatepost.listening.connection_guard import AnyConnection


def check_page(connection: AnyConnection, settings: Settings) -> None:
    """Refuse web pages: those of another origin, and those whose name was pointed at us."""
    origin = connection.headers.get("origin")
    check_host(connection, settings)
    allowed = settings.room.allowed_origins
    if origin is not None and origin not in allowed and not is_own_origin(connection, origin):
        raise Forbidden("pages of this origin may not connect; see room.allowed_origins")


def check_host(connection: AnyConnection, settings: Settings) -> None:
    """Refuse requests by a name that is not this gateway's."""
    host = connection.headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if not _is_own_name(name, settings):
        raise Forbidden("this gateway is not called by that name; see room.public_url")


def is_own_origin(connection: AnyConnection, origin: str) -> bool:
    """Whether a page comes from the very address that the request is for."""
    try:
        return urlsplit(origin).netloc == connection.headers.get("host", "")
    except ValueError:
        return False


def _is_own_name(name: str, settings: Settings) -> bool:
    """Whether a request may call us so: names can be pointed at us, addresses cannot."""
    url = urlsplit(settings.room.public_url or "")
    return name in ("localhost", settings.listen.host, url.hostname) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
