"""Incidents, reviews and advice over HTTP, from an operator and from a pipeline with its token."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatepost.access import Scope
from tests.gateway.admin.test_external_agents import External
from tests.gateway.tools import client
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

# A little in the past, so that nothing lies ahead of the clock of a gateway.
NOW = int(time.time() * 1000) - 3_600_000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("feedback")
    with Gateway(folder, "host", room__join_burst=10_000) as running:
        running.invite()
        yield running


@pytest.fixture(scope="module")
def pipeline(host: Gateway) -> Iterator[httpx.Client]:
    token = External(host, "pipeline", Scope.ADMIN_FEEDBACK).tokens["accessToken"]
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=host.url, headers=headers, timeout=30) as session:
        yield session


def incident(id: str, **fields: object) -> dict[str, object]:
    said = {"id": id, "class": "silent_node", "subject": "bob", "detail": "not heard of for 10 min"}
    return {**said, "raisedAt": NOW, "corrIds": ["talk-1", "talk-2"], **fields}


def review(id: str, **fields: object) -> dict[str, object]:
    return {
        "id": id,
        "capabilityId": "summarise",
        "delegationSkillVersion": "1.2.0",
        "executorSkillVersion": "3.0.1",
        "failureClass": "eta_breach",
        "count": 4,
        "corrIds": [f"talk-{n}" for n in range(20)],
        "eventIds": ["01900000-0000-7000-8000-000000000000"],
        "raisedAt": NOW,
        **fields,
    }


def advice(at: int, eta: int) -> dict[str, object]:
    figures = {"p50Secs": 3.5, "p95Secs": 20.25, "recommendedEtaSeconds": eta, "samples": 100}
    return {"capabilityId": "summarise", **figures, "at": at}


def stored(answer: httpx.Response) -> tuple[int, int]:
    assert answer.status_code == 200, answer.text
    return answer.json()["given"], answer.json()["new"]


def test_incidents_of_the_pipeline_are_stored_once(host: Gateway, pipeline: httpx.Client) -> None:
    said = [incident("i-1"), incident("i-2", **{"class": "backlog"})]
    assert stored(pipeline.post("/v1/incidents", json=said)) == (2, 2)
    assert stored(pipeline.post("/v1/incidents", json=[*said, incident("i-3")])) == (3, 1)
    found = host.call("GET", "/incidents?class=backlog")
    (one,) = found["incidents"]
    assert one == {
        "id": "pipeline:i-2",
        "class": "backlog",
        "subject": "bob",
        "detail": "not heard of for 10 min",
        "raised_at": NOW,
        "source": "pipeline",
        "corr_ids": ["talk-1", "talk-2"],
        "status": "open",
        "settled_at": None,
        "settled_by": None,
        "ended_at": None,
        "count": None,
    }
    assert found["counts"] == {"backlog": 1, "silent_node": 2}
    assert host.call("GET", f"/incidents?since={NOW + 1}")["incidents"] == []
    assert len(host.call("GET", "/incidents?limit=1")["incidents"]) == 1
    assert host.call("GET", "/status")["incidents"] == {"backlog": 1, "silent_node": 2}
    with client(host) as http:
        assert 'gatepost_incidents_total{class="backlog"} 1.0' in http.get("/metrics").text


def test_an_incident_posted_again_has_its_new_end_and_count(
    host: Gateway, pipeline: httpx.Client
) -> None:
    def shown() -> dict[str, Any]:
        (found,) = host.call("GET", "/incidents?class=clock_skew")["incidents"]
        return {name: found[name] for name in ("ended_at", "count", "detail", "status")}

    def post(**fields: object) -> tuple[int, int]:
        said = incident("ends", **{"class": "clock_skew"}, **fields)
        return stored(pipeline.post("/v1/incidents", json=[said]))

    assert post(count=3, detail="3 were late") == (1, 1)
    assert shown() == {"ended_at": None, "count": 3, "detail": "3 were late", "status": "open"}
    assert host.call("GET", "/status")["incidents"]["clock_skew"] == 1
    assert post(count=8, detail="8 were late", endedAt=NOW + 9) == (1, 0)
    over = {"ended_at": NOW + 9, "count": 8, "detail": "8 were late", "status": "open"}
    assert shown() == over
    assert "clock_skew" not in host.call("GET", "/status")["incidents"]
    host.call("POST", "/incidents/resolve", {"id": "pipeline:ends", "note": ""})
    assert post(count=9, detail="9 were late", endedAt=NOW + 10) == (1, 0)
    assert shown()["status"] == "resolved", "the operator's word stays"
    assert (shown()["count"], shown()["ended_at"]) == (9, NOW + 10)


def test_a_class_the_pipeline_cannot_find_is_refused(pipeline: httpx.Client) -> None:
    """Classes are labels of metrics, and a gateway's own are its own."""
    for name in ("dead_letter", "made_up"):
        answer = pipeline.post("/v1/incidents", json=[incident("i-9", **{"class": name})])
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_only_the_scope_for_it_opens_this_door(host: Gateway) -> None:
    other = External(host, "other", Scope.STATUS_READ, Scope.ADMIN_MAILBOX).tokens["accessToken"]
    for path, body in (
        ("incidents", incident("x")),
        ("reviews", review("x")),
        ("eta-advice", advice(NOW, 5)),
    ):
        for token, status in (("nonsense", 401), (other, 403)):
            headers = {"authorization": f"Bearer {token}"}
            answer = httpx.post(f"{host.url}/v1/{path}", json=[body], headers=headers)
            assert answer.status_code == status, answer.text
        assert httpx.post(f"{host.url}/v1/{path}", json=[body]).status_code == 401
    assert "x" not in {each["id"] for each in host.call("GET", "/reviews")}


def test_that_scope_opens_no_other_door(pipeline: httpx.Client) -> None:
    for path in ("/v1/incidents", "/v1/reviews", "/v1/status", "/metrics"):
        assert pipeline.get(path).status_code == 401
    assert pipeline.post("/v1/reviews/r/resolve", json={}).status_code == 401


def said_in_room(host: Gateway, id: str) -> Any:
    return host.records().get(f"reviews {id}@host")


def test_a_review_stands_in_the_room_until_it_is_settled(
    host: Gateway, pipeline: httpx.Client
) -> None:
    assert stored(pipeline.post("/v1/reviews", json=[review("r-1")])) == (1, 1)
    wait_until(lambda: said_in_room(host, "r-1"))
    record = said_in_room(host, "r-1")
    (data,) = [each for each in record.values() if isinstance(each, dict) and "corrIds" in each]
    assert (data["failureClass"], len(data["corrIds"])) == ("eta_breach", 8)
    assert stored(pipeline.post("/v1/reviews", json=[review("r-1", count=9)])) == (1, 0)
    (kept,) = [each for each in host.call("GET", "/reviews?status=open") if each["id"] == "r-1"]
    assert (kept["count"], len(kept["corr_ids"]), kept["status"]) == (9, 20, "open")
    done = host.call("POST", "/reviews/r-1/resolve", {"note": "promises 30 s now"})
    assert (done["status"], done["settled_by"], done["note"]) == (
        *("resolved", "operator", "promises 30 s now"),
    )
    assert '"resolved"' in str(said_in_room(host, "r-1")).replace("'", '"')
    assert stored(pipeline.post("/v1/reviews", json=[review("r-1", count=99)])) == (1, 0)
    (kept,) = [each for each in host.call("GET", "/reviews") if each["id"] == "r-1"]
    assert (kept["count"], kept["status"]) == (9, "resolved"), "what is settled stays settled"
    with client(host) as http:
        assert http.post("/v1/reviews/r-1/dismiss", json={}).status_code == 409
        assert http.post("/v1/reviews/r-none/dismiss", json={}).status_code == 404
    assert host.call("GET", "/audit")[0]["action"] == "review.resolved"


def test_the_latest_advice_counts(host: Gateway, pipeline: httpx.Client) -> None:
    assert stored(pipeline.post("/v1/eta-advice", json=[advice(NOW, 30)])) == (1, 1)
    assert stored(pipeline.post("/v1/eta-advice", json=[advice(NOW - 1, 5)])) == (1, 0)
    assert stored(pipeline.post("/v1/eta-advice", json=[advice(NOW + 1, 40)])) == (1, 1)
    (found,) = host.call("GET", "/eta-advice")
    assert (found["capability_id"], found["recommended_eta_seconds"]) == ("summarise", 40)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("incidents", {}),
        ("incidents", [incident("")]),
        ("incidents", [incident("i", corrIds=["bad id"])]),
        ("reviews", [review("a@b")]),
        ("reviews", [review("r", failureClass="boredom")]),
        ("reviews", [review("r", eventIds=["nonsense"])]),
        ("eta-advice", [advice(NOW, 0)]),
    ],
)
def test_what_is_malformed_is_refused_whole(
    pipeline: httpx.Client, path: str, body: object
) -> None:
    answer = pipeline.post(f"/v1/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text


def test_a_gateway_without_a_room_says_it_when_it_has_one(tmp_path: Path) -> None:
    with Gateway(tmp_path, "alone") as alone:
        alone.call("POST", "/reviews", [review("r-early")])
        (kept,) = alone.call("GET", "/reviews")
        assert kept["id"] == "r-early"
        alone.invite()
        alone.call("POST", "/reviews", [review("r-late")])
        wait_until(lambda: "reviews r-early@alone" in alone.records())
        assert "reviews r-late@alone" in alone.records()


@pytest.fixture(scope="module")
def far(host: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Another gateway of the room, to which nothing is posted."""
    with Gateway(tmp_path_factory.mktemp("far"), "far") as running:
        running.join(host)
        yield running


def test_reviews_are_seen_and_resolved_at_every_gateway(
    host: Gateway, far: Gateway, pipeline: httpx.Client
) -> None:
    assert stored(pipeline.post("/v1/reviews", json=[review("far-away")])) == (1, 1)

    def shown(at: Gateway) -> dict[str, Any]:
        found = {each["id"]: each for each in at.call("GET", "/reviews?limit=1000")}
        return dict(found.get("far-away", {}))

    wait_until(lambda: shown(far).get("status") == "open")
    assert shown(far)["count"] == 4
    settled = far.call("POST", "/reviews/far-away/resolve", {"note": "done"})
    assert (settled["status"], shown(far)["status"]) == ("resolved", "resolved")
    wait_until(lambda: shown(host)["status"] == "resolved")
    assert shown(host)["settled_by"] == "far"
    with client(host) as http:
        assert http.post("/v1/reviews/far-away/dismiss", json={}).json()["code"] == "conflict"


def test_incidents_are_seen_and_resolved_at_every_gateway(
    host: Gateway, far: Gateway, pipeline: httpx.Client
) -> None:
    now = int(time.time() * 1000)
    assert stored(pipeline.post("/v1/incidents", json=[incident("far-1", raisedAt=now)])) == (1, 1)

    def shown(at: Gateway) -> dict[str, Any]:
        found = {each["id"]: each for each in at.call("GET", "/incidents")["incidents"]}
        return dict(found.get("pipeline:far-1", {}))

    wait_until(lambda: shown(far).get("status") == "open")
    assert (shown(far)["subject"], shown(far)["detail"]) == ("bob", ""), "details stay at home"
    body = {"id": "pipeline:far-1", "note": "he is back"}
    assert far.call("POST", "/incidents/resolve", body)["settled_by"] == "far"
    wait_until(lambda: shown(host)["status"] == "resolved")
    with client(far) as http:
        assert http.post("/v1/incidents/resolve", json=body).json()["code"] == "conflict"
        missing = http.post("/v1/incidents/resolve", json={"id": "nothing"})
        assert missing.json()["code"] == "not_found"


def test_an_incident_that_is_over_is_so_at_every_gateway(
    host: Gateway, far: Gateway, pipeline: httpx.Client
) -> None:
    now = int(time.time() * 1000)
    lasting = incident("far-2", raisedAt=now - 1000)
    assert stored(pipeline.post("/v1/incidents", json=[lasting])) == (1, 1)

    def shown() -> dict[str, Any]:
        found = {each["id"]: each for each in far.call("GET", "/incidents")["incidents"]}
        return dict(found.get("pipeline:far-2", {}))

    wait_until(lambda: shown().get("status") == "open")
    assert shown()["ended_at"] is None
    assert stored(pipeline.post("/v1/incidents", json=[lasting | {"endedAt": now}])) == (1, 0)
    wait_until(lambda: shown()["ended_at"] == now)
    assert (shown()["status"], shown()["settled_at"], shown()["settled_by"]) == ("open", None, None)
    settled = far.call("POST", "/incidents/resolve", {"id": "pipeline:far-2", "note": ""})
    assert (settled["status"], settled["ended_at"]) == ("resolved", now)


def test_an_edge_gateway_refuses_to_settle_what_was_posted_to_another(
    host: Gateway, pipeline: httpx.Client, tmp_path: Path
) -> None:
    now = int(time.time() * 1000)
    pipeline.post("/v1/incidents", json=[incident("for-host", raisedAt=now)])
    pipeline.post("/v1/reviews", json=[review("for-host")])
    with Gateway(tmp_path, "edge") as edge:
        edge.join(host, tier="edge")
        wait_until(lambda: "for-host" in [each["id"] for each in edge.call("GET", "/reviews")])
        with client(edge) as http:
            body = {"id": "pipeline:for-host"}
            wait_until(lambda: http.get("/v1/incidents").json()["incidents"])
            for path, sent in (("incidents/resolve", body), ("reviews/for-host/resolve", {})):
                refused = http.post(f"/v1/{path}", json=sent)
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
                assert "on a backbone node" in refused.json()["message"]
        assert {each["status"] for each in edge.call("GET", "/reviews?status=open")} == {"open"}


@pytest.mark.parametrize("path", ["incidents", "reviews", "eta-advice"])
def test_an_unknown_field_of_a_report_is_named(pipeline: httpx.Client, path: str) -> None:
    entries = {"incidents": incident("x"), "reviews": review("x"), "eta-advice": advice(NOW, 1)}
    refused = pipeline.post(f"/v1/{path}", json=[entries[path] | {"foo": 1}])
    assert refused.status_code == 400
    assert "unknown field `foo`" in refused.json()["message"]


def test_advice_is_seen_at_every_gateway(
    host: Gateway, far: Gateway, pipeline: httpx.Client
) -> None:
    told = advice(NOW + 10**5, 77) | {"capabilityId": "translate"}
    assert stored(pipeline.post("/v1/eta-advice", json=[told])) == (1, 1)

    def shown() -> dict[str, Any]:
        found = {each["capability_id"]: each for each in far.call("GET", "/eta-advice")}
        return dict(found.get("translate", {}))

    wait_until(lambda: shown().get("recommended_eta_seconds") == 77)
    assert (shown()["p50_secs"], shown()["p95_secs"]) == (3.5, 20.25)
