"""The operator's API: never over a line that others can read, and not open to guesses."""

from pathlib import Path

import httpx
import pytest

from gatepost.testing import ManualClock
from tests.gateway.tools import asgi_client, opened

pytestmark = pytest.mark.anyio

ELSEWHERE = "192.0.2.7"


def _code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.parametrize("path", ["/v1/status", "/metrics", "/openapi/openapi.json"])
async def test_the_token_is_refused_over_plain_http_from_another_machine(
    state: Path, path: str
) -> None:
    async with opened(state) as operations:
        for token in ("t" * 32, "wrong"):
            async with asgi_client(operations, ELSEWHERE, token) as http:
                assert _code(await http.get(path)) == (403, "forbidden"), "right or wrong"
                assert (await http.get("/healthz")).is_success
        async with asgi_client(operations, ELSEWHERE, url="https://gateway") as http:
            assert (await http.get(path)).is_success
        async with asgi_client(operations, "127.0.0.1") as http:
            assert (await http.get(path)).is_success


async def test_a_client_on_the_same_machine_may_use_its_public_address(state: Path) -> None:
    url = f"http://{ELSEWHERE}"
    async with opened(state) as operations, asgi_client(operations, ELSEWHERE, url=url) as http:
        assert (await http.get("/v1/status")).is_success


async def test_the_settings_may_allow_plain_http(state: Path) -> None:
    async with (
        opened(state, listen__allow_plain=True) as operations,
        asgi_client(operations, ELSEWHERE) as http,
    ):
        assert (await http.get("/v1/status")).is_success


async def test_guesses_are_limited_per_address_and_valid_tokens_pass(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, limits__wrong_tokens_per_min=6) as operations:
        async with (
            asgi_client(operations, "127.0.0.1", "wrong") as guesser,
            asgi_client(operations, "127.0.0.1") as operator,
        ):
            answers = [_code(await guesser.get("/v1/status")) for _ in range(8)]
            assert answers == [(401, "unauthorized")] * 6 + [(429, "rate_limited")] * 2
            assert (await operator.get("/v1/status")).is_success, "of the same address"
            limited = await guesser.get("/v1/status")
            assert 1 <= int(limited.headers["retry-after"]) <= 10
            clock.advance(10_000)
            assert _code(await guesser.get("/v1/status")) == (401, "unauthorized")
        counts = operations.core.abuse.counts()
        assert counts["address:127.0.0.1", "token_guessing"] == 3


async def test_a_request_without_a_token_is_no_guess(state: Path) -> None:
    async with (
        opened(state, limits__wrong_tokens_per_min=1) as operations,
        asgi_client(operations, "127.0.0.1") as http,
    ):
        for _ in range(5):
            answer = await http.get("/v1/status", headers={"authorization": ""})
            assert _code(answer) == (401, "unauthorized")
