"""Input that is right but far from usual."""

from collections.abc import Callable

import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, mail, memory, websocket


@pytest.mark.parametrize("created_at", [0, 1, 2**53])
def test_any_clock_is_taken_at_its_word(gateway: GatewayProcess, box: str, created_at: int) -> None:
    with client(gateway) as http:
        answer = http.post("/v1/enqueue", json=mail("m:1", box, created_at=created_at))
        assert answer.is_success
        (message,) = http.post(f"/v1/mailboxes/{box}/dequeue", json={}).json()["messages"]
    assert (message["created_at"], message["attempt"]) == (created_at, 0)


@pytest.mark.parametrize("payload", [None, 0, "", "\u0000", "\U0001f600", [], {}, [[[]]], 1e308])
def test_any_json_is_a_payload_and_comes_back_as_it_was(
    gateway: GatewayProcess, box: str, payload: object
) -> None:
    with client(gateway) as http:
        assert http.post("/v1/enqueue", json=mail("m:1", box, payload=payload)).is_success
        (message,) = http.post(f"/v1/mailboxes/{box}/dequeue", json={}).json()["messages"]
    assert message["payload"] == payload


def test_a_million_pending_messages_cost_no_memory_and_little_time(
    start: Callable[..., GatewayProcess], count: Callable[[int, int], int]
) -> None:
    total = count(100_000, 1_000_000)
    gateway = start(mailbox__max_pending=total)
    with websocket(gateway, max_size=None) as frames, client(gateway) as http:
        before = memory(gateway)
        for first in range(0, total, 1000):
            batch = [mail(f"m:{first + n}", "big", f"s{n % 10}") for n in range(1000)]
            answer = frames.ask("enqueue", messages=batch)
            assert answer["results"][-1]["pending"] == first + 1000
        full_box = frames.ask("enqueue", messages=[mail("one:more", "big")])
        assert full_box["results"][0]["error"]["code"] == "mailbox_full"
        (taken,) = http.post("/v1/mailboxes/big/dequeue", json={}, timeout=2).json()["messages"]
        assert taken["msg_id"] == "m:0"
        page = http.get("/v1/mailboxes/big", params={"limit": 10}, timeout=2).json()["messages"]
        assert len(page) == 10
        assert http.get("/metrics", timeout=2).is_success
        grown = memory(gateway) - before
    # The journal's page cache may fill up to its 64 MiB; the messages themselves may not stay.
    assert grown < 160_000_000, f"{grown:,} bytes"
