"""Sessions of the hub that only take up places.

    python -m gatepost.bench.hostile_sessions COUNT

This is the command of such a session. It keeps `COUNT` connections busy at the session's socket, an
equal share of each sort, until its task is cancelled. It prints a line when all have been opened.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import httpx
import uvloop

from gatepost.bench.hostile_connections import (
    READY,
    Behaviour,
    HostileCrowd,
    Streams,
    drip_pieces,
    say_once,
    wait_for_end,
)
from gatepost.errors import BenchFailed
from gatepost.testing import GatewayProcess

_AGENT = "hostile"
_START_SECS = 60.0
_LOOK_SECS = 0.1
_OPEN_FILES = 4096
_HUGE_BYTES = 90_000


async def _flood(streams: Streams, request: bytes) -> None:
    """Send requests without pause."""
    reader, writer = streams
    writer.write(request)
    while await reader.read(65_536):
        writer.write(request)
        await writer.drain()


def list_behaviours(token: str) -> dict[str, Behaviour]:
    auth = f"host: x\r\nauthorization: Bearer {token}\r\n".encode()
    post = b"POST /api/hub/messages HTTP/1.1\r\n" + auth
    body = b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    ask = b"GET /api/hub/tasks HTTP/1.1\r\n" + auth + b"\r\n"
    huge = b"GET / HTTP/1.1\r\nx: " + b"a" * _HUGE_BYTES
    return {
        "idle": wait_for_end,
        "slow head": lambda streams: drip_pieces(streams, post, b"a: b\r\n"),
        "half body": lambda streams: say_once(streams, post + body),
        "huge head": lambda streams: say_once(streams, huge),
        "flood": lambda streams: _flood(streams, ask),
    }


async def crowd_socket(count: int) -> None:
    path = os.environ["GATEPOST_SOCKET"]
    token = Path(os.environ["GATEPOST_TOKEN_FILE"]).read_text()
    behaviours = list_behaviours(token)
    crowd = HostileCrowd(lambda: asyncio.open_unix_connection(path), count, behaviours)
    work = asyncio.ensure_future(crowd.run())
    await crowd.is_complete.wait()
    print(READY, flush=True)
    await work


# -- the side of the bench


def define_hostile_agent(state_dir: Path, connections: int) -> None:
    """Define the agent whose sessions are hostile. The gateway has not started yet."""
    folder = state_dir / "agents"
    folder.mkdir(parents=True)
    state_dir.chmod(0o700)
    definition = {
        "name": _AGENT,
        "command": [sys.executable, "-m", "gatepost.bench.hostile_sessions", str(connections)],
        "limits": {"open_files": _OPEN_FILES},
    }
    (folder / f"{_AGENT}.json").write_text(json.dumps(definition))


def _open_hub(gateway: GatewayProcess) -> httpx.Client:
    headers, url = {"authorization": f"Bearer {gateway.token}"}, f"{gateway.url}/api/hub"
    return httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)


def end_hostile_sessions(gateway: GatewayProcess) -> None:
    """Cancel their tasks, and wait until all their processes have ended."""
    deadline = time.monotonic() + _START_SECS
    with _open_hub(gateway) as hub:
        for task in hub.get("/tasks", params={"status": "running"}).json()["tasks"]:
            hub.post(f"/tasks/{task['id']}/cancel", json={"reason": "measured"})
            while hub.get(f"/tasks/{task['id']}").json().get("session_state") != "recycled":
                if time.monotonic() > deadline:
                    raise BenchFailed("the hostile sessions did not end")
                time.sleep(_LOOK_SECS)


def start_hostile_sessions(gateway: GatewayProcess, count: int) -> None:
    """Start sessions, and wait until each of them has opened its connections."""
    with _open_hub(gateway) as hub:
        for _ in range(count):
            made = hub.post("/tasks", json={"agent_name": _AGENT, "description": "be hostile"})
            _wait_until_ready(hub, made.raise_for_status().json()["id"])


def _wait_until_ready(hub: httpx.Client, task: str) -> None:
    deadline = time.monotonic() + _START_SECS
    while READY not in hub.get(f"/tasks/{task}/log").json().get("text", ""):
        if time.monotonic() > deadline:
            raise BenchFailed("the hostile sessions could not open all their connections")
        time.sleep(_LOOK_SECS)


if __name__ == "__main__":
    uvloop.run(crowd_socket(int(sys.argv[1])))
