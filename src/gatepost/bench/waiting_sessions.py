"""Sessions of MCP that wait for mail, as many as one process may have.

`python -m gatepost.bench.waiting_sessions STATE_DIR FIRST COUNT` opens them and says `ready`. It
holds them until its standard input closes.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from gatepost.errors import BenchFailed
from gatepost.mcp.clients.gateway_socket import greet

MAX_PER_PROCESS = 50
PROTOCOL = "2025-06-18"
_TIMEOUT_SECS = 60.0
_LINE_BYTES = 4 * 1024 * 1024


def call_message(id: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def initialize_message(id: int) -> dict[str, Any]:
    client = {"name": "gatepost bench", "version": "1"}
    params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
    return call_message(id, "initialize", params)


def check_answer(answer: Any) -> None:
    if "error" in answer or answer["result"].get("isError"):
        raise BenchFailed(f"a call of the MCP server failed: {json.dumps(answer)[:500]}")


async def wait_for_mail(socket: Path, agent: str, is_open: asyncio.Event) -> None:
    """Wait as one agent, again and again, and ask to be told of the progress."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=_LINE_BYTES)
    writer.write(greet({"agent": agent}))
    _write(writer, initialize_message(1))
    async with asyncio.timeout(_TIMEOUT_SECS):
        check_answer(json.loads(await reader.readline()))
    _write(writer, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    is_open.set()
    number = 1
    while True:
        number += 1
        waiting = {"name": "inbox", "arguments": {"wait_seconds": 55}}
        _write(writer, call_message(number, "tools/call", {**waiting, "_meta": _token(number)}))
        while (line := await reader.readline()) and json.loads(line).get("id") != number:
            pass
        if not line:
            return


def _token(number: int) -> dict[str, int]:
    return {"progressToken": number}


def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


async def _wait(socket: Path, agents: list[str]) -> None:
    opened = [asyncio.Event() for _ in agents]
    waits = [
        asyncio.create_task(wait_for_mail(socket, agent, is_open))
        for agent, is_open in zip(agents, opened, strict=True)
    ]
    await asyncio.gather(*(each.wait() for each in opened))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def main() -> None:
    state_dir, first, count = sys.argv[1:]
    agents = [f"bench-waiting-{int(first) + number}" for number in range(int(count))]
    asyncio.run(_wait(Path(state_dir) / "gateway.sock", agents))


if __name__ == "__main__":
    main()
