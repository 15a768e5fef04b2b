"""One protocol over four transports: the same conversation has the same answers."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, drop_and_wait, mail, unix_socket, websocket

Ask = Callable[..., Any]
_requests = itertools.count()

_ROUTES = {
    "dequeue": ("POST", "/dequeue"),
    "ack": ("POST", "/ack"),
    "nack": ("POST", "/nack"),
    "extend": ("POST", "/extend"),
    "peek": ("GET", ""),
    "purge": ("DELETE", ""),
    "peek_dead_letter": ("GET", "/dead-letters"),
    "purge_dead_letter": ("DELETE", "/dead-letters"),
}


@contextlib.contextmanager
def _over_http(gateway: GatewayProcess) -> Iterator[Ask]:
    with client(gateway) as http:
        yield lambda op, **fields: _as_frame(_request(http, op, fields))


def _request(http: httpx.Client, op: str, fields: dict[str, Any]) -> httpx.Response:
    if op == "enqueue":
        return http.post("/v1/enqueue/batch", json=fields)
    mailbox = fields.pop("mailbox")
    method, tail = _ROUTES[op]
    body = fields if method == "POST" else None
    params = None if method == "POST" else fields
    return http.request(method, f"/v1/mailboxes/{mailbox}{tail}", json=body, params=params)


def _as_frame(answer: httpx.Response) -> Any:
    return answer.json() if answer.is_success else {"op": "failed", "error": answer.json()}


@contextlib.contextmanager
def _over_websocket(gateway: GatewayProcess) -> Iterator[Ask]:
    with websocket(gateway) as frames:
        yield frames.ask


@contextlib.contextmanager
def _over_unix_socket(gateway: GatewayProcess) -> Iterator[Ask]:
    with unix_socket(gateway) as frames:
        yield frames.ask


@contextlib.contextmanager
def _over_files(gateway: GatewayProcess) -> Iterator[Ask]:
    def ask(op: str, **fields: object) -> Any:
        return drop_and_wait(gateway, f"transport-{next(_requests)}", {"op": op, **fields})

    yield ask


_TRANSPORTS = {
    "http": _over_http,
    "websocket": _over_websocket,
    "unix": _over_unix_socket,
    "drop": _over_files,
}


def _conversation(ask: Ask, box: str) -> list[Any]:
    """All eight operations of the mailbox, and ways to get them wrong."""
    three = [mail(f"m:{n}", box, created_at=100 + n) for n in range(3)]
    heard = [
        ask("peek", mailbox=box),
        ask("enqueue", messages=three),
        ask("enqueue", messages=three[:1]),
        ask("enqueue", messages=[mail("m:1", box, payload={"other": None})]),
        ask("enqueue", messages=[mail("../m", box)]),
        ask("peek", mailbox=box, limit=2),
    ]
    taken = ask("dequeue", mailbox=box, limit=2, consumer="me")
    receipts = [message["receipt"] for message in taken["messages"]]
    heard += [
        taken,
        ask("dequeue", mailbox=box, consumer="me"),
        ask("dequeue", mailbox=box, wait_secs=0.05),
        ask("extend", mailbox=box, receipts=receipts[:1]),
        ask("ack", mailbox=box, receipts=receipts[1:]),
        ask("ack", mailbox=box, receipts=receipts[:1]),
        ask("nack", mailbox=box, receipts=receipts[1:], reason="no"),
        ask("ack", mailbox=box, receipts=["not a receipt"]),
        ask("ack", mailbox=box),
        ask("peek", mailbox=box),
        ask("purge", mailbox=box),
        ask("peek_dead_letter", mailbox=box),
        ask("purge_dead_letter", mailbox=box),
        ask("peek_dead_letter", mailbox=box),
    ]
    return heard


def _comparable(value: Any, box: str) -> Any:
    """Without what differs from one mailbox and moment to another."""
    if isinstance(value, list):
        return [_comparable(each, box) for each in value]
    if not isinstance(value, dict):
        return "BOX" if value == box else value
    varying = {"receipt", "failed_at", "not_before", "subject", "re"}
    return {k: _comparable(v, box) for k, v in value.items() if k not in varying}


def _failures_as_one(answer: Any) -> Any:
    """HTTP makes the only failure of a request its status; frames carry it in the answer."""
    if answer.get("op") == "settled" and not answer["settled"] and "failures" in answer:
        return {"op": "failed", "error": answer["failures"][0]}
    if answer.get("op") == "failed":
        message = answer["error"]["message"].removeprefix("bad frame: ").partition(" - at ")[0]
        return {"op": "failed", "error": {"code": answer["error"]["code"], "message": message}}
    return answer


def _heard(gateway: GatewayProcess, transport: str, box: str) -> list[Any]:
    with _TRANSPORTS[transport](gateway) as ask:
        answers = _comparable(_conversation(ask, box), box)
    return [_failures_as_one(answer) for answer in answers]


@pytest.fixture(scope="module")
def over_websocket(gateway: GatewayProcess) -> list[Any]:
    return _heard(gateway, "websocket", "transport-reference")


def test_the_conversation_says_what_it_should(over_websocket: list[Any]) -> None:
    told = [answer["op"] for answer in over_websocket]
    assert told == [
        "summaries",
        "enqueued",
        "enqueued",
        "enqueued",
        "failed",
        "summaries",
        "messages",
        "messages",
        "messages",
        "settled",
        "failed",
        "settled",
        "settled",
        "failed",
        "failed",
        "summaries",
        "count",
        "deadletters",
        "count",
        "deadletters",
    ]
    codes = [answer["error"]["code"] for answer in over_websocket if answer["op"] == "failed"]
    assert codes == ["invalid_request", "out_of_order", "stale_receipt", "invalid_request"]


@pytest.mark.parametrize("transport", ["http", "unix", "drop"])
def test_every_transport_has_the_same_answers(
    gateway: GatewayProcess, over_websocket: list[Any], box: str, transport: str
) -> None:
    assert _heard(gateway, transport, box) == over_websocket
