"""Messages a gateway gave up, over HTTP."""

import time
from collections.abc import Iterator
from typing import Any

import apsw
import httpx
import pytest

from gatepost.clock import SystemClock
from gatepost.events import new_event_id, parse_event_id
from gatepost.testing import GatewayProcess

_BURY = """
INSERT INTO undelivered (event_id, kind, from_agent, to_agent, corr_id, node, reason, attempts,
    failed_at, payload, digest, traceparent, ref_id, verdict, verdict_at, replayed_as) VALUES
    (?, 'message', 'al', ?, 'c:1', 'elsewhere', ?, 3, ?, ?, NULL, NULL, NULL, ?, NULL, NULL)
"""


def bury(
    gateway: GatewayProcess,
    to: str,
    *,
    reason: str = "expired",
    verdict: str | None = "never sent",
    payload: bytes = b'"hi"',
) -> str:
    """Put one into the journal, as if its owner had been away."""
    id = new_event_id(SystemClock())
    connection = apsw.Connection(str(gateway.state_dir / "journal.db"))
    connection.set_busy_timeout(5_000)
    row = (parse_event_id(id), to, reason, int(time.time() * 1000), payload, verdict)
    connection.execute(_BURY, row)
    connection.close()
    return id


@pytest.fixture
def agent(http: httpx.Client, box: str) -> Iterator[str]:
    http.put(f"/v1/agents/{box}")
    yield box
    http.post("/v1/undelivered/discard", json={"agent": box})


def _list(http: httpx.Client, **params: Any) -> list[Any]:
    answer = http.get("/v1/undelivered", params=params)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["messages"]
    return found


def test_they_are_listed_and_shown(gateway: GatewayProcess, http: httpx.Client, agent: str) -> None:
    id = bury(gateway, agent, payload=b'{"n":1}')
    (letter,) = _list(http, agent=agent)
    assert (letter["event_id"], letter["reason"], letter["safe"]) == (id, "expired", True)
    assert "payload" not in letter
    assert http.get(f"/v1/undelivered/{id}").json()["payload"] == {"n": 1}


def test_pages_and_filters(gateway: GatewayProcess, http: httpx.Client, agent: str) -> None:
    ids = [bury(gateway, agent, reason=reason) for reason in ("expired", "refused", "expired")]
    assert [each["event_id"] for each in _list(http, agent=agent)] == ids
    assert [each["event_id"] for each in _list(http, agent=agent, limit=2, after=ids[0])] == ids[1:]
    assert [each["event_id"] for each in _list(http, agent=agent, reason="refused")] == [ids[1]]
    assert _list(http, agent=agent, failed_after=int(time.time()) + 60) == []
    assert _list(http, agent=agent, replayed=True) == []


def test_a_replay_is_a_new_event_caused_by_the_old_one(
    gateway: GatewayProcess, http: httpx.Client, agent: str
) -> None:
    id = bury(gateway, agent, payload=b'"again"')
    (done,) = http.post("/v1/undelivered/replay", json={"event_ids": [id]}).json()["results"]
    assert done["event_id"] == id
    (mail,) = http.post(f"/v1/mailboxes/{agent}/dequeue", json={}).json()["messages"]
    assert (mail["msg_id"], mail["payload"]) == (done["as_event"], "again")
    (first, *_) = http.get(f"/v1/messages/{done['as_event']}/trace").json()
    assert first["causationId"] == id
    assert http.get(f"/v1/undelivered/{id}").json()["replayed_as"] == done["as_event"]
    assert _list(http, agent=agent, replayed=False) == []
    audited = http.get("/v1/audit", params={"limit": 1}).json()[0]
    assert (audited["action"], audited["subject"]) == ("undelivered.replay", id)


def test_by_filter_each_is_replayed_once_and_the_unsafe_are_named(
    gateway: GatewayProcess, http: httpx.Client, agent: str
) -> None:
    bury(gateway, agent)
    unsafe = bury(gateway, agent, verdict="accepted")
    bury(gateway, agent)
    body = {"agent": agent, "rate_per_sec": 100}
    results = http.post("/v1/undelivered/replay", json=body).json()["results"]
    assert [each.get("error", {}).get("code") for each in results] == [None, "unsafe_replay", None]
    assert "'accepted'" in results[1]["error"]["message"]
    results = http.post("/v1/undelivered/replay", json=body).json()["results"]
    assert [each["event_id"] for each in results] == [unsafe]
    body["force"] = True
    results = http.post("/v1/undelivered/replay", json=body).json()["results"]
    assert results[0]["as_event"]
    assert http.post("/v1/undelivered/replay", json=body).json()["results"] == []


def test_a_replay_to_nobody_leaves_it_as_it_was(
    gateway: GatewayProcess, http: httpx.Client, box: str
) -> None:
    id = bury(gateway, box)
    (done,) = http.post("/v1/undelivered/replay", json={"event_ids": [id]}).json()["results"]
    assert done["error"]["code"] == "unknown_agent"
    assert "replayed_as" not in http.get(f"/v1/undelivered/{id}").json()
    assert http.delete(f"/v1/undelivered/{id}").json()["count"] == 1


def test_one_is_given_up_for_good(gateway: GatewayProcess, http: httpx.Client, agent: str) -> None:
    id, other = bury(gateway, agent), bury(gateway, agent)
    assert http.delete(f"/v1/undelivered/{id}").json()["count"] == 1
    assert http.delete(f"/v1/undelivered/{id}").status_code == 404
    assert http.get(f"/v1/undelivered/{id}").status_code == 404
    assert [each["event_id"] for each in _list(http, agent=agent)] == [other]
    assert http.post("/v1/undelivered/discard", json={"agent": agent}).json()["count"] == 1


@pytest.mark.parametrize("path", ["/v1/undelivered/nonsense", "/v1/undelivered?after=nonsense"])
def test_what_is_no_id_is_a_bad_request(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 400
