"""The client for TypeScript and JavaScript, in real Node, at a real gateway."""

import contextlib
import json
import stat
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gatepost.client import SyncClient
from gatepost.errors import TurnFailed
from gatepost.testing import GatewayProcess
from tests.cli.conftest import Cli
from tests.gateway.tools import client as http_client
from tests.typescript.conftest import Program, Start
from tests.waiting import wait_until


def register(gateway: GatewayProcess, *agents: str) -> None:
    with http_client(gateway) as http:
        for agent in agents:
            http.put(f"/v1/agents/{agent}").raise_for_status()


def has_said(program: Program, least: int) -> bool:
    return len(program.said) >= least


def waiting(gateway: GatewayProcess, box: str) -> list[Any]:
    return list(gateway.get(f"/v1/mailboxes/{box}?limit=1000")["messages"])


def test_a_program_in_node_and_one_in_python_answer_each_other(
    gateway: GatewayProcess, start: Start
) -> None:
    register(gateway, "echo")
    with (
        start(gateway, "serve", "echo") as server,
        SyncClient("py", state_dir=gateway.state_dir) as client,
    ):
        assert client.request("echo", {"n": [1, None]}) == {"echo": {"n": [1, None]}}
        sent = client.send("echo", "again", corr_id="talk-7", wait="processed")
        assert sent.outcome == "ok"
        server.hears(took="again", **{"from": "py"}, corr="talk-7")
        with start(gateway, "request", "echo", '"hi"') as asking:
            assert asking.finish() == [{"reply": {"echo": "hi"}}]
        server.tell()
        assert server.finish()[-1] == {"ended": True}


def test_a_handler_that_throws_fails_its_turn_with_its_own_words(
    gateway: GatewayProcess, start: Start
) -> None:
    register(gateway, "picky")
    with (
        start(gateway, "serve", "picky") as server,
        SyncClient("py", state_dir=gateway.state_dir) as client,
    ):
        with pytest.raises(TurnFailed, match="the disk is full"):
            client.request("picky", "bad")
        # A failed turn is tried again, a rejected message is not.
        wait_until(lambda: len(server.found(took="bad")) == 2)
        with pytest.raises(TurnFailed, match="is wrong") as caught:
            client.request("picky", "leak")
        assert "hunter2" not in str(caught.value)
        with pytest.raises(TurnFailed, match="not a job for me"):
            client.request("picky", "wrong")
        server.hears(took="wrong")
        assert len(server.found(took="wrong")) == 1


def test_a_lease_is_extended_lost_and_taken_again(gateway: GatewayProcess, start: Start) -> None:
    register(gateway, "box")
    with SyncClient("py", state_dir=gateway.state_dir) as client:
        client.send("box", "work")
    with start(gateway, "leases", "box") as program:
        first, second = program.finish()
    assert first == {"took": "work", "attempt": 0, "lost": []}
    assert second == {"stale": "stale_receipt", "attempt": 1, "kept": False, "aborted": True}


def test_a_turn_longer_than_its_lease_is_taken_once(tmp_path: Path, start: Start) -> None:
    settings = {"mailbox__inflight_timeout_secs": 3}
    with GatewayProcess(tmp_path / "state", **settings) as own:
        register(own, "slow")
        with (
            start(own, "serve", "slow") as server,
            SyncClient("py", state_dir=own.state_dir) as client,
        ):
            client.request("slow", {"waitMs": 7000})
            assert len(server.said) == 1


def test_payloads_and_replies_of_any_size_and_kind(gateway: GatewayProcess, start: Start) -> None:
    register(gateway, "sink", "bytes")
    with start(gateway, "serve", "sink"), start(gateway, "blobs", "sink") as program:
        stored, raw = program.finish()
    assert stored["digest"].startswith("sha256:")
    assert (stored["size"], stored["same"], stored["echoed"]) == (60_000, True, True)
    assert raw == {"raw": 60_000}


def test_tasks_are_asked_for_and_done_with_progress_results_and_cancellation(
    gateway: GatewayProcess, start: Start
) -> None:
    register(gateway, "adder")
    with (
        start(gateway, "serve", "adder") as executor,
        start(gateway, "tasks", "adder") as requester,
    ):
        first, second, failed, cancelled = requester.finish()
        assert (first["state"], first["result"]) == ("completed", {"sum": 6})
        assert first["seen"] == sorted(first["seen"])
        assert second == {"result": {"sum": 9}}
        assert failed["code"] == "failed" and "no such index" in failed["message"]
        assert cancelled == {"state": "cancelled"}
        (endless,) = executor.found(description="endless")
        executor.hears(stopped=endless["task"])


def test_every_call_ends_at_its_deadline(gateway: GatewayProcess, start: Start) -> None:
    register(gateway, "idle")
    home = {"GATEPOST_HOME": str(gateway.state_dir), "NOWHERE": "http://127.0.0.1:1029"}
    with start(gateway, "deadlines", "idle", env=home) as program:
        late, unknown, away, wrong = program.finish()
    assert late["code"] == "deadline_exceeded" and "outcome is unknown" in late["message"]
    assert 900 < late["ms"] < 3000
    assert unknown["code"] == "unknown_agent"
    assert away["code"] == "deadline_exceeded" and "ECONNREFUSED" in away["message"]
    assert away["ms"] < 2000
    assert wrong["code"] == "config_error"


def test_a_gateway_that_hangs_does_not_hang_the_caller(tmp_path: Path, start: Start) -> None:
    with GatewayProcess(tmp_path / "state") as own:
        register(own, "bob")
        with start(own, "frozen", "bob") as program:
            program.hears(ready=True)
            with own.frozen():
                program.tell()
                _, late = program.finish()
    assert late["code"] == "deadline_exceeded"
    assert 1900 < late["ms"] < 5000


def test_a_call_whose_answer_is_lost_is_repeated_and_done_once(
    gateway: GatewayProcess, start: Start
) -> None:
    register(gateway, "once")
    with start(gateway, "lost_answers", "once") as program:
        (said,) = program.finish()
    lost = {each for each in said["lost"] if not each.startswith("http")}
    assert lost == {"send", "task_create", "dequeue", "ack"}
    assert any(each.endswith("/v1/blobs") for each in said["lost"])
    ids = [said["sent"]["event_id"], said["task"]["id"], said["big"]["event_id"]]
    assert sorted(said["ids"]) == sorted(ids)
    assert waiting(gateway, "once") == []


def test_a_program_that_runs_again_sends_and_asks_once_with_its_own_key(
    gateway: GatewayProcess, start: Start
) -> None:
    register(gateway, "till")
    runs = []
    for _ in range(2):
        with start(gateway, "key", "till", "order-17") as program:
            runs += program.finish()
    assert runs[0] == runs[1]
    assert runs[0]["other"] == "idempotency_conflict"
    assert len({*runs[0]["ids"]}) == len({*runs[0]["tasks"]}) == 1
    assert len(waiting(gateway, "till")) == 2


def test_no_send_is_lost_or_doubled_when_the_gateway_is_killed(
    tmp_path: Path, start: Start
) -> None:
    with GatewayProcess(tmp_path / "state") as own:
        register(own, "bob")
        with start(own, "send_one_by_one", "bob", "400") as program:
            for least in (50, 150, 250):
                wait_until(partial(has_said, program, least))
                own.restart()
            said = program.finish(120)
        assert [each["sent"] for each in said] == list(range(400))
        with SyncClient("bob", state_dir=own.state_dir) as bob:
            taken = bob.dequeue("bob", limit=1000, wait_secs=10)
        assert [each.payload for each in taken] == list(range(400))


def test_an_agent_goes_on_after_its_gateway_was_killed(tmp_path: Path, start: Start) -> None:
    with GatewayProcess(tmp_path / "state") as own:
        register(own, "echo")
        with start(own, "serve", "echo") as server:
            for round in range(3):
                with SyncClient("py", state_dir=own.state_dir) as client:
                    assert client.request("echo", round, timeout=60) == {"echo": round}
                own.restart()
            with SyncClient("py", state_dir=own.state_dir) as client:
                assert client.request("echo", "last", timeout=60) == {"echo": "last"}
            assert [each["took"] for each in server.said if "took" in each] == [0, 1, 2, "last"]


def test_an_external_agent_brings_an_invite_and_keeps_a_session(
    gateway: GatewayProcess, start: Start, tmp_path: Path
) -> None:
    register(gateway, "echo2")
    scopes = [f"ansible.{each}" for each in ("message.send", "message.read", "status.read")]
    with http_client(gateway) as http:
        body = {"agentId": "ci-bot", "scopes": scopes}
        invite = http.post("/ansible/agent/invites", json=body).json()["inviteToken"]
    file = tmp_path / "ci-bot.token"
    file.write_text(invite + "\n")
    env = {"GATEPOST_URL": gateway.url, "GATEPOST_TOKEN_FILE": str(file)}
    with start(gateway, "serve", "echo2"):
        for _ in range(2):
            with start(gateway, "session", "ci-bot", "echo2", env=env) as program:
                (said,) = program.finish()
            assert said["replies"] == [{"echo": 1}, {"echo": 2}, {"echo": 3}]
            assert (said["other"], said["size"], said["big"]) == ("forbidden", 700_000, 700_000)
            assert said["node"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert invite not in file.read_text()


def test_a_session_that_has_expired_is_refreshed(
    gateway: GatewayProcess, start: Start, tmp_path: Path
) -> None:
    """The gateway's clock says that the token has ended: it is told so by a file that lies."""
    register(gateway, "echo3")
    scopes = [f"ansible.{each}" for each in ("message.send", "message.read", "status.read")]
    with http_client(gateway) as http:
        body = {"agentId": "late-bot", "scopes": scopes}
        invite = http.post("/ansible/agent/invites", json=body).json()["inviteToken"]
    file = tmp_path / "late-bot.token"
    file.write_text(invite)
    env = {"GATEPOST_URL": gateway.url, "GATEPOST_TOKEN_FILE": str(file)}
    with start(gateway, "serve", "echo3"):
        with start(gateway, "session", "late-bot", "echo3", env=env) as program:
            program.finish()
        first = json.loads(file.read_text())
        file.write_text(json.dumps(first | {"accessExpiresAt": int(time.time() * 1000)}))
        with start(gateway, "session", "late-bot", "echo3", env=env) as program:
            program.finish()
        second = json.loads(file.read_text())
    assert second["accessToken"] != first["accessToken"]
    assert second["sessionId"] == first["sessionId"]
    assert second["attempt"] is None
    file.write_text(json.dumps(second | {"tlsPin": "ab" * 32, "accessExpiresAt": 0}))
    asked = ("session", "late-bot", "echo3")
    with start(gateway, "serve", "echo3"), start(gateway, *asked, env=env) as program:
        program.finish()
    assert json.loads(file.read_text())["tlsPin"] == "ab" * 32


def test_a_context_names_gateway_and_token(
    gateway: GatewayProcess, start: Start, tmp_path: Path
) -> None:
    register(gateway, "echo4")
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(gateway.token)
    laptop = Cli(tmp_path / "laptop")
    laptop.ok("context", "add", "vps", gateway.url, "--token-file", str(file))
    env = {"GATEPOST_HOME": str(laptop.home), "GATEPOST_CONTEXT": "vps"}
    asked = ("request", "echo4", "7")
    with start(gateway, "serve", "echo4"), start(gateway, *asked, env=env) as program:
        assert program.finish() == [{"reply": {"echo": 7}}]
    for wrong in ({"GATEPOST_CONTEXT": "other"}, {}):
        file.chmod(0o644)
        with start(gateway, *asked, env=env | wrong) as program:
            assert program.process.wait(20) == 1
            assert program.process.stderr is not None
            said = program.process.stderr.read()
        assert ("no context other" if wrong else "run chmod 600") in said


class _Hostile(BaseHTTPRequestHandler):
    """Answers in place of a gateway, as its path says."""

    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        kind = self.path.split("/")[1]
        self.seen.append(f"{kind} {self.headers.get('authorization')}")
        if kind == "redirect":
            self.send_response(307)
            self.send_header("location", f"http://{self.headers['host']}/elsewhere")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while kind == "endless":
                self.wfile.write(bytes(1024 * 1024))
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


def test_whoever_answers_in_place_of_a_gateway_gets_no_further(
    gateway: GatewayProcess, start: Start
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hostile)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    where = f"http://127.0.0.1:{server.server_port}"
    try:
        with start(
            gateway, "hostile", *(f"{where}/{k}" for k in ("redirect", "endless", "text"))
        ) as program:
            redirected, endless, text = program.finish()
    finally:
        server.shutdown()
        server.server_close()
    assert redirected["code"] == "deadline_exceeded"
    assert {each.split()[0] for each in _Hostile.seen} == {"redirect", "endless", "text"}
    assert (endless["code"], text["code"]) == ("unexpected_answer", "unexpected_answer")
    assert "s3cret" not in str(program.said)
