"""Fuzzing a real gateway through its doors: bodies, heads, WebSocket frames and drop files.

No answer is a server error, nothing hangs, the gateway does not grow, and it works afterwards.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, mail
from tests.security.mutations import TIMEOUT_SECS, mutate_bytes, mutate_json, run_cases
from tests.security.siege import resident_mib
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(TIMEOUT_SECS)

_GROWTH_MIB = 96
_LOG_BYTES = 64 * 1024
_ANSWER_SECS = 30.0
DIGEST = f"sha256:{'0' * 64}"
EVENT = "01a1e41a-09a9-718b-9442-1bc4c8a7feb8"
HUB_STATE = {
    "router": {"tasks": [[EVENT, {"id": EVENT, "agent_name": "bob", "status": "pending"}]]},
    "messages": {"log": []},
}
CAPABILITY = {
    "capability_id": "c",
    "name": "C",
    "version": "1.0.0",
    "owner_agent_id": "bob",
    "delegation_skill": {"ref": "skills/ask", "version": "1.1"},
    "executor_skill": {"ref": "skills/do", "version": "1.2"},
    "default_eta_seconds": 5,
    "contract": {"input": {"type": "object"}, "output": {"type": "integer"}},
    "escalation": None,
    "eligible_agent_ids": ["bob"],
}

BODIES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/enqueue", mail("m:1", "box")),
    ("POST", "/v1/enqueue/batch", {"messages": [mail("m:2", "box"), mail("m:3", "box")]}),
    ("POST", "/v1/mailboxes/box/dequeue", {"limit": 3, "wait_secs": 0, "consumer": "c"}),
    ("POST", "/v1/mailboxes/box/ack", {"receipts": ["1.2.3"], "replies": {"1.2.3": "done"}}),
    ("POST", "/v1/mailboxes/box/nack", {"msg_ids": ["m:1"], "reason": "no", "retry": False}),
    ("POST", "/v1/mailboxes/box/extend", {"receipts": ["1.2.3"]}),
    ("POST", "/v1/mailboxes/box/dead-letters/replay", {"msg_ids": ["m:1"]}),
    ("PUT", "/v1/agents/bob", {"role": "worker", "order": "none"}),
    ("POST", "/v1/messages", {"from_agent": "al", "to_agent": "bob", "payload": 1, "ttl_secs": 9}),
    ("POST", "/v1/messages/batch", {"messages": [{"from_agent": "al", "to_agent": "bob"}]}),
    ("POST", "/v1/room/invites", {"tier": "edge", "node": "n1", "ttl_secs": 60}),
    ("PUT", "/v1/room/routes/bob", {"fallbacks": ["n1"], "priority": 3}),
    ("POST", "/v1/incidents", [{"id": "i", "class": "c", "subject": "s", "raisedAt": 1}]),
    ("POST", "/v1/reviews", [{"id": "r", "capabilityId": "c", "count": 1, "raisedAt": 1}]),
    ("POST", "/v1/eta-advice", [{"capabilityId": "c", "p50Secs": 1, "p95Secs": 2, "at": 1}]),
    ("POST", "/v1/undelivered/give-up", {"node": "n1"}),
    ("POST", "/v1/undelivered/replay", {"event_ids": [EVENT], "force": True}),
    (
        "POST",
        "/ansible/auth/exchange",
        {"nodeId": "n1", "nonce": "x" * 24, "inviteToken": "gp1.a.b"},
    ),
    ("POST", "/ansible/agent/invites", {"agentId": "ext", "scopes": ["ansible.message.send"]}),
    ("POST", "/ansible/agent/auth/exchange", {"inviteToken": "gpa1.a.b"}),
    ("POST", "/ansible/agent/auth/refresh", {"refreshToken": "gpr1.a.b", "attempt": "x" * 16}),
    ("POST", "/ansible/agent/invoke", {"op": "peek", "mailbox": "ext"}),
    ("POST", "/ansible/agent/context-token", {"scopes": ["ansible.message.read"], "ttlSecs": 60}),
    ("POST", "/api/hub/tasks", {"description": "x", "agent_name": "bob", "input": [1]}),
    ("POST", "/api/hub/tasks", {"required_capabilities": ["c"], "to_agents": ["bob"]}),
    ("POST", "/api/hub/tasks", {"agent_name": "bob", "input_ref": DIGEST, "task_id": EVENT}),
    ("POST", f"/api/hub/tasks/{EVENT}/cancel", {"reason": "no"}),
    ("POST", "/api/hub/messages", {"recipient": "bob", "type": "x", "payload": {}}),
    ("POST", "/api/hub/messages/nack", {"reason": "no"}),
    ("POST", "/api/hub/state", HUB_STATE),
    ("PUT", "/v1/capabilities/c", CAPABILITY),
    ("POST", "/v1/mesh/secrets/rotate", {}),
    (
        "POST",
        "/.rb/guessed",
        {"cluster_token": "x", "request_time": 1, "node_id": "n1", "node_key": "A" * 43 + "="},
    ),
]

FRAMES: list[Any] = [
    {"op": "enqueue", "id": 1, "messages": [mail("w:1", "box")]},
    [{"op": "peek", "id": 2, "mailbox": "box"}, {"op": "dequeue", "id": 3, "mailbox": "box"}],
    {"op": "ack", "id": 4, "mailbox": "box", "receipts": ["1.2.3"], "replies": {"1.2.3": 5}},
    {"op": "nack", "id": 5, "mailbox": "box", "msg_ids": ["w:1"], "reason": "no"},
    {"op": "subscribe", "id": 6, "mailbox": "sub", "credit": 3, "consumer": "c"},
    {"op": "unsubscribe", "id": 7, "mailbox": "sub"},
    {"op": "register", "id": 8, "agent": "bob", "order": "fifo"},
    {"op": "send", "id": 9, "messages": [{"from_agent": "al", "to_agent": "bob", "payload": {}}]},
    {"op": "await", "id": 10, "event_id": EVENT, "wait_secs": 0, "until": "accepted"},
    {"op": "purge_dead_letter", "id": 11, "mailbox": "box"},
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that no fuzzer may break."""
    settings = {"limits__long_poll_max_secs": 0.01, "room__join_burst": 1_000_000}
    with GatewayProcess(tmp_path_factory.mktemp("fuzz") / "state", **settings) as gateway:
        with client(gateway) as http:
            http.put("/v1/agents/bob")
        yield gateway


@contextlib.contextmanager
def unharmed(gateway: GatewayProcess) -> Iterator[None]:
    """The gateway and its log have not grown, and it does its work after all this."""
    before, logged = resident_mib(gateway), gateway.log.stat().st_size
    yield
    with client(gateway) as http:
        body = {"from_agent": "al", "to_agent": "bob", "payload": "after all"}
        assert http.post("/v1/messages", json=body).status_code == 200
        assert http.get("/readyz").status_code == 200
    assert resident_mib(gateway) - before <= _GROWTH_MIB
    with gateway.log.open("rb") as log:
        log.seek(logged)
        new = log.read()
    assert b"Traceback" not in new, new.decode(errors="replace")
    assert len(new) <= _LOG_BYTES, new[-2000:].decode(errors="replace")


def test_mutated_bodies_are_never_a_server_error(target: GatewayProcess) -> None:
    encoded = [(method, path, json.dumps(body).encode()) for method, path, body in BODIES]
    others = [body for _, _, body in encoded]

    def try_case(number: int, random: Random) -> None:
        method, path, body = encoded[number % len(encoded)]
        headers = {"content-type": "application/json"}
        answer = http.request(
            method, path, content=mutate_json(body, random, others), headers=headers
        )
        assert answer.status_code < 500, f"{method} {path} {answer.status_code} {answer.text}"

    with unharmed(target), client(target) as http:
        http.timeout = httpx.Timeout(_ANSWER_SECS)
        run_cases("http bodies", try_case)


def test_mutated_heads_are_answered_or_refused(target: GatewayProcess) -> None:
    token = target.token
    heads = [
        f"POST /v1/enqueue HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        "GET /v1/mailboxes?limit=3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "POST /v1/blobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n0\r\n\r\n",
        "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    ]
    samples = [head.encode() for head in heads]

    def try_case(number: int, random: Random) -> None:
        status = _raw_status(target, mutate_bytes(random.choice(samples), random, samples))
        assert status is None or status < 500 or status in (501, 505), status

    with unharmed(target):
        run_cases("http heads", try_case)


def _raw_status(gateway: GatewayProcess, request: bytes) -> int | None:
    """The status of the first answer; None if the gateway hangs up without one."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=_ANSWER_SECS) as wire:
        with contextlib.suppress(OSError):
            wire.sendall(request)
            wire.shutdown(socket.SHUT_WR)
        try:
            answer = wire.recv(65_536)
        except ConnectionResetError:
            return None
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def test_mutated_frames_are_never_an_internal_error(target: GatewayProcess) -> None:
    samples = [json.dumps(frame).encode() for frame in FRAMES]

    def try_case(number: int, random: Random) -> None:
        frame = mutate_json(random.choice(samples), random, samples)
        with _open_frames(target) as wire:
            with contextlib.suppress(ConnectionClosed):
                wire.send(frame)
                wire.send('{"op":"peek","id":777,"mailbox":"box"}')
                while True:
                    answer = wire.recv(timeout=_ANSWER_SECS)
                    assert b'"internal"' not in _as_bytes(answer), (frame, answer)
                    if b'"re":777' in _as_bytes(answer):
                        return
            assert wire.close_code not in (None, 1011), frame

    with unharmed(target):
        run_cases("frames", try_case)


def _open_frames(gateway: GatewayProcess) -> contextlib.AbstractContextManager[ClientConnection]:
    headers = {"authorization": f"Bearer {gateway.token}"}
    url = gateway.url.replace("http", "ws") + "/v1/ws"
    opened: contextlib.AbstractContextManager[ClientConnection] = connect(
        url, additional_headers=headers, compression=None, open_timeout=_ANSWER_SECS
    )
    return opened


def _as_bytes(message: bytes | str) -> bytes:
    return message if isinstance(message, bytes) else message.encode()


def test_mutated_drop_files_are_answered(target: GatewayProcess) -> None:
    samples = [json.dumps(frame).encode() for frame in FRAMES]
    folder = target.state_dir / "drop"

    def try_case(number: int, random: Random) -> None:
        names = [f"f{number}-{each}.json" for each in range(20)]
        for name in names:
            _drop_file(folder, name, mutate_json(random.choice(samples), random, samples))
        for name in names:
            out = folder / "out" / name
            wait_until(out.exists, _ANSWER_SECS)
            assert b'"internal"' not in out.read_bytes()
            out.unlink()

    with unharmed(target):
        run_cases("drop files", try_case, least=3)


def _drop_file(folder: Path, name: str, content: bytes) -> None:
    (folder / "tmp" / name).write_bytes(content)
    (folder / "tmp" / name).rename(folder / "new" / name)
