"""External agents over HTTP: they get in by invite, do what their scopes say, and nothing else."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from gatepost.access import Scope
from gatepost.access.scopes import OPERATION_SCOPES
from gatepost.errors import Revoked
from gatepost.gateway.admin.agent_session_calls import AgentSessionCalls
from gatepost.testing import GatewayProcess
from tests.gateway.slow_request import SlowRequest
from tests.gateway.tools import client

READ, SEND, STATUS = "ansible.message.read", "ansible.message.send", "ansible.status.read"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    path = tmp_path_factory.mktemp("external") / "state"
    with GatewayProcess(path, room__join_burst=10_000) as running:
        with client(running) as http:
            assert http.put("/v1/agents/desk").is_success
        yield running


class External:
    """An agent somewhere else, with nothing but its tokens."""

    def __init__(self, host: GatewayProcess, name: str, *scopes: str) -> None:
        self.host = host
        self.name = name
        self.invite = invited(host, name, *scopes).json()["inviteToken"]
        self.tokens = self.post("auth/exchange", {"inviteToken": self.invite}).json()

    def post(self, path: str, body: object, token: str | None = None) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        url = f"{self.host.url}/ansible/agent/{path}"
        return httpx.post(url, json=body, headers=headers, timeout=30)

    def invoke(self, op: str, token: str | None = None, **fields: object) -> httpx.Response:
        return self.post("invoke", {"op": op, **fields}, token or self.tokens["accessToken"])

    def fetch(self, digest: str, token: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.tokens['accessToken']}"}
        return httpx.get(f"{self.host.url}/ansible/agent/blobs/{digest}", headers=headers)

    def refresh(self, token: str) -> httpx.Response:
        return self.post("auth/refresh", {"refreshToken": token})


def invited(
    host: GatewayProcess, name: str, *scopes: str, token: str | None = None
) -> httpx.Response:
    return httpx.post(
        f"{host.url}/ansible/agent/invites",
        json={"agentId": name, "scopes": scopes},
        headers={"authorization": f"Bearer {token or host.token}"},
    )


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def _letter(sender: str, to: str) -> list[dict[str, object]]:
    return [{"from_agent": sender, "to_agent": to, "payload": {"n": 1}}]


def test_an_agent_sends_takes_answers_and_waits(host: GatewayProcess) -> None:
    bot, peer = External(host, "bot", READ, SEND), External(host, "peer", READ, SEND)
    assert peer.invoke("register", agent="peer").is_success
    sent = bot.invoke("send", messages=_letter("bot", "peer")).json()["results"][0]
    (mail,) = peer.invoke("dequeue", mailbox="peer").json()["messages"]
    assert (mail["payload"], mail["from"]) == ({"n": 1}, "bot")
    replies = {mail["receipt"]: "done"}
    acked = peer.invoke("ack", mailbox="peer", receipts=[mail["receipt"]], replies=replies)
    assert acked.json()["settled"] == 1
    done = bot.invoke("await", event_id=sent["event_id"], wait_secs=5).json()["result"]
    assert (done["state"], done["reply"]) == ("replied", "done")
    other = peer.invoke("await", event_id=sent["event_id"], wait_secs=0)
    assert refusal(other) == (403, "forbidden"), "whose message it is matters"


def test_an_agent_executes_a_task_of_another_and_strangers_see_nothing(
    host: GatewayProcess,
) -> None:
    scopes = ("read", "claim", "update", "complete")
    worker = External(host, "worker", READ, *(f"ansible.task.{each}" for each in scopes))
    asker = External(host, "asker", SEND, "ansible.task.read")
    nosy = External(host, "nosy", SEND, "ansible.task.read")
    assert worker.invoke("register", agent="worker").is_success
    new = {"from_agent": "asker", "to_agents": ["worker"], "description": "add", "input": [1, 2]}
    made = asker.invoke("task_create", tasks=[new]).json()["results"][0]["tasks"][0]
    (mail,) = worker.invoke("dequeue", mailbox="worker").json()["messages"]
    assert mail["payload"]["input"] == [1, 2]
    report = {"task_id": made["id"], "agent": "worker"}
    accepted = report | {"action": "accept", "receipt": mail["receipt"]}
    assert worker.invoke("task_report", reports=[accepted]).json() == {"op": "tasks_reported"}
    completed = report | {"action": "complete", "result": 3}
    assert worker.invoke("task_report", reports=[completed]).json() == {"op": "tasks_reported"}
    done = asker.invoke("task_await", task_id=made["id"], wait_secs=5).json()["task"]
    assert (done["state"], done["result"]) == ("completed", 3)
    for op in ("task_await", "task_cancel"):
        assert refusal(nosy.invoke(op, task_id=made["id"])) == (403, "forbidden")
    forged = new | {"from_agent": "asker"}
    assert refusal(nosy.invoke("task_create", tasks=[forged])) == (403, "forbidden")


@pytest.mark.parametrize(
    ("held", "lacks"),
    [((), "ansible.task.read"), (("ansible.task.read",), "ansible.task.claim")],
)
def test_a_task_that_its_agent_has_no_scope_to_accept_says_so(
    host: GatewayProcess, held: tuple[str, ...], lacks: str
) -> None:
    worker = External(host, f"lacking-{len(held)}", READ, *held)
    assert worker.invoke("register", agent=worker.name).is_success
    with client(host) as http:
        body = {"description": "add", "agent_name": worker.name}
        task = http.post("/api/hub/tasks", json=body).json()
        (mail,) = worker.invoke("dequeue", mailbox=worker.name).json()["messages"]
        report = {"task_id": task["id"], "agent": worker.name, "action": "accept"}
        refused = worker.invoke("task_report", reports=[report | {"receipt": mail["receipt"]}])
        assert refusal(refused) == (403, "insufficient_scope") and lacks in refused.text
        acked = worker.invoke("ack", mailbox=worker.name, receipts=[mail["receipt"]])
        assert acked.json()["settled"] == 1
        done = http.get(f"/api/hub/tasks/{task['id']}", params={"wait_secs": 20}).json()
    assert (done["status"], done["error_code"]) == ("failed", "insufficient_scope")
    assert lacks in done["error"]


def test_the_status_has_its_own_scope(host: GatewayProcess) -> None:
    assert External(host, "eye", STATUS).invoke("status").json()["accepting"] is True
    assert refusal(External(host, "blind", READ).invoke("status")) == (403, "insufficient_scope")


@pytest.mark.parametrize("op", sorted(OPERATION_SCOPES))
def test_every_operation_needs_its_scope(host: GatewayProcess, op: str) -> None:
    others = [str(s) for s in Scope if s not in (OPERATION_SCOPES[op], Scope.ADMIN_ALL)]
    agent = External(host, f"no-{op}", *others)
    assert refusal(agent.invoke(op, mailbox=agent.name)) == (403, "insufficient_scope")


def test_what_is_not_listed_nobody_may_do(host: GatewayProcess) -> None:
    almighty = External(host, "almighty", *(str(scope) for scope in Scope))
    for op in ("revoke", "join", "room", "", "Send"):
        assert refusal(almighty.invoke(op)) == (403, "forbidden")
    assert refusal(almighty.invoke("task_claim")) == (403, "forbidden")
    assert refusal(almighty.invoke("subscribe", mailbox="almighty")) == (400, "invalid_request")
    assert refusal(almighty.post("invoke", [], almighty.tokens["accessToken"]))[0] == 400


def test_an_agent_acts_as_itself_alone(host: GatewayProcess) -> None:
    agent = External(host, "self", READ, SEND)
    for op, fields in (
        ("send", {"messages": _letter("desk", "self")}),
        ("dequeue", {"mailbox": "desk"}),
        ("peek", {"mailbox": "desk"}),
        ("register", {"agent": "somebody"}),
    ):
        assert refusal(agent.invoke(op, **fields)) == (403, "forbidden"), op


def test_a_session_opens_neither_the_local_api_nor_the_room(host: GatewayProcess) -> None:
    token = External(host, "nosy", *(str(scope) for scope in Scope)).tokens["accessToken"]
    headers = {"authorization": f"Bearer {token}"}
    for path in ("/v1/room", "/v1/agents", "/v1/external-agents", "/metrics"):
        assert httpx.get(host.url + path, headers=headers).status_code == 401
    with client(host) as http:
        http.post("/v1/room/invites", json={})
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    key = {"sec-websocket-key": "x3JJHMbDL1EzLkh9GBhXDw=="}
    answer = httpx.get(f"{host.url}/ansible/room/ansible-control", headers=headers | upgrade | key)
    assert refusal(answer) == (401, "invalid_ticket")


def test_an_invite_is_good_once(host: GatewayProcess) -> None:
    agent = External(host, "once", READ)
    again = agent.post("auth/exchange", {"inviteToken": agent.invite})
    assert refusal(again) == (409, "token_already_used")
    assert refusal(agent.post("auth/exchange", {"inviteToken": "gpa1.x.y"})) == (
        401,
        "invalid_token",
    )


def test_a_refresh_token_that_comes_again_ends_its_whole_family(host: GatewayProcess) -> None:
    agent = External(host, "family", READ)
    first = agent.tokens["refreshToken"]
    second = agent.refresh(first).json()
    assert agent.invoke("peek", second["accessToken"], mailbox="family").is_success
    assert refusal(agent.refresh(first)) == (401, "token_reused")
    for token in (agent.tokens["accessToken"], second["accessToken"]):
        assert refusal(agent.invoke("peek", token, mailbox="family")) == (403, "revoked")
    assert refusal(agent.refresh(second["refreshToken"])) == (403, "revoked")


def test_who_asks_with_what_is_no_access_token(host: GatewayProcess) -> None:
    agent = External(host, "wrong", READ)
    for token in (agent.tokens["refreshToken"], agent.invite, host.token, "gps1.x.y"):
        assert refusal(agent.invoke("peek", token, mailbox="wrong")) == (401, "invalid_token")
    assert refusal(agent.post("invoke", {"op": "status"})) == (401, "unauthorized")


def test_a_context_token_can_do_less_and_begets_none(host: GatewayProcess) -> None:
    agent = External(host, "context", READ, SEND)
    access = agent.tokens["accessToken"]
    given = agent.post("context-token", {"scopes": [READ], "ttlSecs": 60}, access).json()
    token = given["contextToken"]
    assert agent.invoke("peek", token, mailbox="context").is_success
    sending = agent.invoke("send", token, messages=_letter("context", "desk"))
    assert refusal(sending) == (403, "insufficient_scope")
    more = agent.post("context-token", {"scopes": [STATUS]}, access)
    assert refusal(more) == (403, "insufficient_scope")
    assert refusal(agent.post("context-token", {"scopes": [READ]}, token)) == (403, "forbidden")


def test_only_the_operator_and_admins_invite(host: GatewayProcess) -> None:
    admin = External(host, "admin", "ansible.admin.access", READ).tokens["accessToken"]
    plain = External(host, "plain", READ).tokens["accessToken"]
    assert invited(host, "friend", READ, token=admin).is_success
    beyond = invited(host, "friend", SEND, token=admin)
    assert refusal(beyond) == (403, "insufficient_scope"), "nobody grants what they lack"
    assert refusal(invited(host, "friend", READ, token=plain)) == (403, "insufficient_scope")
    assert refusal(invited(host, "friend", READ, token="x" * 64)) == (401, "invalid_token")


def test_revoking_an_agent_ends_even_what_it_waits_for(host: GatewayProcess) -> None:
    agent = External(host, "gone", READ)
    agent.invoke("register", agent="gone")
    answers: list[Any] = []

    def wait() -> None:
        answers.append(agent.invoke("dequeue", mailbox="gone", wait_secs=20))

    waiting = threading.Thread(target=wait)
    waiting.start()
    # Nothing shows that the poll has arrived; later, it is refused all the same.
    time.sleep(0.2)
    with client(host) as http:
        assert http.post("/v1/external-agents/gone/revoke").json()["sessions"] == 1
    waiting.join(timeout=2)
    assert refusal(answers[0]) == (403, "revoked")
    assert refusal(agent.invoke("peek", mailbox="gone")) == (403, "revoked")


def test_an_operation_whose_body_comes_after_its_session_ended_is_not_done(
    host: GatewayProcess,
) -> None:
    agent = External(host, "slow", SEND)
    body = {"op": "send", "messages": _letter("slow", "desk")}
    path, token = "/ansible/agent/invoke", agent.tokens["accessToken"]
    with SlowRequest(host, token, path, body) as slow, client(host) as http:
        assert http.post("/v1/external-agents/slow/revoke").json()["sessions"] == 1
        assert slow.finish() == (403, "revoked")
        mail = http.get("/v1/mailboxes/desk").json()["messages"]
    assert "slow" not in [each["from"] for each in mail]


@pytest.mark.anyio
async def test_no_call_begins_for_a_session_that_has_ended() -> None:
    """Whichever door it came in by, and however long before it was authenticated."""
    calls, begun = AgentSessionCalls(), []

    async def work() -> None:
        begun.append(1)

    await calls.run_call("s2", work())
    calls.end_calls(["s1"])
    with pytest.raises(Revoked):
        await calls.run_call("s1", work())
    await calls.run_call("s2", work())
    assert begun == [1, 1]


def test_tokens_are_neither_listed_nor_logged_nor_stored(host: GatewayProcess) -> None:
    agent = External(host, "quiet", READ)
    agent.invoke("peek", mailbox="quiet")
    with client(host) as http:
        listed = json.dumps(http.get("/v1/external-agents").json())
    kept = host.log.read_bytes() + b"".join(
        (host.state_dir / name).read_bytes() for name in ("journal.db", "journal.db-wal")
    )
    for token in (agent.invite, agent.tokens["accessToken"], agent.tokens["refreshToken"]):
        secret = token.rpartition(".")[2]
        assert secret not in listed
        assert secret.encode() not in kept
    assert b"quiet" in kept


def test_an_agent_reads_large_messages_and_replies_of_its_own_and_no_others(
    host: GatewayProcess,
) -> None:
    ask, do = External(host, "asker", READ, SEND), External(host, "doer", READ, SEND)
    spy, sender = External(host, "spy", READ, SEND), External(host, "sends-only", SEND)
    assert do.invoke("register", agent="doer").is_success
    question, answer = "q" * 100_000, "a" * 100_000
    message = {"from_agent": "asker", "to_agent": "doer", "payload": question}
    sent = ask.invoke("send", messages=[message]).json()["results"][0]
    (mail,) = do.invoke("dequeue", mailbox="doer").json()["messages"]
    asked = mail["event"]["payload_ref"]
    assert do.fetch(asked).json() == question
    assert ask.fetch(asked).json() == question
    receipts = [mail["receipt"]]
    replies = {mail["receipt"]: answer}
    acked = do.invoke("ack", mailbox="doer", receipts=receipts, replies=replies)
    assert acked.json()["settled"] == 1
    done = ask.invoke("await", event_id=sent["event_id"], wait_secs=5).json()["result"]
    assert ask.fetch(done["reply_ref"]).json() == answer
    for digest in (asked, done["reply_ref"]):
        assert refusal(spy.fetch(digest)) == (404, "unknown_blob")
        assert refusal(sender.fetch(digest)) == (403, "insufficient_scope")
        passed_on = {"from_agent": "spy", "to_agent": "doer", "payload_ref": digest}
        assert refusal(spy.invoke("send", messages=[passed_on])) == (404, "unknown_blob")
        acked = spy.invoke("ack", mailbox="spy", receipts=["x"], reply_refs={"x": digest})
        assert refusal(acked) == (404, "unknown_blob")
    assert refusal(ask.fetch("nonsense"))[0] == 400
    assert refusal(ask.fetch(asked, token="wrong"))[0] == 401


def test_an_agent_makes_no_mailboxes_of_others(host: GatewayProcess) -> None:
    agent = External(host, "spammer", READ, SEND)
    with client(host) as http:
        before = len(http.get("/v1/mailboxes").json())
    letter = {"msg_id": "s:1", "from": "spammer", "to": "desk", "payload": 1}
    assert agent.invoke("enqueue", messages=[letter]).json()["results"][0]["queued"]
    invented = [letter | {"msg_id": f"s:{n}", "to": f"invented{n}"} for n in range(500)]
    assert refusal(agent.invoke("enqueue", messages=invented)) == (404, "unknown_agent")
    url = host.url.replace("http", "ws") + "/v1/ws"
    headers = {"authorization": f"Bearer {agent.tokens['accessToken']}"}
    with connect(url, additional_headers=headers) as socket:
        socket.send(json.dumps({"op": "enqueue", "id": 1, "messages": invented}))
        assert json.loads(socket.recv())["error"]["code"] == "unknown_agent"
    with client(host) as http:
        names = [each["name"] for each in http.get("/v1/mailboxes").json()]
    assert len(names) <= before + 1
    assert not [name for name in names if name.startswith("invented")]


def test_a_session_uses_up_no_rate_limit_but_its_own(tmp_path: Path) -> None:
    slow = {"limits__rate_per_sec": 0.1, "limits__burst": 20}
    with GatewayProcess(tmp_path / "state", **slow) as gateway:
        greedy, modest = External(gateway, "greedy", READ), External(gateway, "modest", READ)
        answers = [greedy.invoke("peek", mailbox="greedy") for _ in range(22)]
        assert refusal(answers[-1]) == (429, "rate_limited")
        assert modest.invoke("peek", mailbox="modest").is_success
        with client(gateway) as http:
            assert http.get("/v1/agents").is_success
