"""A client that takes its time between the head and the body of a request."""

import json
import socket

import httpx

from gatepost.testing import GatewayProcess


class SlowRequest:
    """A request whose body comes once the caller's token has been accepted, and not before."""

    def __init__(self, gateway: GatewayProcess, token: str, path: str, body: object) -> None:
        self._body = json.dumps(body).encode()
        url = httpx.URL(gateway.url)
        self._socket = socket.create_connection((url.host, url.port or 0), 60)
        head = (
            f"POST {path} HTTP/1.1",
            "host: gateway",
            f"authorization: Bearer {token}",
            "content-type: application/json",
            f"content-length: {len(self._body)}",
            "expect: 100-continue",
            "connection: close",
        )
        self._socket.sendall("\r\n".join((*head, "", "")).encode())
        assert self._socket.recv(4096).startswith(b"HTTP/1.1 100")

    def __enter__(self) -> "SlowRequest":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def finish(self) -> tuple[int, str]:
        """Send the body; returns the status and the code of the answer."""
        self._socket.sendall(self._body)
        with self._socket.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body).get("code", "")
