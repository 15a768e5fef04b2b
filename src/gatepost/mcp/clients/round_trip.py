"""Tests a client's server: starts it like the client, and lets the agent send mail to itself."""

import json
import subprocess
import threading
import time
from typing import Any

from msgspec import Struct

from gatepost.errors import Unavailable
from gatepost.mcp.clients.client_entries import ServerCommand

_SECS = 60.0
_PROTOCOL = "2025-06-18"
_HELLO = "gatepost mcp install: a message to myself"


class RoundTrip(Struct, frozen=True):
    """What the proof has found: the tools, and how long a message to oneself took."""

    agent: str
    tools: int
    milliseconds: float


def prove_server(command: ServerCommand) -> RoundTrip:
    """Send a message to the agent itself and settle it; Unavailable if that fails."""
    with subprocess.Popen(
        [command.program, *command.arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        timer = threading.Timer(_SECS, server.kill)
        timer.start()
        try:
            return _ServerDialogue(server).prove(command.agent)
        finally:
            timer.cancel()
            server.kill()


class _ServerDialogue:
    def __init__(self, server: "subprocess.Popen[bytes]") -> None:
        assert server.stdin is not None and server.stdout is not None
        self._to, self._from = server.stdin, server.stdout
        self._last_id = 0

    def prove(self, agent: str) -> RoundTrip:
        client = {"name": "gatepost mcp install", "version": "1"}
        self._ask(
            "initialize",
            {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": client},
        )
        self._send({"method": "notifications/initialized"})
        tools = self._ask("tools/list", {})["tools"]
        waits = self._call("whoami").get("waiting", 0)
        begun = time.perf_counter()
        if waits:
            # Do not lease waiting mail for a test.
            self._call("whoami")
        else:
            sent = self._call("send", to=agent, body=_HELLO)
            self._take(sent["event_id"])
        took = (time.perf_counter() - begun) * 1000
        return RoundTrip(agent, len(tools), round(took, 1))

    def _take(self, event_id: str) -> None:
        found = self._call("inbox", wait_seconds=20, limit=1)["messages"]
        if [mail["message_id"] for mail in found] != [event_id]:
            raise Unavailable("a message of the agent to itself did not arrive")
        self._call("ack", handles=[found[0]["handle"]])

    def _call(self, tool: str, **arguments: object) -> Any:
        answer = self._ask("tools/call", {"name": tool, "arguments": arguments})
        if answer.get("isError"):
            raise Unavailable(f"the tool `{tool}` failed: {answer['content'][0]['text']}")
        return answer["structuredContent"]

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": params})
        while line := self._from.readline():
            message = json.loads(line)
            if message.get("id") != self._last_id:
                continue
            if "error" in message:
                raise Unavailable(str(message["error"]["message"]))
            return message["result"]
        raise Unavailable("`gatepost mcp` ended without an answer")

    def _send(self, message: dict[str, Any]) -> None:
        self._to.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._to.flush()
