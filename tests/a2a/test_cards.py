"""Agent cards: where they are, what is in them, their signature and their caching."""

import httpx
import jwt
import pytest
from a2a.client.card_resolver import A2ACardResolver
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from jwt import PyJWK

from gatepost.testing import GatewayProcess

pytestmark = pytest.mark.anyio

Pair = tuple[GatewayProcess, ...]
CARD = "/.well-known/agent-card.json"


async def test_a_card_is_signed_with_a_key_that_the_gateway_shows(pair: Pair, worker: str) -> None:
    lap, _ = pair
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, f"{lap.url}/a2a/agents/{worker}").get_agent_card()
        header = jwt.get_unverified_header(f"{card.signatures[0].protected}.e30.")
        assert header["jku"] == f"{lap.url}/a2a/keys.json"
        (key,) = (await http.get(header["jku"])).json()["keys"]
    assert "d" not in key
    verify = create_signature_verifier(lambda kid, jku: PyJWK(key), ["EdDSA"])
    verify(card)
    card.supported_interfaces[0].url = "https://elsewhere.example"
    with pytest.raises(InvalidSignaturesError):
        verify(card)


def test_a_card_is_read_again_only_after_it_has_changed(pair: Pair, worker: str) -> None:
    lap, _ = pair
    with httpx.Client(base_url=lap.url, timeout=60, trust_env=False) as http:
        for path in (CARD, f"/a2a/agents/{worker}{CARD}", f"/a2a{CARD}"):
            card = http.get(path)
            assert card.status_code == 200
            assert "max-age=" in card.headers["cache-control"]
            assert card.headers["last-modified"].endswith("GMT")
            again = http.get(path, headers={"if-none-match": card.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")


def test_an_agent_that_publishes_nothing_has_no_card(pair: Pair) -> None:
    lap, _ = pair
    answer = httpx.get(f"{lap.url}/a2a/agents/private{CARD}", timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_agent")
