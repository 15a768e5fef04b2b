"""Whoever answers in place of the gateway that was meant is found out."""

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from gatepost.access import Issuer, tickets
from gatepost.access.auth_messages import Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.access.tickets import AUDIENCE, TicketClaims
from gatepost.access.tokens import TokenKind, mint_token
from gatepost.errors import Forbidden, InvalidRequest, InvalidTicket, Unavailable
from gatepost.events import NodeKey, fingerprint_key
from gatepost.gateway.peers import join_client
from gatepost.gateway.peers.join_client import JoinClient, SelfDialError
from gatepost.gateway.peers.room_directory import RoomDirectory
from gatepost.gateway.peers.seeds import Seed
from gatepost.testing import ManualClock
from tests.gateway.tools import opened
from tests.room.sample_records import ROOT, entry, key, room

pytestmark = pytest.mark.anyio
URL = "http://127.0.0.1:1"
SEED = Seed(URL)
Host = Callable[[NodeKey], JoinClient]


def _answer(issuer: Issuer, request: ExchangeRequest, nonce: str | None) -> ExchangeAnswer:
    """A ticket that is in order in every way but for who signs it."""
    assert request.node_key is not None
    claims = TicketClaims(
        iss=issuer.id,
        sub=request.node_id,
        aud=AUDIENCE,
        rooms=request.requested_rooms,
        invite_id=None,
        jti="j",
        iat=1,
        exp=2**31,
        sid="s",
        nonce=nonce or request.nonce,
        cnf=tickets.confirm_key(request.node_key),
    )
    ticket = tickets.sign_ticket(issuer, claims)
    return ExchangeAnswer(ticket, 1, claims.rooms, "s", issuer.id, issuer.key.public)


class Impostor:
    """Answers whatever it is asked, with its own key."""

    def __init__(self, key: NodeKey, clock: ManualClock, nonce: str | None = None) -> None:
        self.issuer = Issuer("root", key, clock)
        self.nonce = nonce

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            said: object = Challenge("c" * 40, 1, "root", self.issuer.key.public)
        else:
            asked = msgspec.json.decode(request.content, type=ExchangeRequest)
            said = _answer(self.issuer, asked, self.nonce)
        return httpx.Response(200, content=msgspec.json.encode(said))


@pytest.fixture
async def knocker(state: Path, clock: ManualClock) -> AsyncIterator[JoinClient]:
    known = RoomDirectory()
    known.refresh_from(room(entry(ROOT)))
    async with opened(state, clock, node__id="ben") as operations:
        yield JoinClient(operations.core, known)


def _asks(knocker: JoinClient, host: Callable[[httpx.Request], httpx.Response]) -> None:
    async def pieces(content: bytes) -> AsyncIterator[bytes]:
        yield content

    def streamed(request: httpx.Request) -> httpx.Response:
        """As over the network: nothing is read before the body is asked for."""
        answer = host(request)
        if not answer.is_stream_consumed:
            return answer
        return httpx.Response(answer.status_code, content=pieces(answer.content))

    knocker.transport = httpx.MockTransport(streamed)


async def test_the_gateway_that_was_meant_is_believed(
    knocker: JoinClient, clock: ManualClock
) -> None:
    _asks(knocker, Impostor(key("root"), clock))
    token = mint_token(clock, TokenKind.INVITE, key("root").fingerprint).text
    assert (await knocker.exchange_invite(SEED, token)).issuer_key == key("root").public
    assert (await knocker.exchange_proof(SEED)).issuer_id == "root"


async def test_another_one_is_not(knocker: JoinClient, clock: ManualClock) -> None:
    _asks(knocker, Impostor(key("eve"), clock))
    token = mint_token(clock, TokenKind.INVITE, key("root").fingerprint).text
    with pytest.raises(InvalidTicket, match="from another gateway"):
        await knocker.exchange_invite(SEED, token)
    with pytest.raises(InvalidTicket, match="from another gateway"):
        await knocker.exchange_proof(Seed(URL, fingerprint_key(key("root").public)))
    with pytest.raises(Forbidden, match="not a member of our room"):
        await knocker.exchange_proof(SEED)


async def test_an_old_answer_is_not(knocker: JoinClient, clock: ManualClock) -> None:
    _asks(knocker, Impostor(key("root"), clock, nonce="another-nonce-of-ours"))
    with pytest.raises(InvalidTicket, match="answers another request"):
        await knocker.exchange_proof(SEED)


async def test_a_gateway_does_not_visit_itself(knocker: JoinClient, clock: ManualClock) -> None:
    _asks(knocker, Impostor(knocker._node.key, clock))
    with pytest.raises(SelfDialError):
        await knocker.exchange_proof(SEED)


async def test_what_is_no_gateway_is_said_to_be_none(knocker: JoinClient) -> None:
    for status in (200, 500):
        _asks(knocker, lambda _, status=status: httpx.Response(status, text="<html>"))  # type: ignore[misc]
        with pytest.raises(Unavailable, match="not a gateway"):
            await knocker.exchange_proof(SEED)


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}])
async def test_an_answer_is_small_and_not_compressed(
    knocker: JoinClient, headers: dict[str, str]
) -> None:
    """1 MiB of gzip took 3.1 GiB."""
    content = gzip.compress(bytes(32 << 20)) if headers else bytes(1 << 20)

    async def body() -> AsyncIterator[bytes]:
        yield content

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=headers, content=body())

    _asks(knocker, answer)
    tracemalloc.start()
    try:
        with pytest.raises(Unavailable, match="not a gateway"):
            await knocker.exchange_proof(SEED)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


async def test_an_answer_that_never_ends_is_given_up(
    knocker: JoinClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_client, "_TIMEOUT_SECS", 0.05)

    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.001)

    _asks(knocker, lambda _: httpx.Response(200, content=body()))
    with pytest.raises(TimeoutError):
        await knocker.exchange_proof(SEED)


async def test_nothing_is_sent_in_the_clear_to_another_machine(knocker: JoinClient) -> None:
    with pytest.raises(InvalidRequest, match="without TLS"):
        await knocker.exchange_proof(Seed("http://192.0.2.1:1"))
