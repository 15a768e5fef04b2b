"""What the tables found reaches a real gateway, once, and what it cannot take is told."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gatepost.errors import Unavailable
from gatepost.events import parse_event_id
from gatepost.pipeline import feedback
from gatepost.pipeline.gateway_api import GatewayApi
from gatepost.pipeline.tables import schemas
from gatepost.testing import GatewayProcess
from tests.pipeline.table_rows import write_known_rows

TASK = "019cb0cd-23c0-7181-8f2f-540b49b2a054"
AT = 1_772_490_600_000
HOUR = 3_600_000

INCIDENT = {
    "incident_id": "a" * 32,
    "class": "silent_node",
    "node": "node-03",
    "started_at": AT,
    "count": 9,
    "samples": ["c:1", "c:2"],
    "sentence": "node-03 wrote nothing for more than 600 s",
}
REVIEW = {
    "review_id": "b" * 32,
    "capability_id": "ocr",
    "capability_version": "3.1.0",
    "delegation_version": "2.0.0",
    "executor_version": "3.0.0",
    "class": "terminal_error",
    "count": 4,
    "tasks": 10,
    "first_at": AT,
    "last_at": AT + 5,
    "samples": [TASK],
}
UNVERSIONED = REVIEW | {"review_id": "c" * 32, "executor_version": None}
ETA = {
    "capability_id": "ocr",
    "capability_version": "3.9.0",
    "completed": 70,
    "p50_seconds": 4.0,
    "p95_seconds": 9.3,
    "recommended_eta_seconds": 10,
}
NEWER = ETA | {"capability_version": "3.10.0", "completed": 7, "recommended_eta_seconds": 0}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("feedback")
    task = {"hour": AT // HOUR, "event_id": parse_event_id(TASK), "corr_id": TASK}
    write_known_rows(root, schemas.INCIDENTS, [INCIDENT])
    write_known_rows(root, schemas.REVIEWS, [REVIEW, UNVERSIONED])
    write_known_rows(root, schemas.ETA, [ETA, NEWER])
    write_known_rows(root, schemas.TASKS, [task])
    return str(root)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway") / "state") as process:
        yield process


@pytest.fixture
def gateway(process: GatewayProcess) -> Iterator[GatewayApi]:
    with GatewayApi(process.url, process.token) as gateway:
        yield gateway


def test_a_gateway_takes_everything_once(
    tables: str, process: GatewayProcess, gateway: GatewayApi
) -> None:
    first = feedback.post_feedback(tables, gateway)
    assert [(p.what, p.found, p.given, p.new, p.skipped, p.ok) for p in first] == [
        ("incidents", 1, 1, 1, 0, True),
        ("reviews", 2, 1, 1, 1, True),
        ("ETA advice", 1, 1, 1, 0, True),
    ]
    again = feedback.post_feedback(tables, gateway)
    assert [posted.new for posted in again[:2]] == [0, 0]
    assert all(posted.ok for posted in again)
    (incident,) = process.get("/v1/incidents?class=silent_node")["incidents"]
    assert (incident["count"], incident["ended_at"]) == (9, None)
    assert (incident["source"], incident["subject"]) == ("pipeline", "node-03")
    assert (incident["detail"], incident["corr_ids"]) == (INCIDENT["sentence"], ["c:1", "c:2"])
    (review,) = process.get("/v1/reviews")
    assert (review["capability_id"], review["count"]) == ("ocr", 4)
    assert (review["corr_ids"], review["event_ids"]) == ([TASK], [TASK])
    (advice,) = process.get("/v1/eta-advice")
    assert (advice["samples"], advice["recommended_eta_seconds"]) == (7, 1)


def test_an_incident_that_ended_is_over_at_the_gateway(
    tmp_path: Path, process: GatewayProcess, gateway: GatewayApi
) -> None:
    burst = INCIDENT | {"incident_id": "d" * 32, "class": "dead_letter_burst"}

    def post(name: str, row: dict[str, object]) -> dict[str, Any]:
        write_known_rows(tmp_path / name, schemas.INCIDENTS, [row])
        posted, *_ = feedback.post_feedback(str(tmp_path / name), gateway)
        assert posted.ok
        (found,) = process.get("/v1/incidents?class=dead_letter_burst")["incidents"]
        return dict(found)

    assert post("lasts", burst)["ended_at"] is None
    assert process.get("/v1/status")["incidents"]["dead_letter_burst"] == 1
    over = post("over", burst | {"ended_at": AT + 60_000, "count": 40})
    assert (over["ended_at"], over["count"], over["status"]) == (AT + 60_000, 40, "open")
    assert "dead_letter_burst" not in process.get("/v1/status")["incidents"]


def test_without_tables_there_is_nothing_to_say(tmp_path: Path, gateway: GatewayApi) -> None:
    assert [posted.found for posted in feedback.post_feedback(str(tmp_path), gateway)] == [0, 0, 0]


def test_a_wrong_token_is_told_for_each(tables: str, process: GatewayProcess) -> None:
    with GatewayApi(process.url, "wrong") as gateway:
        posted = feedback.post_feedback(tables, gateway)
    assert all(each.error for each in posted)
    assert not any("wrong" in (each.error or "") for each in posted)


def test_one_bad_item_does_not_keep_the_others_out(tmp_path: Path, gateway: GatewayApi) -> None:
    rows = [INCIDENT | {"incident_id": f"{n:032}", "class": "backlog"} for n in range(7)]
    rows[3] |= {"class": "unheard_of"}
    write_known_rows(tmp_path, schemas.INCIDENTS, rows)
    posted, *_ = feedback.post_feedback(str(tmp_path), gateway)
    assert (posted.found, posted.given, posted.new, len(posted.refused)) == (7, 6, 6, 1)
    assert not posted.ok


class _Server(ThreadingHTTPServer):
    """Says it is busy so many times, then does as it is told."""

    def __init__(self, busy: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.busy = busy
        self.asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        items = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked += 1
        busy = self.server.asked <= self.server.busy
        failure = {"code": "rate_limited", "message": "slow down", "retry_after": 3.0}
        answer: Any = failure if busy else {"given": len(items), "new": len(items)}
        body = json.dumps(answer).encode()
        self.send_response(429 if busy else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def busy(request: pytest.FixtureRequest) -> Iterator[_Server]:
    with _Server(request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("busy", [2], indirect=True)
def test_a_busy_gateway_is_asked_again_when_it_says(busy: _Server) -> None:
    pauses: list[float] = []
    with GatewayApi(f"http://127.0.0.1:{busy.server_port}", "t", sleep=pauses.append) as gateway:
        answer = gateway.post("/v1/incidents", [1], feedback.FeedbackAnswer)
    assert (answer.new, pauses) == (1, [3.0, 3.0])


@pytest.mark.parametrize("busy", [100], indirect=True)
def test_retries_end(busy: _Server) -> None:
    with (
        GatewayApi(f"http://127.0.0.1:{busy.server_port}", "t", sleep=lambda _: None) as gateway,
        pytest.raises(Unavailable, match=r"slow down.*asked 5 times"),
    ):
        gateway.post("/v1/incidents", [1], feedback.FeedbackAnswer)
    assert busy.asked == 5


def test_nobody_there_is_said_so() -> None:
    pauses: list[float] = []
    with (
        GatewayApi("http://127.0.0.1:9", "t", sleep=pauses.append) as gateway,
        pytest.raises(Unavailable, match="does not answer"),
    ):
        gateway.fetch_node_id()
    assert pauses == [0.5, 1.0, 2.0, 4.0]
