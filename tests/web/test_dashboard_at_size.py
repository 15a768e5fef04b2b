"""The dashboard with 1,000 agents and 100,000 messages: how fast it answers, and what it costs."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client
from tests.web.conftest import Visit

AGENTS, MESSAGES, BATCH = 1000, 100_000, 1000
CALLS = (
    *("/v1/ledger", "/v1/needs", "/v1/status", "/v1/agents", "/v1/mailboxes"),
    *("/v1/messages?limit=50", "/v1/messages?agent=agent5", "/v1/messages?term=dead_letters"),
    *("/v1/messages?conversation=none", "/api/hub/tasks"),
)
_CHANGES_PER_SEC, _WATCHED_SECS = 60, 60
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    state: Path = tmp_path_factory.mktemp("large") / "state"
    with GatewayProcess(state) as gateway, client(gateway) as http:
        http.timeout = 120
        for number in range(AGENTS):
            http.put(f"/v1/agents/agent{number}").raise_for_status()
        for start in range(0, MESSAGES, BATCH):
            messages = [
                {
                    "from_agent": f"agent{(start // BATCH * 7 + place) % AGENTS}",
                    "to_agent": f"agent{(place * 13 + start // BATCH) % AGENTS}",
                    "payload": "x",
                }
                for place in range(BATCH)
            ]
            http.post("/v1/messages/batch", json={"messages": messages}).raise_for_status()
        yield gateway


def metrics(session: Any) -> dict[str, float]:
    found = session.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in found}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_no_call_takes_long(large: GatewayProcess) -> None:
    took = {}
    with client(large) as http:
        for path in CALLS:
            times = []
            for _ in range(5):
                began = time.perf_counter()
                assert http.get(path).is_success, path
                times.append(time.perf_counter() - began)
            took[path] = round(sorted(times)[2] * 1000)
    print(took)
    assert max(took.values()) < 100, took


@pytest.mark.full
@pytest.mark.timeout(900)
def test_pages_paint_at_once_and_follow_many_changes_cheaply(
    large: GatewayProcess, visit: Callable[..., Visit]
) -> None:
    window = visit()
    page = window.log_in(large)
    page.goto(large.url)
    paint = page.evaluate(_PAINT)
    page.wait_for_selector("#live[data-state=on]")
    session = window.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    before = metrics(session)
    is_over = threading.Event()

    def change() -> None:
        body = {"from_agent": "agent1", "to_agent": "agent2", "payload": "x"}
        with client(large) as http:
            while not is_over.wait(1 / _CHANGES_PER_SEC):
                http.post("/v1/messages", json=body)

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    page.wait_for_timeout(_WATCHED_SECS * 1000)
    is_over.set()
    changing.join()
    session.send("HeapProfiler.collectGarbage")
    after = metrics(session)
    share = (after["TaskDuration"] - before["TaskDuration"]) / _WATCHED_SECS
    grown = after["JSHeapUsedSize"] - before["JSHeapUsedSize"]
    nodes = after["Nodes"] - before["Nodes"]
    print(
        f"paint {paint:.0f} ms, main thread {share:.1%}, heap {grown:+,.0f} B, {nodes:+.0f} nodes"
    )
    assert paint < 1000
    assert share < 0.2
    assert grown < 2 << 20
