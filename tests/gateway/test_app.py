"""Health, metrics, limits: what an operator sees."""

from collections.abc import Callable
from pathlib import Path

import apsw
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gatepost.gateway.api.operations import Operations
from gatepost.testing import GatewayProcess
from tests.gateway.tools import asgi_client, client, mail, opened, websocket
from tests.waiting import async_wait_until, wait_until


def _samples(http: httpx.Client) -> dict[tuple[str, str], float]:
    text = http.get("/metrics").text
    return {
        (sample.name, sample.labels.get("mailbox", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_health_needs_no_token(gateway: GatewayProcess) -> None:
    for path in ("/healthz", "/readyz"):
        answer = httpx.get(gateway.url + path)
        assert (answer.status_code, answer.text) == (200, "ok\n")


def test_metrics_count_what_happened(gateway: GatewayProcess, http: httpx.Client, box: str) -> None:
    # Sessions of an earlier test may end a moment after it.
    wait_until(lambda: _samples(http)["gatepost_sessions", ""] == 0)
    before = _samples(http)
    http.post("/v1/enqueue/batch", json={"messages": [mail(f"m:{n}", box) for n in range(3)]})
    http.post(f"/v1/mailboxes/{box}/dequeue", json={})
    with websocket(gateway):
        after = _samples(http)
    assert after["gatepost_mailbox_waiting", box] == 2
    assert after["gatepost_mailbox_in_flight", box] == 1
    assert after["gatepost_mailbox_dead_letters", box] == 0
    assert after["gatepost_sessions", ""] == 1
    assert after["gatepost_journal_accepting", ""] == 1
    for name in ("gatepost_journal_commits_total", "gatepost_journal_operations_total"):
        assert after[name, ""] > before[name, ""]


def test_status_shows_the_gateway_at_a_glance(gateway: GatewayProcess, http: httpx.Client) -> None:
    status = http.get("/v1/status").json()
    assert (status["pid"], status["accepting"], status["problem"]) == (gateway.pid, True, None)


def test_who_asks_too_often_is_told_when_to_come_again(
    start: Callable[..., GatewayProcess], box: str
) -> None:
    gateway = start(limits__rate_per_sec=2, limits__burst=5)
    with client(gateway) as http:
        answers = [http.get("/v1/agents") for _ in range(8)]
        limited = [answer for answer in answers if answer.status_code == 429]
        assert len(limited) in (2, 3)
        assert limited[0].json()["code"] == "rate_limited"
        assert int(limited[0].headers["retry-after"]) >= 1
        assert httpx.get(f"{gateway.url}/healthz").is_success
        with websocket(gateway) as frames:
            frames.send([{"op": "peek", "id": n, "mailbox": box} for n in range(5)])
            codes = [frames.next().get("error", {}).get("code") for _ in range(5)]
        assert "rate_limited" in codes, "the token's limit holds on every transport"


def test_each_message_of_a_batch_counts(start: Callable[..., GatewayProcess], box: str) -> None:
    gateway = start(limits__rate_per_sec=0.1, limits__burst=50)
    with client(gateway) as http:
        batch = {"messages": [mail(f"m:{n}", box) for n in range(30)]}
        assert http.post("/v1/enqueue/batch", json=batch).status_code == 200
        assert http.post("/v1/enqueue/batch", json=batch).status_code == 429


def _asgi(operations: Operations) -> httpx.AsyncClient:
    return asgi_client(operations, "127.0.0.1")


@pytest.mark.anyio
async def test_a_gateway_whose_disk_fails_says_so_and_accepts_nothing(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations, _asgi(operations) as http:
        assert (await http.get("/readyz")).status_code == 200

        def fail(tx: object) -> None:
            raise apsw.IOError("disk I/O error")

        monkeypatch.setattr(operations.core.coordinator, "before_commit", fail)
        for _ in range(2):
            refused = await http.post("/v1/enqueue", json=mail("m:1", "b"))
            assert (refused.status_code, refused.json()["code"]) == (503, "storage_failed")
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "storage_failed")
        assert (await http.get("/healthz")).status_code == 200
        status = (await http.get("/v1/status")).json()
        assert status["accepting"] is False
        assert "restart" in status["problem"]
        assert "gatepost_journal_accepting 0.0" in (await http.get("/metrics")).text


@pytest.mark.anyio
async def test_a_full_disk_is_survived_once_there_is_room(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations, _asgi(operations) as http:

        def fail(tx: object) -> None:
            raise apsw.FullError("database or disk is full")

        monkeypatch.setattr(operations.core.coordinator, "before_commit", fail)
        assert (await http.post("/v1/enqueue", json=mail("m:1", "b"))).status_code == 503
        assert (await http.get("/readyz")).status_code == 503
        monkeypatch.undo()
        await async_wait_until(lambda: operations.core.writer.failure is None)
        answer = await http.post("/v1/enqueue", json=mail("m:1", "b"))
        assert answer.json() == {"msg_id": "m:1", "queued": True, "pending": 1}


@pytest.mark.anyio
async def test_what_nobody_expected_is_logged_and_not_shown(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(state) as operations, _asgi(operations) as http:

        async def fail(query: object) -> None:
            raise RuntimeError("the secret inside")

        monkeypatch.setattr(operations.core, "read", fail)
        answer = await http.get("/v1/agents")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert "the secret inside" in caplog.text


@pytest.mark.anyio
async def test_a_page_of_metrics_has_a_bound(state: Path) -> None:
    async with opened(state) as operations, _asgi(operations) as http:
        batch = [mail(f"m:{n}", f"box{n}") for n in range(1000)]
        await http.post("/v1/enqueue/batch", json={"messages": batch})
        busy = [mail(f"b:{n}", "busy") for n in range(5)]
        await http.post("/v1/enqueue/batch", json={"messages": busy})
        text = (await http.get("/metrics")).text
    waiting = {
        sample.labels["mailbox"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gatepost_mailbox_waiting"
    }
    assert waiting["busy"] == 5
    assert len(waiting) == 201
    assert sum(waiting.values()) == 1005, "the others are counted together"
    assert waiting["_others"] == 801
