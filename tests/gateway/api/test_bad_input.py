"""Bad input over a real socket: a coded error, nothing changed, memory flat."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, dump, mail, memory, unix_socket, websocket

MSG = {"msg_id": "bad:1", "from": "a", "to": "bad-box", "payload": "x"}
SEND = {"from_agent": "a", "to_agent": "bad-box", "payload": "x"}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that nothing but bad input reaches, with one message in one mailbox."""
    with GatewayProcess(tmp_path_factory.mktemp("bad") / "state") as running:
        with client(running) as http:
            assert http.post("/v1/enqueue", json=mail("good:1", "good-box")).is_success
            assert http.put("/v1/agents/good-box").is_success
        yield running


@pytest.fixture
def unchanged(own: GatewayProcess) -> Iterator[None]:
    """Every row is what it was, but for the journal's note of how far it has compacted."""
    journal = own.state_dir / "journal.db"
    before = dump(journal)
    yield
    assert dump(journal) | {"fact": []} == before | {"fact": []}


pytestmark = pytest.mark.usefixtures("unchanged")


def _coded(answer: httpx.Response, *statuses: int) -> None:
    assert answer.status_code in (statuses or (400,)), answer.text
    assert answer.json()["code"] not in ("internal", "error")
    assert len(answer.content) < 2000, "an error does not echo what was sent"


TRICKS = [
    "../x",
    "..",
    ".",
    "a/b",
    "a\\b",
    "a\x00b",
    "x\n",
    "\nx",
    " x",
    "",
    "ünïcode",
    "\u202ex",
    "😀",
    "x" * 300,
    "%2e%2e",
    "-rf",
    "~root",
]


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("field", ["msg_id", "from", "to"])
def test_ids_that_play_tricks_are_refused_in_bodies(
    own: GatewayProcess, field: str, trick: str
) -> None:
    with client(own) as http:
        _coded(http.post("/v1/enqueue", json=MSG | {field: trick}))


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("field", ["from_agent", "to_agent", "event_id", "corr_id"])
def test_ids_that_play_tricks_are_refused_in_sends(
    own: GatewayProcess, field: str, trick: str
) -> None:
    with client(own) as http:
        _coded(http.post("/v1/messages", json=SEND | {"to_agent": "good-box"} | {field: trick}))


@pytest.mark.parametrize(
    "trick",
    ["%2e%2e", "..%2f..%2fetc%2fpasswd", "a%00b", "x%0a", "%c3%bc", "%ff%fe", "%25", "a%5cb"],
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/mailboxes/{}", None),
        ("DELETE", "/v1/mailboxes/{}", None),
        ("POST", "/v1/mailboxes/{}/dequeue", {}),
        ("POST", "/v1/mailboxes/{}/ack", {"msg_ids": ["m"]}),
        ("POST", "/v1/mailboxes/{}/extend", {"receipts": ["1.1"]}),
        ("GET", "/v1/mailboxes/{}/dead-letters", None),
        ("GET", "/v1/mailboxes/good-box/dead-letters/{}", None),
        ("POST", "/v1/mailboxes/{}/dead-letters/replay", {}),
        ("PUT", "/v1/agents/{}", None),
        ("DELETE", "/v1/agents/{}", None),
        ("GET", "/v1/messages/{}", None),
        ("GET", "/v1/messages/{}/trace", None),
        ("GET", "/v1/blobs/{}", None),
    ],
)
def test_paths_that_play_tricks_are_refused(
    own: GatewayProcess, method: str, path: str, body: object, trick: str
) -> None:
    """Sent over a bare socket, for a client library would tidy the path first."""
    status, answer = _raw(own, method, path.format(trick), "" if body is None else json.dumps(body))
    assert status in (400, 404, 405), answer
    assert answer["code"] in ("invalid_id", "not_found", "method_not_allowed")


def _raw(gateway: GatewayProcess, method: str, path: str, body: str) -> tuple[int, Any]:
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.token}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        connection.sendall((head + body).encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    top, _, content = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(content)


@pytest.mark.parametrize(
    "change",
    [
        {"created_at": -1},
        {"created_at": 2**70},
        {"created_at": 1.5},
        {"created_at": "now"},
        {"created_at": None},
        {"attempt": -1},
        {"attempt": 2**70},
        {"ttl_secs": 0},
        {"ttl_secs": -5},
        {"ttl_secs": 1e300},
        {"ttl_secs": True},
        {"msg_id": 7},
        {"msg_id": None},
        {"msg_id": ["x"]},
        {"from": {}},
        {"to": 0},
        {"payload": "x" * 70_000},
    ],
)
def test_wrong_types_and_numbers_are_refused(own: GatewayProcess, change: dict[str, Any]) -> None:
    with client(own) as http:
        _coded(http.post("/v1/enqueue", json=MSG | change), 400, 413)
        batch = {"messages": [MSG, MSG | {"msg_id": "bad:2"} | change]}
        _coded(http.post("/v1/enqueue/batch", json=batch), 400, 413)


@pytest.mark.parametrize("missing", ["msg_id", "from", "to", "payload"])
def test_what_is_missing_is_named(own: GatewayProcess, missing: str) -> None:
    body = {key: value for key, value in MSG.items() if key != missing}
    with client(own) as http:
        answer = http.post("/v1/enqueue", json=body)
    _coded(answer)
    assert missing in answer.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\x00",
        b"\xff\xfe",
        b'{"msg_id": "bad:1", "from": "a", "to": "b", "payload": "\xff"}',
        b'{"msg_id": "bad:1", "from": "a", "to": "b", "payload": {"k\xc3": 1}}',
        b'{"msg_id": "bad:1", "from": "a", "to": "b", "payload": nonsense}',
        b'{"msg_id": "bad:1", "from": "a", "to": "b", "payload": ' + b"[" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"msg_id": "bad:1", "from": "a", "to": "b", "payload": NaN}',
    ],
    ids=range(15),
)
@pytest.mark.parametrize("path", ["/v1/enqueue", "/v1/messages", "/v1/enqueue/batch"])
def test_malformed_bodies_are_refused(own: GatewayProcess, path: str, body: bytes) -> None:
    with client(own) as http:
        _coded(http.post(path, content=body))


def test_a_payload_of_closed_brackets_is_refused_or_kept_whole(own: GatewayProcess) -> None:
    """Nesting that is deep but well-formed must not bring down what reads it later either."""
    deep = b"[" * 20_000 + b"]" * 20_000
    body = b'{"msg_id": "bad:1", "from": "a", "to": "bad-box", "payload": ' + deep + b"}"
    with client(own) as http:
        _coded(http.post("/v1/enqueue", content=body))


@pytest.mark.parametrize("kind", ["websocket", "unix"])
@pytest.mark.parametrize(
    "frame",
    [
        b'{"op":"enqueue","messages":[{"msg_id":"bad:1","from":"a","to":"b","payload":"\xff"}]}',
        b'{"op":"send","messages":[{"from_agent":"a","to_agent":"good-box","payload":"\xff"}]}',
        b'{"op":"ack","mailbox":"good-box","msg_ids":["good:1"],"replies":{"1.1":"\xff"}}',
        b'{"op":"ack","mailbox":"good-box","receipts":["fffffffffffffffff.1"]}',
        b'{"op":"ack","mailbox":"good-box","receipts":["-1.-1"]}',
        b'{"op":"nack","mailbox":"good-box","receipts":["1_0.1_0"]}',
        b'{"op":"extend","mailbox":"good-box","receipts":["7fffffffffffffff.7fffffffffffffff"]}',
        b'{"op":"ack","mailbox":"good-box","msg_ids":["good:1"]}',
        b'{"op":"nack","mailbox":"good-box","msg_ids":["good:1"]}',
        b'{"op":"dequeue","mailbox":"good-box","limit":-1}',
        b'{"op":"dequeue","mailbox":"good-box","limit":1180591620717411303424}',
        b'{"op":"subscribe","mailbox":"good-box","credit":0}',
        b'{"op":"subscribe","mailbox":"x\\n"}',
        b'{"op":"unsubscribe","mailbox":"good-box"}',
        b'{"op":"peek","mailbox":"good-box","after":"' + b"x" * 500 + b'"}',
        b'{"op":"await","event_id":"../../etc/passwd"}',
        b'{"op":"register","agent":"../x"}',
    ],
    ids=range(17),
)
def test_bad_frames_change_nothing(own: GatewayProcess, kind: str, frame: bytes) -> None:
    connect = {"websocket": websocket, "unix": unix_socket}[kind]
    with connect(own) as frames:
        frames.send(frame)
        answer = frames.next()
        failures = [answer["error"]] if "error" in answer else answer["failures"]
        assert failures[0]["code"] not in ("internal", "error")
        assert frames.ask("peek", mailbox="good-box")["messages"][0]["state"] == "pending"


def test_a_body_over_the_limit_is_refused_whether_announced_or_not(own: GatewayProcess) -> None:
    large = b" " * (1024 * 1024 + 1)
    with client(own) as http:
        _coded(http.post("/v1/enqueue", content=large), 413)
        pieces = (large[n : n + 65_536] for n in range(0, len(large), 65_536))
        _coded(http.post("/v1/enqueue", content=pieces), 413)


def test_bad_input_does_not_fill_memory(own: GatewayProcess) -> None:
    bodies = [b"[" * 900_000, b" " * 2_000_000, b'{"messages":[' + b"{}," * 300_000]
    with client(own) as http:
        for body in bodies:
            http.post("/v1/enqueue/batch", content=body)
        before = memory(own)
        for _ in range(60):
            for body in bodies:
                assert http.post("/v1/enqueue/batch", content=body).status_code in (400, 413)
    grown = memory(own) - before
    assert grown < 20_000_000, f"{grown:,} bytes"


def test_a_payload_that_is_nested_too_deeply_for_agents_is_refused(own: GatewayProcess) -> None:
    deep = json.loads("[" * 300 + "]" * 300)
    with client(own) as http:
        _coded(http.post("/v1/enqueue", json={**MSG, "payload": deep}))
        refused = http.post("/v1/messages", json={**SEND, "payload": deep})
        _coded(refused)
        assert "nested" in refused.json()["message"]
