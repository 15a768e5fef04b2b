"""Blobs of external agents: each has its own, and no more than its share."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.admin.test_external_agents import READ, SEND, External, refusal
from tests.gateway.tools import client


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("blobs") / "state") as running:
        yield running


def upload(agent: External, content: bytes, token: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {token or agent.tokens['accessToken']}"}
    url = f"{agent.host.url}/ansible/agent/uploads"
    return httpx.post(url, content=content, headers=headers, timeout=30)


def test_a_blob_belongs_to_the_agent_that_uploaded_it(host: GatewayProcess) -> None:
    owner, thief = External(host, "owner", READ, SEND), External(host, "thief", READ, SEND)
    assert thief.invoke("register", agent="thief").is_success
    content = b'"' + b"x" * 2_000_000 + b'"'
    stored = upload(owner, content)
    assert (stored.status_code, stored.json()["size"]) == (201, len(content))
    digest = stored.json()["digest"]
    with client(host) as http:
        local = http.post("/v1/blobs", content=b'"secret"').json()["digest"]
    for foreign in (digest, local):
        assert refusal(thief.fetch(foreign)) == (404, "unknown_blob")
        named = {"from_agent": "thief", "to_agent": "thief", "payload_ref": foreign}
        assert refusal(thief.invoke("send", messages=[named])) == (404, "unknown_blob")
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
        assert refusal(upload(External(tight, "reader", READ), b"1"))[0] == 403
        agent = External(tight, "hoarder", SEND)
        assert refusal(upload(agent, b"x" * 100_001)) == (413, "payload_too_large")
        for _ in range(4):
            assert upload(agent, b"x" * 100_000).is_success
        assert refusal(upload(agent, b"x")) == (429, "rate_limited")
        assert upload(External(tight, "other", SEND), b"x").is_success


def test_large_messages_that_are_refused_count_as_uploads_that_were_not_sent(
    tmp_path: Path,
) -> None:
    small = {"limits__max_blob_bytes": 100_000, "limits__max_payload_inline": 1000}
    with GatewayProcess(tmp_path / "state", **small) as tight:
        agent, other = External(tight, "hoarder", SEND), External(tight, "other", SEND)
        assert External(tight, "desk", READ, SEND).invoke("register", agent="desk").is_success

        def send(by: External, to: str) -> httpx.Response:
            message = {"from_agent": by.name, "to_agent": to, "payload": "x" * 90_000}
            return by.invoke("send", messages=[message])

        for _ in range(6):
            assert send(agent, "desk").json()["results"][0]["state"] == "accepted"
        for _ in range(5):
            assert "error" in send(agent, "nobody").json()["results"][0]
        assert refusal(send(agent, "nobody")) == (429, "rate_limited")
        assert send(other, "desk").json()["results"][0]["state"] == "accepted"
