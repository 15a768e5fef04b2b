"""External agents over HTTP: they get in by invite, do what their scopes say, and nothing else."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatepost.access import Scope
from gatepost.access.scopes import OPERATION_SCOPES
from gatepost.testing import GatewayProcess
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


def _code(answer: httpx.Response) -> tuple[int, str]:
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
    assert _code(other) == (403, "forbidden"), "whose message it is matters"


def test_the_status_has_its_own_scope(host: GatewayProcess) -> None:
    assert External(host, "eye", STATUS).invoke("status").json()["accepting"] is True
    assert _code(External(host, "blind", READ).invoke("status")) == (403, "insufficient_scope")


@pytest.mark.parametrize("op", sorted(OPERATION_SCOPES))
def test_every_operation_needs_its_scope(host: GatewayProcess, op: str) -> None:
    others = [str(s) for s in Scope if s not in (OPERATION_SCOPES[op], Scope.ADMIN_ALL)]
    agent = External(host, f"no-{op}", *others)
    assert _code(agent.invoke(op, mailbox=agent.name)) == (403, "insufficient_scope")


def test_what_is_not_listed_nobody_may_do(host: GatewayProcess) -> None:
    almighty = External(host, "almighty", *(str(scope) for scope in Scope))
    for op in ("revoke", "join", "room", "", "Send"):
        assert _code(almighty.invoke(op)) == (403, "forbidden")
    assert _code(almighty.invoke("task_claim")) == (404, "not_found")
    assert _code(almighty.invoke("subscribe", mailbox="almighty")) == (400, "invalid_request")
    assert _code(almighty.post("invoke", [], almighty.tokens["accessToken"]))[0] == 400


def test_an_agent_acts_as_itself_alone(host: GatewayProcess) -> None:
    agent = External(host, "self", READ, SEND)
    for op, fields in (
        ("send", {"messages": _letter("desk", "self")}),
        ("dequeue", {"mailbox": "desk"}),
        ("peek", {"mailbox": "desk"}),
        ("register", {"agent": "somebody"}),
    ):
        assert _code(agent.invoke(op, **fields)) == (403, "forbidden"), op


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
    assert _code(answer) == (401, "invalid_ticket")


def test_an_invite_is_good_once(host: GatewayProcess) -> None:
    agent = External(host, "once", READ)
    again = agent.post("auth/exchange", {"inviteToken": agent.invite})
    assert _code(again) == (409, "token_already_used")
    assert _code(agent.post("auth/exchange", {"inviteToken": "gpa1.x.y"})) == (401, "invalid_token")


def test_a_refresh_token_that_comes_again_ends_its_whole_family(host: GatewayProcess) -> None:
    agent = External(host, "family", READ)
    first = agent.tokens["refreshToken"]
    second = agent.refresh(first).json()
    assert agent.invoke("peek", second["accessToken"], mailbox="family").is_success
    assert _code(agent.refresh(first)) == (401, "token_reused")
    for token in (agent.tokens["accessToken"], second["accessToken"]):
        assert _code(agent.invoke("peek", token, mailbox="family")) == (403, "revoked")
    assert _code(agent.refresh(second["refreshToken"])) == (403, "revoked")


def test_who_asks_with_what_is_no_access_token(host: GatewayProcess) -> None:
    agent = External(host, "wrong", READ)
    for token in (agent.tokens["refreshToken"], agent.invite, host.token, "gps1.x.y"):
        assert _code(agent.invoke("peek", token, mailbox="wrong")) == (401, "invalid_token")
    assert _code(agent.post("invoke", {"op": "status"})) == (401, "unauthorized")


def test_a_context_token_can_do_less_and_begets_none(host: GatewayProcess) -> None:
    agent = External(host, "context", READ, SEND)
    access = agent.tokens["accessToken"]
    given = agent.post("context-token", {"scopes": [READ], "ttlSecs": 60}, access).json()
    token = given["contextToken"]
    assert agent.invoke("peek", token, mailbox="context").is_success
    sending = agent.invoke("send", token, messages=_letter("context", "desk"))
    assert _code(sending) == (403, "insufficient_scope")
    more = agent.post("context-token", {"scopes": [STATUS]}, access)
    assert _code(more) == (403, "insufficient_scope")
    assert _code(agent.post("context-token", {"scopes": [READ]}, token)) == (403, "forbidden")


def test_only_the_operator_and_admins_invite(host: GatewayProcess) -> None:
    admin = External(host, "admin", "ansible.admin.access", READ).tokens["accessToken"]
    plain = External(host, "plain", READ).tokens["accessToken"]
    assert invited(host, "friend", READ, token=admin).is_success
    beyond = invited(host, "friend", SEND, token=admin)
    assert _code(beyond) == (403, "insufficient_scope"), "nobody grants what they lack"
    assert _code(invited(host, "friend", READ, token=plain)) == (403, "insufficient_scope")
    assert _code(invited(host, "friend", READ, token="x" * 64)) == (401, "invalid_token")


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
    assert _code(answers[0]) == (403, "revoked")
    assert _code(agent.invoke("peek", mailbox="gone")) == (403, "revoked")


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
        assert _code(spy.fetch(digest)) == (404, "unknown_blob")
        assert _code(sender.fetch(digest)) == (403, "insufficient_scope")
        passed_on = {"from_agent": "spy", "to_agent": "doer", "payload_ref": digest}
        assert _code(spy.invoke("send", messages=[passed_on])) == (404, "unknown_blob")
        acked = spy.invoke("ack", mailbox="spy", receipts=["x"], reply_refs={"x": digest})
        assert _code(acked) == (404, "unknown_blob")
    assert _code(ask.fetch("nonsense"))[0] == 400
    assert _code(ask.fetch(asked, token="wrong"))[0] == 401


def _upload(agent: External, content: bytes, token: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {token or agent.tokens['accessToken']}"}
    url = f"{agent.host.url}/ansible/agent/uploads"
    return httpx.post(url, content=content, headers=headers, timeout=30)


def test_a_blob_belongs_to_the_agent_that_uploaded_it(host: GatewayProcess) -> None:
    owner, thief = External(host, "owner", READ, SEND), External(host, "thief", READ, SEND)
    assert thief.invoke("register", agent="thief").is_success
    content = b'"' + b"x" * 2_000_000 + b'"'
    stored = _upload(owner, content)
    assert (stored.status_code, stored.json()["size"]) == (201, len(content))
    digest = stored.json()["digest"]
    with client(host) as http:
        local = http.post("/v1/blobs", content=b'"secret"').json()["digest"]
    for foreign in (digest, local):
        assert _code(thief.fetch(foreign)) == (404, "unknown_blob")
        named = {"from_agent": "thief", "to_agent": "thief", "payload_ref": foreign}
        assert _code(thief.invoke("send", messages=[named])) == (404, "unknown_blob")
    with client(host) as http:
        incidents = http.get("/v1/incidents").text
    assert "agent:thief" in incidents
    assert "foreign_blob" in incidents
    assert owner.fetch(digest).content == content
    sending = {"from_agent": "owner", "to_agent": "thief", "payload_ref": digest}
    assert owner.invoke("send", messages=[sending]).json()["results"][0]["state"] == "accepted"
    assert thief.fetch(digest).content == content, "now it is mail of its own"


def test_uploads_need_the_scope_to_send_and_have_a_limit(
    tmp_path: Path,
) -> None:
    small = {"limits__max_blob_bytes": 100_000, "limits__max_payload_inline": 1000}
    with GatewayProcess(tmp_path / "state", **small) as tight:
        assert _code(_upload(External(tight, "reader", READ), b"1"))[0] == 403
        agent = External(tight, "hoarder", SEND)
        assert _code(_upload(agent, b"x" * 100_001)) == (413, "payload_too_large")
        for _ in range(4):
            assert _upload(agent, b"x" * 100_000).is_success
        assert _code(_upload(agent, b"x")) == (429, "rate_limited")
        assert _upload(External(tight, "other", SEND), b"x").is_success
