"""External agents: Agent and Client with a session, by GATEPOST_URL and a token file."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import httpx
import pytest

from gatepost.access import Scope
from gatepost.client import Agent, Client, SyncClient
from gatepost.connect.agent_session_file import AgentSessionFile
from gatepost.connect.gateway_endpoint import Target
from gatepost.errors import (
    Forbidden,
    GatepostError,
    InsufficientScope,
    TokenReused,
    UnknownBlob,
)
from gatepost.testing import GatewayProcess
from gatepost.wire.operations import Ack, NewSend, Send
from tests.gateway.admin.test_external_agents import invited
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

MESSAGES = (Scope.MESSAGE_READ, Scope.MESSAGE_SEND)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("external")
    with GatewayProcess(folder / "state", room__join_burst=10_000) as gateway:
        yield gateway


@pytest.fixture
def token_file(host: GatewayProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the external agent `ext-…`, named for its test; it starts as an invite."""
    file = tmp_path / "agent.token"
    file.write_text(invited(host, _agent(tmp_path), *MESSAGES).json()["inviteToken"] + "\n")
    monkeypatch.setenv("GATEPOST_URL", host.url)
    monkeypatch.setenv("GATEPOST_TOKEN_FILE", str(file))
    return file


def _agent(tmp_path: Path) -> str:
    return f"ext-{tmp_path.name}"[:60]


async def test_an_external_agent_handles_mail_that_is_pushed(
    host: GatewayProcess, token_file: Path
) -> None:
    name = _agent(token_file.parent)
    agent = Agent(name)
    agent.on_message(lambda message: f"done: {message.payload}")
    async with agent, Client("alice", state_dir=host.state_dir) as alice:
        assert await alice.request(name, "work") == "done: work"
        sent = await agent.send(name, "to myself", wait="accepted")
        assert sent.event_id
    assert json.loads(token_file.read_bytes())["agentId"] == name
    assert token_file.stat().st_mode & 0o777 == 0o600


async def test_a_blocking_client_has_a_session_too(token_file: Path) -> None:
    name = _agent(token_file.parent)

    def use() -> str:
        with SyncClient(name) as client:
            client.register(name)
            return client.send(name, "hello", wait="accepted").event_id

    assert await asyncio.to_thread(use)


async def test_a_session_acts_only_as_its_agent_and_within_its_scopes(
    host: GatewayProcess, token_file: Path
) -> None:
    async with Client(_agent(token_file.parent)) as client:
        for refused in (
            client.enqueue("bob", 1, from_="somebody"),
            client.dequeue("somebody"),
            client.register("somebody"),
        ):
            with pytest.raises(Forbidden):
                await refused
        with pytest.raises(InsufficientScope):
            await client.purge(_agent(token_file.parent))
        with pytest.raises(InsufficientScope):
            await client.status()
        async with Client("alice", state_dir=host.state_dir) as alice:
            await alice.register("bob")
            sent = await alice.send("bob", 1)
        with pytest.raises(Forbidden):
            await client._await_progress(sent.event_id, "processed", client._loop.time() + 5)


async def test_the_status_is_an_operation_of_a_session(
    host: GatewayProcess, token_file: Path
) -> None:
    invite = invited(host, "watcher", Scope.STATUS_READ).json()["inviteToken"]
    token_file.write_text(invite)
    async with Client("watcher") as client:
        assert (await client.status()).node_id


async def test_a_revoked_session_loses_its_socket(host: GatewayProcess, token_file: Path) -> None:
    name = _agent(token_file.parent)
    async with Client(name) as client:
        await client.register(name)
        answer = httpx.post(
            f"{host.url}/v1/external-agents/{name}/revoke",
            headers={"authorization": f"Bearer {host.token}"},
        )
        assert answer.json()["sessions"] == 1
        await async_wait_until(lambda: client._connection._socket.current is None)
        await async_wait_until(lambda: "was ended" in client._connection._socket.problem)


async def test_a_socket_ends_with_its_token_and_is_opened_again(
    host: GatewayProcess, token_file: Path
) -> None:
    """The clocks differ here: the token has expired at the gateway only."""
    target = AgentSessionFile(token_file, host.url, None).current_target()
    _shorten_tokens(host, json.loads(token_file.read_bytes())["accessToken"])
    async with Client(_agent(token_file.parent)) as client:
        await async_wait_until(lambda: client._connection._socket.problem)
        await client.register(_agent(token_file.parent), timeout=20)
    assert json.loads(token_file.read_bytes())["accessToken"] != target.token


def _shorten_tokens(host: GatewayProcess, token: str) -> None:
    connection = apsw.Connection(str(host.state_dir / "journal.db"))
    connection.set_busy_timeout(5000)
    soon = "CAST((julianday('now') - 2440587.5) * 86400000 + 1000 AS INTEGER)"
    connection.execute(
        f"UPDATE agent_token SET expires_at = {soon} WHERE id = ?", (token.split(".")[1],)
    )
    connection.close()


class _LosingAnswers(AgentSessionFile):
    """Asks the gateway, but the answer never arrives."""

    def _call(self, calls: object, action: str, body: object) -> object:  # type: ignore[override]
        super()._call(calls, action, body)  # type: ignore[arg-type]
        raise GatepostError("the connection broke")


async def test_a_lost_answer_to_a_refresh_does_not_end_the_session(
    host: GatewayProcess, token_file: Path
) -> None:
    first = AgentSessionFile(token_file, host.url, None).current_target()
    copy = token_file.with_name("stolen.token")
    copy.write_bytes(token_file.read_bytes())
    _expire(first)
    with pytest.raises(GatepostError, match="broke"):
        _LosingAnswers(token_file, host.url, None).current_target()
    second = AgentSessionFile(token_file, host.url, None).current_target()
    assert second.token != first.token
    async with Client(_agent(token_file.parent)) as client:
        await client.register(_agent(token_file.parent))
    # A copy of the first refresh token has another number, and the answer was used.
    stolen = json.loads(copy.read_bytes())
    copy.write_text(json.dumps(stolen | {"accessExpiresAt": 0}))
    with pytest.raises(TokenReused):
        AgentSessionFile(copy, host.url, None).current_target()


def _expire(target: Target) -> None:
    assert target.expire_token is not None
    target.expire_token()


async def test_an_invite_names_the_certificate_of_its_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of certificates is needed, neither for an external agent nor for a local one."""
    from tests.cli.conftest import Cli
    from tests.cli.test_room import _started, _url

    cli = Cli(tmp_path / "state")
    cli.ok("init", "--public", "--host", "127.0.0.1")
    with _started(cli.home):
        scopes = [part for scope in MESSAGES for part in ("--scope", str(scope))]
        invite = cli.json("agent", "invite", "ci-bot", *scopes)["inviteToken"]
        file = tmp_path / "agent.token"
        file.write_text(invite)
        monkeypatch.setenv("GATEPOST_URL", await asyncio.to_thread(_url, cli))
        monkeypatch.setenv("GATEPOST_TOKEN_FILE", str(file))
        agent = Agent("ci-bot")
        agent.on_message(lambda message: message.payload)
        async with agent, Client("alice", state_dir=cli.home) as alice:
            assert await alice.request("ci-bot", "hello") == "hello"
            assert (await alice.status()).node_id


async def test_a_session_names_no_blob_of_others(host: GatewayProcess, token_file: Path) -> None:
    name = _agent(token_file.parent)
    headers = {"authorization": f"Bearer {host.token}"}
    blob = httpx.post(f"{host.url}/v1/blobs", headers=headers, content=b"x" * 100_000).json()
    async with Client(name) as client, Client("alice", state_dir=host.state_dir) as alice:
        await client.register(name)
        await client.enqueue(name, 1)
        (message,) = await client.dequeue(name)
        send = Send(messages=[NewSend(from_agent=name, to_agent=name, payload_ref=blob["digest"])])
        ack = Ack(
            mailbox=name, receipts=[message.receipt], reply_refs={message.receipt: blob["digest"]}
        )
        for op in (send, ack):
            with pytest.raises(UnknownBlob):
                await client._request_answer(op, client._loop.time() + 5)
        # Its own mail it may read, however large.
        await client.ack(name, message.receipt)
        await alice.send(name, "y" * 200_000)
        (large,) = await client.dequeue(name, wait_secs=10)
        assert await large.load() == "y" * 200_000


async def test_a_session_sends_and_answers_with_payloads_over_one_request(
    host: GatewayProcess, token_file: Path
) -> None:
    agent = Agent(_agent(token_file.parent))
    agent.on_message(lambda message: "r" * 2_000_000)
    async with agent, Client("carol", state_dir=host.state_dir) as carol:
        assert await carol.request(agent.name, "work") == "r" * 2_000_000
        await carol.register("carol")
        await agent.send("carol", "s" * 2_000_000)
        (mail,) = await carol.dequeue("carol", wait_secs=10)
        assert await mail.load() == "s" * 2_000_000
