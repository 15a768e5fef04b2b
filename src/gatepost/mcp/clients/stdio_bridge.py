"""`gatepost mcp`: copies messages between a client's stdio and the gateway's Unix socket.

The server is in the gateway. If the gateway ends, the bridge waits for the next one, greets it, and
repeats the client's `initialize`, so that the client keeps its session. Open requests are answered
with an error, because their outcome is unknown; the client can repeat them.
"""

import json
import os
import select
import socket
import sys
import time
from typing import Any

from gatepost.mcp.clients.gateway_socket import GatewayAway, open_gateway

_CHUNK = 65_536
_SERVER_ERROR = -32000
# How long a client's requests wait for a gateway that is away.
_AWAY_SECS = 20.0
_RETRY_SECS = 0.2
_LOST = "the gateway ended before it answered, so the outcome is unknown: look, or call again"


class StdioBridge:
    def __init__(self, state_dir: str | None, greeting: dict[str, object]) -> None:
        self._state_dir = state_dir
        self._greeting = greeting
        self._gateway: socket.socket | None = None
        self._from_client = self._from_gateway = b""
        # The client's `initialize` and `notifications/initialized`, for the next gateway.
        self._handshake: list[bytes] = []
        self._open_ids: dict[str, Any] = {}
        # The answer to a repeated `initialize`: the client has one already.
        self._unwanted_id: str | None = None

    def run(self) -> None:
        """Serve until the client closes its end."""
        try:
            self._gateway = open_gateway(self._state_dir, self._greeting)
        except GatewayAway as away:
            print(f"gatepost: {away}", file=sys.stderr)
        while True:
            sources: list[Any] = [0] if self._gateway is None else [0, self._gateway]
            readable, _, _ = select.select(sources, (), ())
            if self._gateway in readable and not self._copy_to_client():
                self._lose_gateway()
            if 0 in readable and not self._copy_to_gateway():
                return

    def _copy_to_gateway(self) -> bool:
        """Pass on what the client sent; False if it has closed its end."""
        chunk = os.read(0, _CHUNK)
        *lines, self._from_client = (self._from_client + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                self._note_sent(line)
                self._send_line(line)
        return bool(chunk)

    def _send_line(self, line: bytes) -> None:
        problem = _LOST
        deadline = time.monotonic() + _AWAY_SECS
        while True:
            try:
                if self._gateway is None:
                    self._gateway = open_gateway(self._state_dir, self._greeting)
                    self._repeat_handshake(line)
                self._gateway.sendall(line + b"\n")
                return
            except GatewayAway as away:
                problem = str(away)
            except OSError:
                self._lose_gateway(but=line)
            if time.monotonic() > deadline:
                self._fail_open(problem)
                return
            time.sleep(_RETRY_SECS)

    def _repeat_handshake(self, line: bytes) -> None:
        if not self._handshake or line in self._handshake:
            return
        assert self._gateway is not None, "it was just opened"
        self._unwanted_id = _id_of(self._handshake[0])
        for each in self._handshake:
            self._gateway.sendall(each + b"\n")

    def _note_sent(self, line: bytes) -> None:
        message = _parse(line)
        method = message.get("method")
        if method in ("initialize", "notifications/initialized"):
            self._handshake = [*self._handshake, line] if self._handshake else [line]
        if method is not None and "id" in message:
            self._open_ids[json.dumps(message["id"])] = message["id"]

    def _copy_to_client(self) -> bool:
        """Pass on what the gateway sent; False if it is gone."""
        assert self._gateway is not None, "there is something to read from it"
        try:
            chunk = self._gateway.recv(_CHUNK)
        except OSError:
            chunk = b""
        *lines, self._from_gateway = (self._from_gateway + chunk).split(b"\n")
        for line in lines:
            message = _parse(line)
            id = json.dumps(message["id"]) if "id" in message and "method" not in message else None
            if id is not None and id == self._unwanted_id:
                self._unwanted_id = None
                continue
            self._open_ids.pop(id or "", None)
            _write(line + b"\n")
        return bool(chunk)

    def _lose_gateway(self, but: bytes = b"") -> None:
        """Forget a gateway that is gone, and answer the requests that it had, except one."""
        if self._gateway is not None:
            self._gateway.close()
        self._gateway, self._from_gateway, self._unwanted_id = None, b"", None
        kept = _id_of(but) if but else None
        held = {id: value for id, value in self._open_ids.items() if id == kept}
        self._open_ids = {id: value for id, value in self._open_ids.items() if id != kept}
        self._fail_open(_LOST)
        self._open_ids = held

    def _fail_open(self, problem: str) -> None:
        for id in self._open_ids.values():
            error = {"code": _SERVER_ERROR, "message": problem}
            answer = {"jsonrpc": "2.0", "id": id, "error": error}
            _write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        self._open_ids.clear()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _id_of(line: bytes) -> str | None:
    message = _parse(line)
    return json.dumps(message["id"]) if "id" in message else None


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
