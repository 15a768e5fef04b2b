"""Whoever answers in place of the gateway that was meant is found out."""

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from gatepost.access import Issuer, tickets
from gatepost.access.auth_messages import Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.access.host_proof import decrypt_invite, sign_host_proof
from gatepost.access.room_directory import RoomDirectory
from gatepost.access.tickets import AUDIENCE, TicketClaims
from gatepost.access.tokens import TokenKind, mint_token
from gatepost.errors import (
    Forbidden,
    InvalidRequest,
    InvalidTicket,
    RoomViolation,
    Unavailable,
    WrongHost,
)
from gatepost.events import NodeKey, fingerprint_key
from gatepost.links.service import join_client
from gatepost.links.service.join_client import (
    DialedConnection,
    DialedPeerSocket,
    JoinClient,
    SelfDialError,
)
from gatepost.links.service.seeds import Seed
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
        self.claimed_key = b""
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.method == "GET":
            made = Challenge("c" * 40, 1, "root", self.claimed_key or self.issuer.key.public)
            proof = sign_host_proof(self.issuer.key, made, request.url.params["nonce"])
            said: object = replace(made, proof=proof)
        else:
            asked = msgspec.json.decode(request.content, type=ExchangeRequest)
            said = _answer(self.issuer, asked, self.nonce)
        return httpx.Response(200, content=msgspec.json.encode(said))


@pytest.fixture
async def joiner(state: Path, clock: ManualClock) -> AsyncIterator[JoinClient]:
    known = RoomDirectory()
    known.refresh_from(room(entry(ROOT)))
    async with opened(state, clock, node__id="ben") as operations:
        yield JoinClient(operations.core, known)


def _asks(joiner: JoinClient, host: Callable[[httpx.Request], httpx.Response]) -> None:
    async def pieces(content: bytes) -> AsyncIterator[bytes]:
        yield content

    def streamed(request: httpx.Request) -> httpx.Response:
        """As over the network: nothing is read before the body is asked for."""
        answer = host(request)
        if not answer.is_stream_consumed:
            return answer
        return httpx.Response(answer.status_code, content=pieces(answer.content))

    joiner.transport = httpx.MockTransport(streamed)


async def test_the_gateway_that_was_meant_is_believed(
    joiner: JoinClient, clock: ManualClock
) -> None:
    _asks(joiner, Impostor(key("root"), clock))
    token = mint_token(clock, TokenKind.INVITE, key("root").fingerprint).text
    assert (await joiner.exchange_invite(SEED, token)).issuer_key == key("root").public
    assert (await joiner.exchange_proof(SEED)).issuer_id == "root"


async def test_another_one_is_not(joiner: JoinClient, clock: ManualClock) -> None:
    _asks(joiner, Impostor(key("eve"), clock))
    token = mint_token(clock, TokenKind.INVITE, key("root").fingerprint).text
    with pytest.raises(WrongHost, match="from another gateway"):
        await joiner.exchange_invite(SEED, token)
    with pytest.raises(WrongHost, match="from another gateway"):
        await joiner.exchange_proof(Seed(URL, fingerprint_key(key("root").public)))
    with pytest.raises(Forbidden, match="not a member of our room"):
        await joiner.exchange_proof(SEED)


@pytest.mark.parametrize("claims", ["its own key", "the key of the host"])
async def test_an_invite_is_not_sent_to_an_impostor(
    joiner: JoinClient, clock: ManualClock, claims: str
) -> None:
    """Its secret went out before anything was checked."""
    impostor = Impostor(key("eve"), clock)
    impostor.claimed_key = key("root").public if claims == "the key of the host" else b""
    _asks(joiner, impostor)
    token = mint_token(clock, TokenKind.INVITE, key("root").fingerprint).text
    with pytest.raises(WrongHost, match="from another gateway"):
        await joiner.exchange_invite(SEED, token)
    assert [request.method for request in impostor.requests] == ["GET"]
    assert "ben" not in str(impostor.requests[0].url)


async def test_whoever_listens_to_a_join_does_not_learn_the_invite(
    joiner: JoinClient, clock: ManualClock
) -> None:
    host = Impostor(key("root"), clock)
    _asks(joiner, host)
    token = mint_token(clock, TokenKind.INVITE, key("root").fingerprint).text
    await joiner.exchange_invite(SEED, token)
    secret = token.rsplit(".", 1)[1].encode()
    assert not any(secret in request.content for request in host.requests)
    sent = msgspec.json.decode(host.requests[1].content, type=ExchangeRequest)
    assert decrypt_invite(sent.encrypted_invite or b"", key("root")) == token


async def test_an_old_answer_is_not(joiner: JoinClient, clock: ManualClock) -> None:
    _asks(joiner, Impostor(key("root"), clock, nonce="another-nonce-of-ours"))
    with pytest.raises(InvalidTicket, match="answers another request"):
        await joiner.exchange_proof(SEED)


async def test_a_gateway_does_not_visit_itself(joiner: JoinClient, clock: ManualClock) -> None:
    _asks(joiner, Impostor(joiner._node.key, clock))
    with pytest.raises(SelfDialError):
        await joiner.exchange_proof(SEED)


async def test_what_is_no_gateway_is_said_to_be_none(joiner: JoinClient) -> None:
    for status in (200, 500):
        _asks(joiner, lambda _, status=status: httpx.Response(status, text="<html>"))  # type: ignore[misc]
        with pytest.raises(Unavailable, match="not a gateway"):
            await joiner.exchange_proof(SEED)


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}])
async def test_an_answer_is_small_and_not_compressed(
    joiner: JoinClient, headers: dict[str, str]
) -> None:
    """1 MiB of gzip took 3.1 GiB."""
    content = gzip.compress(bytes(32 << 20)) if headers else bytes(1 << 20)

    async def body() -> AsyncIterator[bytes]:
        yield content

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=headers, content=body())

    _asks(joiner, answer)
    tracemalloc.start()
    try:
        with pytest.raises(Unavailable, match="not a gateway"):
            await joiner.exchange_proof(SEED)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


async def test_an_answer_that_never_ends_is_given_up(
    joiner: JoinClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_client, "_TIMEOUT_SECS", 0.05)

    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.001)

    _asks(joiner, lambda _: httpx.Response(200, content=body()))
    with pytest.raises(TimeoutError):
        await joiner.exchange_proof(SEED)


async def test_an_address_from_the_room_is_checked_before_it_is_dialled(
    joiner: JoinClient,
) -> None:
    """Any member could make others probe their own ports."""
    asked: list[httpx.Request] = []
    joiner.transport = httpx.MockTransport(asked.append)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="on this machine"):
        await joiner.exchange_proof(Seed(URL, from_room=True))
    assert asked == []


async def test_a_redirect_leads_nowhere() -> None:
    connecting = join_client.DirectConnect("ws://127.0.0.1:1")
    refusal = InvalidStatus(Response(302, "Found", Headers(location="ws://127.0.0.1:2")))
    assert connecting.process_redirect(refusal) is refusal


async def test_nothing_is_sent_in_the_clear_to_another_machine(joiner: JoinClient) -> None:
    with pytest.raises(InvalidRequest, match="without TLS"):
        await joiner.exchange_proof(Seed("http://192.0.2.1:1"))


async def test_a_message_of_a_dialled_peer_has_only_so_many_pieces() -> None:
    async def speak(socket: ServerConnection) -> None:
        for pieces in ([b"in ", b"two"], [b"whole"], [b""] * 2000):
            await socket.send(pieces)
        await socket.wait_closed()

    async with serve(speak, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{port}"
        # The rest of the message is never read, so that the other side's farewell is not either.
        dialled = connect(url, create_connection=DialedConnection, close_timeout=0.1)
        async with dialled as socket:
            wire = DialedPeerSocket(socket)
            assert [await wire.receive(), await wire.receive()] == [b"in two", b"whole"]
            with pytest.raises(RoomViolation, match="too many pieces"):
                await wire.receive()


class _UnreadTransport:
    is_aborted = False

    def get_write_buffer_size(self) -> int:
        return 17 << 20

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_dialled_peer_that_sends_pings_and_does_not_read_is_left() -> None:
    connection = DialedConnection.__new__(DialedConnection)
    connection.transport = transport = _UnreadTransport()  # type: ignore[assignment]
    connection.data_received(b"\x89\x00")
    assert transport.is_aborted
