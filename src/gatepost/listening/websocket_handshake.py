"""WebSocket handshakes: check the origin, and refuse with a full HTTP response."""

import math
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gatepost.errors import Forbidden, GatepostError
from gatepost.listening.route_parameters import AnyWebSocket
from gatepost.wire.operations import Failure

CLOSE_TOO_LARGE = 1009


async def refuse_websocket(socket: AnyWebSocket, error: GatepostError) -> None:
    """Answer with the status and body an HTTP request would get, instead of a bare 403."""
    send: Any = socket.send
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
    start = {"type": "websocket.http.response.start", "status": error.status, "headers": headers}
    await send(start)
    body = msgspec.json.encode(Failure.from_error(error))
    await send({"type": "websocket.http.response.body", "body": body})


def check_origin(socket: AnyWebSocket, allowed: tuple[str, ...]) -> None:
    """Raise Forbidden for a browser page of another origin that is not allowed."""
    origin = socket.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if urlsplit(origin).netloc != socket.headers.get("host"):
        raise Forbidden("pages of this origin may not connect; see room.allowed_origins")
