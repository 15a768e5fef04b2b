"""Every route with every kind of token: only the right kind opens it, and others get a code."""

from collections.abc import Callable, Iterator
from typing import Any

import apsw
import httpx
import pytest

from gatepost.access import Scope
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client

SCOPES = [str(scope) for scope in Scope]
_DIGEST = "sha256:" + "0" * 64
# The bodies of routes that check the token themselves, after they have read the body.
_BODIES: dict[str, Any] = {
    "/ansible/agent/invites": {"agentId": "friend", "scopes": ["ansible.message.read"]},
    "/ansible/agent/context-token": {"scopes": ["ansible.message.read"]},
    "/ansible/agent/invoke": {"op": "peek", "mailbox": "agent"},
    "/v1/incidents": [],
    "/v1/reviews": [],
    "/v1/eta-advice": [],
}
# For these the token is in the body, or there is none.
_ENTRANCES = (
    "/healthz",
    "/readyz",
    "/ansible/auth/",
    "/ansible/agent/auth/",
    "/.well-known/gatepost/",
    "/.rb/",
)
_REFUSALS = {
    "none": {(401, "unauthorized")},
    "garbage": {(401, "invalid_token")},
    "invite": {(401, "invalid_token")},
    "refresh": {(401, "invalid_token")},
    "expired": {(401, "expired_token")},
    "revoked": {(403, "revoked")},
    "without scopes": {(403, "insufficient_scope")},
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    path = tmp_path_factory.mktemp("matrix") / "state"
    settings = {"room__join_burst": 10_000, "limits__wrong_tokens_per_min": 1_000_000}
    with GatewayProcess(path, **settings) as running:
        yield running


def _invite(host: GatewayProcess, agent: str, *scopes: str) -> str:
    body = {"agentId": agent, "scopes": scopes}
    with client(host) as http:
        return str(http.post("/ansible/agent/invites", json=body).json()["inviteToken"])


def _open_session(host: GatewayProcess, agent: str, *scopes: str) -> dict[str, str]:
    body = {"inviteToken": _invite(host, agent, *scopes)}
    answer = httpx.post(f"{host.url}/ansible/agent/auth/exchange", json=body)
    return dict(answer.raise_for_status().json())


@pytest.fixture(scope="module")
def tokens(host: GatewayProcess) -> dict[str, str]:
    """Tokens of every kind by the name of the kind; all but the last have every scope."""
    session = _open_session(host, "agent", *SCOPES)
    expired, revoked = _open_session(host, "late", *SCOPES), _open_session(host, "gone", *SCOPES)
    with client(host) as http:
        http.post("/v1/external-agents/gone/revoke").raise_for_status()
    journal = apsw.Connection(str(host.state_dir / "journal.db"))
    journal.set_busy_timeout(5000)
    journal.execute(
        "UPDATE agent_token SET expires_at = 1 WHERE session = ?", (expired["sessionId"],)
    )
    journal.close()
    return {
        "none": "",
        "garbage": "x" * 64,
        "invite": _invite(host, "agent", *SCOPES),
        "refresh": session["refreshToken"],
        "expired": expired["accessToken"],
        "revoked": revoked["accessToken"],
        "access": session["accessToken"],
        "context": _context_token(host, session["accessToken"]),
        "without scopes": _open_session(host, "weak", "ansible.task.read")["accessToken"],
    }


def _context_token(host: GatewayProcess, access: str) -> str:
    url, headers = f"{host.url}/ansible/agent/context-token", {"authorization": f"Bearer {access}"}
    answer = httpx.post(url, json={"scopes": SCOPES}, headers=headers)
    return str(answer.raise_for_status().json()["contextToken"])


def _routes(host: GatewayProcess) -> list[tuple[str, str]]:
    with client(host) as http:
        paths = http.get("/openapi/openapi.json").json()["paths"]
    found = [(method, path) for path, methods in paths.items() for method in methods]
    return [route for route in found if not route[1].startswith(_ENTRANCES)]


def _is_for_sessions(method: str, path: str) -> bool:
    return path.startswith("/ansible/agent/") or (method == "post" and path in _BODIES)


def _asker(host: GatewayProcess, http: httpx.Client) -> Callable[..., httpx.Response]:
    def ask(method: str, path: str, token: str) -> httpx.Response:
        filled = path.replace("{digest}", _DIGEST)
        for name in ("{mailbox}", "{agent}", "{node}", "{capability}"):
            filled = filled.replace(name, "agent")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return http.request(method, host.url + filled, json=_BODIES.get(path), headers=headers)

    return ask


def test_no_other_token_opens_a_route_of_the_operator(
    host: GatewayProcess, tokens: dict[str, str]
) -> None:
    routes = [each for each in _routes(host) if not _is_for_sessions(*each)]
    assert len(routes) > 30
    with httpx.Client(timeout=30) as http:
        ask = _asker(host, http)
        for route in routes:
            for kind, token in tokens.items():
                answer = ask(*route, token)
                found = (answer.status_code, answer.json()["code"])
                assert found == (401, "unauthorized"), (route, kind)


def test_a_route_of_sessions_names_the_fault_of_a_token(
    host: GatewayProcess, tokens: dict[str, str]
) -> None:
    routes = [each for each in _routes(host) if _is_for_sessions(*each)]
    assert len(routes) >= 7
    with httpx.Client(timeout=30) as http:
        ask = _asker(host, http)
        for method, path in routes:
            for kind, refusals in _REFUSALS.items():
                answer = ask(method, path, tokens[kind])
                found = (answer.status_code, answer.json().get("code", ""))
                assert found in refusals, (method, path, kind)


def test_a_context_token_does_all_but_grant(host: GatewayProcess, tokens: dict[str, str]) -> None:
    with httpx.Client(timeout=30) as http:
        ask = _asker(host, http)
        for path in ("/ansible/agent/invites", "/ansible/agent/context-token"):
            answer = ask("post", path, tokens["context"])
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
        for path in ("/ansible/agent/invoke", "/v1/incidents", "/v1/reviews", "/v1/eta-advice"):
            assert ask("post", path, tokens["context"]).is_success, path


def test_a_token_in_the_query_is_no_token(host: GatewayProcess, tokens: dict[str, str]) -> None:
    for name in ("token", "access_token", "authorization"):
        answer = httpx.get(f"{host.url}/v1/status", params={name: host.token})
        assert answer.status_code in {400, 401}
        answer = httpx.post(
            f"{host.url}/ansible/agent/invoke",
            params={name: tokens["access"]},
            json={"op": "status"},
        )
        assert answer.status_code in {400, 401}


def test_every_valid_token_reads_the_openapi_document(
    host: GatewayProcess, tokens: dict[str, str]
) -> None:
    with httpx.Client(timeout=30) as http:
        for kind, token in tokens.items():
            headers = {"authorization": f"Bearer {token}"} if token else {}
            answer = http.get(f"{host.url}/openapi/openapi.json", headers=headers)
            is_valid = kind in {"access", "context", "without scopes"}
            assert answer.is_success == is_valid, (kind, answer.text[:200])
