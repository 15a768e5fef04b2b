"""Frames over WebSocket: push with credit, leases that survive a reconnect, bad frames."""

import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from gatepost.testing import GatewayProcess
from tests.gateway.tools import Frames, client, mail, memory, raw_websocket, websocket
from tests.waiting import assert_stays_true, wait_until


def _enqueue(frames: Frames, *messages: dict[str, object]) -> None:
    answer = frames.ask("enqueue", messages=messages)
    assert all(result["queued"] for result in answer["results"])


def _delivered(frames: Frames, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        frame = frames.next()
        assert frame["op"] == "deliver", frame
        found += frame["messages"]
    return found


def _state(gateway: GatewayProcess, box: str) -> list[tuple[str, str, int]]:
    found = gateway.get(f"/v1/mailboxes/{box}")["messages"]
    return [(m["msg_id"], m["state"], m["attempt"]) for m in found]


def test_mail_is_pushed_as_it_comes_and_acked(gateway: GatewayProcess, box: str) -> None:
    with websocket(gateway) as sender, websocket(gateway) as receiver:
        assert receiver.ask("subscribe", id=7, mailbox=box) == {"op": "done", "re": 7}
        _enqueue(sender, mail("m:1", box))
        frame = receiver.next()
        assert (frame["op"], frame["mailbox"]) == ("deliver", box)
        (message,) = frame["messages"]
        assert message["payload"] == "payload of m:1"
        answer = receiver.ask("ack", id=8, mailbox=box, receipts=[message["receipt"]])
        assert answer == {"op": "settled", "re": 8, "settled": 1}
    assert _state(gateway, box) == []


def test_many_operations_in_one_frame_are_each_answered(gateway: GatewayProcess, box: str) -> None:
    with websocket(gateway) as frames:
        ops = [{"op": "enqueue", "id": n, "messages": [mail(f"m:{n}", box)]} for n in range(50)]
        frames.send(ops)
        answers = [frames.next() for _ in ops]
    assert sorted(answer["re"] for answer in answers[1:]) == list(range(1, 50))
    assert [m for m, *_ in _state(gateway, box)] == [f"m:{n}" for n in range(50)]


def test_credit_is_never_exceeded(gateway: GatewayProcess, box: str) -> None:
    with websocket(gateway) as sender, websocket(gateway) as receiver:
        receiver.ask("subscribe", mailbox=box, credit=3)
        _enqueue(sender, *(mail(f"m:{n}", box, f"sender{n}") for n in range(10)))
        held = _delivered(receiver, 3)
        assert receiver.silent()
        seen = [m["msg_id"] for m in held]
        while len(seen) < 10:
            receiver.send({"op": "ack", "mailbox": box, "receipts": [held.pop(0)["receipt"]]})
            assert receiver.next()["op"] == "settled"
            (more,) = _delivered(receiver, 1)
            held.append(more)
            seen.append(more["msg_id"])
            assert len(held) <= 3
        assert receiver.silent(0.05)
    assert sorted(seen) == sorted(f"m:{n}" for n in range(10))


def test_unsubscribing_gives_mail_back_unharmed(gateway: GatewayProcess, box: str) -> None:
    with websocket(gateway) as frames:
        _enqueue(frames, mail("m:1", box), mail("m:2", box))
        frames.ask("subscribe", mailbox=box)
        assert len(_delivered(frames, 2)) == 2
        assert frames.ask("unsubscribe", id=3, mailbox=box) == {"op": "done", "re": 3}
        assert _state(gateway, box) == [("m:1", "pending", 0), ("m:2", "pending", 0)]
        _enqueue(frames, mail("m:3", box))
        assert frames.silent(), "it does not listen any more"


def test_a_consumer_that_reconnects_gets_the_same_lease_again(
    gateway: GatewayProcess, box: str
) -> None:
    with websocket(gateway) as frames:
        _enqueue(frames, mail("m:1", box))
        frames.ask("subscribe", mailbox=box, consumer="worker")
        (first,) = _delivered(frames, 1)
    with websocket(gateway) as other:
        other.ask("subscribe", mailbox=box, consumer="somebody else")
        assert other.silent()
    with websocket(gateway) as frames:
        frames.ask("subscribe", mailbox=box, consumer="worker")
        (again,) = _delivered(frames, 1)
        assert again == first
        assert frames.ask("ack", mailbox=box, receipts=[first["receipt"]])["settled"] == 1


def test_subscribing_twice_is_refused_even_when_both_come_at_once(
    gateway: GatewayProcess, box: str
) -> None:
    with websocket(gateway) as frames:
        frames.send([{"op": "subscribe", "id": n, "mailbox": box} for n in (1, 2)])
        answers = {answer["re"]: answer for answer in (frames.next(), frames.next())}
        assert answers[1]["op"] == "done"
        assert answers[2]["error"]["code"] == "invalid_request"
        _enqueue(frames, mail("m:1", box))
        assert len(_delivered(frames, 1)) == 1


def test_unsubscribing_right_after_subscribing_works(gateway: GatewayProcess, box: str) -> None:
    with websocket(gateway) as frames:
        frames.send([{"op": op, "id": 1, "mailbox": box} for op in ("subscribe", "unsubscribe")])
        assert [frames.next()["op"], frames.next()["op"]] == ["done", "done"]
        _enqueue(frames, mail("m:1", box))
        assert frames.silent()
        assert frames.ask("unsubscribe", mailbox=box)["error"]["code"] == "invalid_request"


def _sessions(gateway: GatewayProcess) -> str:
    with client(gateway) as http:
        lines = http.get("/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith("gatepost_sessions ")]
    return line


def test_after_a_disconnect_new_mail_goes_to_others(gateway: GatewayProcess, box: str) -> None:
    with websocket(gateway) as gone:
        gone.ask("subscribe", mailbox=box)
    wait_until(lambda: _sessions(gateway) == "gatepost_sessions 0.0")
    with websocket(gateway) as frames:
        _enqueue(frames, mail("m:1", box))
        assert [m["msg_id"] for m in frames.ask("dequeue", mailbox=box)["messages"]] == ["m:1"]


def test_text_is_answered_as_text_and_bytes_as_bytes(gateway: GatewayProcess, box: str) -> None:
    frame = json.dumps({"op": "peek", "mailbox": box})
    with raw_websocket(gateway) as connection:
        connection.send(frame)
        assert isinstance(connection.recv(5), str)
        connection.send(frame.encode())
        assert isinstance(connection.recv(5), bytes)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "nonsense",
        "null",
        "7",
        '"enqueue"',
        "[1]",
        "{}",
        '{"op": 1}',
        '{"op": "fly"}',
        '{"op": "enqueue"}',
        '{"op": "enqueue", "messages": []}',
        '{"op": "dequeue", "mailbox": "../x"}',
        '{"op": "peek", "mailbox": "x", "id": -1}',
        b"\xff\xfe",
        b'{"op": "peek", "mailbox": "\xff"}',
        b"\x00",
        "[" * 100_000,
        '{"op":' * 50_000,
        json.dumps([{"op": "peek", "mailbox": "x"}] * 5000),
    ],
)
def test_a_bad_frame_is_answered_and_the_connection_lives(
    gateway: GatewayProcess, box: str, frame: str | bytes
) -> None:
    with websocket(gateway) as frames:
        frames.send(frame)
        answer = frames.next()
        assert (answer["op"], answer["error"]["code"]) == ("failed", "invalid_request")
        assert frames.ask("peek", id=1, mailbox=box) == {"op": "summaries", "re": 1, "messages": []}


def test_a_frame_larger_than_the_limit_ends_the_connection(gateway: GatewayProcess) -> None:
    with raw_websocket(gateway) as connection:
        connection.send(b"x" * (1024 * 1024 + 1))
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_no_token_or_a_wrong_one_is_refused_before_the_handshake(gateway: GatewayProcess) -> None:
    url = gateway.url.replace("http", "ws") + "/v1/ws"
    for headers in ({}, {"authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers=headers)
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body)["code"] == "unauthorized"
    with pytest.raises(InvalidStatus):
        connect(f"{url}?token={gateway.token}")


def test_all_operations_have_answers_of_their_own(gateway: GatewayProcess, box: str) -> None:
    with websocket(gateway) as frames:
        assert frames.ask("register", agent=box)["op"] == "registered"
        new = {"from_agent": "al", "to_agent": box, "payload": 1}
        (sent,) = frames.ask("send", messages=[new])["results"]
        awaited = frames.ask("await", event_id=sent["event_id"], wait_secs=0)
        assert (awaited["op"], awaited["result"]["state"]) == ("awaited", "accepted")
        (message,) = frames.ask("dequeue", mailbox=box)["messages"]
        assert frames.ask("extend", mailbox=box, receipts=[message["receipt"]])["settled"] == 1
        assert frames.ask("nack", mailbox=box, receipts=[message["receipt"]])["settled"] == 1
        assert frames.ask("purge", mailbox=box)["count"] == 1
        (letter,) = frames.ask("peek_dead_letter", mailbox=box)["messages"]
        assert letter["attempts"] == 1
        assert frames.ask("purge_dead_letter", mailbox=box)["count"] == 1
        lost = frames.ask("await", event_id="nonsense")
        assert lost["error"]["code"] == "invalid_id"


def test_a_client_that_never_reads_costs_little_memory(
    start: Callable[..., GatewayProcess], box: str, count: Callable[[int, int], int]
) -> None:
    """It may ask for large answers as often as it likes; the gateway stops listening to it."""
    gateway = start()
    with client(gateway) as http:
        payload = "x" * 60_000
        for n in range(100):
            body = mail(f"m:{n}", box, payload=payload)
            assert http.post("/v1/enqueue", json=body).is_success
        http.delete(f"/v1/mailboxes/{box}")
    before = memory(gateway)
    ask = json.dumps([{"op": "peek_dead_letter", "mailbox": box, "limit": 1000}] * 20)
    with raw_websocket(gateway) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.settimeout(0.2)
        for _ in range(count(20, 200)):
            try:
                deaf.send(ask)
            except OSError:
                break
        assert_stays_true(lambda: memory(gateway) - before < 80_000_000, 1)
        deaf.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: gateway.get("/v1/status")["accepting"])


def test_there_are_only_so_many_connections(start: Callable[..., GatewayProcess]) -> None:
    gateway = start(limits__max_connections=3)
    with contextlib.ExitStack() as held:
        held.enter_context(raw_websocket(gateway))
        held.enter_context(raw_websocket(gateway))
        with pytest.raises(InvalidStatus) as refused:
            for _ in range(3):
                held.enter_context(raw_websocket(gateway))
        assert refused.value.response.status_code == 503
    wait_until(lambda: httpx.get(f"{gateway.url}/healthz").is_success)
