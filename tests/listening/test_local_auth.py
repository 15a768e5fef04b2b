"""Who may use the local API."""

import hmac

import httpx
import pytest

from gatepost.listening.local_auth import LocalTokenAuth
from gatepost.testing import GatewayProcess

PROTECTED = ["/v1/mailboxes", "/v1/status", "/v1/agents", "/metrics", "/openapi/openapi.json"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_token_opens(scheme: str) -> None:
    assert LocalTokenAuth("secret").is_token(f"{scheme} secret")


@pytest.mark.parametrize(
    "header",
    [None, "", "secret", "Basic secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret "],
)
def test_nothing_else_does(header: str | None) -> None:
    assert not LocalTokenAuth("secret").is_token(header)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    original = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return original(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for wrong in ("", "s", "secre", "x" * 1000):
        assert not LocalTokenAuth("secret").is_token(f"Bearer {wrong}")
    assert compared == [(32, 32)] * 4, "hashes of one length, whatever was sent"


def test_the_door_does_not_keep_the_token() -> None:
    assert "secret" not in repr(vars(LocalTokenAuth("secret")))


@pytest.mark.parametrize("path", PROTECTED)
def test_every_route_asks_for_the_token(gateway: GatewayProcess, path: str) -> None:
    url = gateway.url + path
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": gateway.token}):
        answer = httpx.get(url, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "bearer"])
def test_a_token_in_the_address_is_refused(gateway: GatewayProcess, name: str) -> None:
    answer = httpx.get(f"{gateway.url}/v1/status", params={name: gateway.token})
    assert answer.status_code == 401
    assert gateway.token not in answer.text


def test_a_request_without_token_is_refused_before_its_body_is_read(
    gateway: GatewayProcess,
) -> None:
    answer = httpx.post(f"{gateway.url}/v1/enqueue", content=b"nonsense")
    assert answer.status_code == 401
