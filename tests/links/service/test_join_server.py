"""Joining over real HTTP and WebSocket: every refusal, and that it comes before the room."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from gatepost.room import ChainVerifier
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client
from tests.live_mesh.tools import ROOM, BareNode, Gateway
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("nodes")
    with Gateway(folder, "host", room__join_burst=10_000) as running:
        running.invite()
        yield running


@pytest.fixture
def node(host: Gateway, request: pytest.FixtureRequest) -> BareNode:
    return BareNode(host, f"n{abs(hash(request.node.name)) % 10**12}")


def _code(answer: httpx.Response) -> tuple[int, str]:
    assert answer.json()["message"]
    return answer.status_code, answer.json()["code"]


def test_an_invite_opens_the_room_and_tells_the_node_who_it_is(
    host: Gateway, node: BareNode
) -> None:
    token = host.invite(node.name, "edge")
    ticket = node.ticket(token)
    with node.open(ticket, subprotocols=["gatepost"]) as socket:
        said = node.welcome(socket)
        assert socket.subprotocol == "gatepost"
        assert socket.recv(timeout=5)[0] == 0, "sync comes first"
    ChainVerifier(said.genesis).verify_chain(said.chain)
    link = said.chain[-1]
    assert (link.node, link.tier, link.key) == (node.name, "edge", node.key.public)
    (row,) = [i for i in host.call("GET", "/room/invites") if i["used_by"] == node.name]
    assert row["state"] == "used"


def test_a_ticket_travels_as_a_subprotocol_too(host: Gateway, node: BareNode) -> None:
    ticket = node.ticket(host.invite())
    with node.open(None, subprotocols=["gatepost", f"ticket.{ticket}"]) as socket:
        assert socket.subprotocol == "gatepost"


def test_a_ticket_in_the_address_is_none(host: Gateway, node: BareNode) -> None:
    path = f"{ROOM}?ticket={node.ticket(host.invite())}"
    assert node.refusal(None, path=path) == (401, "invalid_ticket")


def test_a_token_that_is_none(node: BareNode) -> None:
    token = f"gp1.{'0' * 48}.{'A' * 43}"
    assert _code(node.exchange(node.joiner.with_invite(token))) == (401, "invalid_token")


def test_an_expired_token_and_an_expired_ticket(host: Gateway, node: BareNode) -> None:
    token = host.invite(ttl_secs=2)
    invited_at = time.monotonic()
    ticket = node.ticket(token)
    # A ticket does not outlive its invite.
    wait_until(lambda: time.monotonic() > invited_at + 2)
    assert _code(node.exchange(node.joiner.with_invite(token))) == (401, "expired_token")
    assert node.refusal(ticket) == (401, "expired_ticket")


def test_an_invite_for_another_node(host: Gateway, node: BareNode) -> None:
    request = node.joiner.with_invite(host.invite("somebody-else"))
    assert _code(node.exchange(request)) == (403, "node_mismatch")


def test_an_invite_is_good_once(host: Gateway, node: BareNode) -> None:
    token = host.invite()
    node.enter(token)
    assert _code(node.exchange(node.joiner.with_invite(token))) == (409, "token_already_used")


def test_an_exchange_is_made_once(host: Gateway, node: BareNode) -> None:
    request = node.joiner.with_invite(host.invite())
    assert node.exchange(request).is_success
    assert _code(node.exchange(request)) == (409, "replay_detected")


def test_a_node_proves_its_key(host: Gateway, node: BareNode) -> None:
    request = node.joiner.with_invite(host.invite())
    unproven = replace(request, node_proof=None)
    assert _code(node.exchange(unproven)) == (401, "proof_required")
    forged = replace(request, node_proof=bytes(64))
    assert _code(node.exchange(forged)) == (401, "invalid_proof")


def test_only_who_was_let_in_comes_back_by_proof(host: Gateway, node: BareNode) -> None:
    assert _code(node.exchange(node.by_proof())) == (401, "invalid_proof")
    node.enter(host.invite())
    request = node.by_proof()
    assert node.exchange(request).is_success
    assert _code(node.exchange(request)) == (409, "replay_detected")


def test_other_rooms_are_closed(host: Gateway, node: BareNode) -> None:
    request = node.joiner.with_invite(host.invite(), rooms=("payroll",))
    assert _code(node.exchange(request)) == (403, "forbidden")
    ticket = node.ticket(host.invite())
    assert node.refusal(ticket, path="/ansible/room/payroll") == (404, "not_found")
    node.visit(ticket)


def test_no_ticket_and_something_that_is_none(node: BareNode) -> None:
    assert node.refusal(None) == (401, "invalid_ticket")
    assert node.refusal("eyJ.garbage.x") == (401, "invalid_ticket")


def test_a_ticket_opens_one_connection(host: Gateway, node: BareNode) -> None:
    ticket = node.ticket(host.invite())
    node.visit(ticket)
    assert node.refusal(ticket) == (409, "ticket_already_used")
    host.restart()
    assert node.refusal(ticket) == (409, "ticket_already_used"), "also after a restart"


def test_a_ticket_of_another_gateway(start: Callable[..., GatewayProcess], node: BareNode) -> None:
    other = start(node__id="other")
    with client(other) as http:
        token = http.post("/v1/room/invites", json={}).json()["token"]
    foreign = BareNode(other, node.name).ticket(token)
    assert node.refusal(foreign) == (401, "invalid_ticket")


def test_two_live_tickets_of_one_invite_let_one_node_in(host: Gateway, node: BareNode) -> None:
    token = host.invite()
    rival = BareNode(host, f"{node.name}-rival")
    first, second = node.ticket(token), rival.ticket(token)
    rival.visit(second)
    assert node.refusal(first) == (409, "token_already_used")
    assert _code(node.exchange(node.by_proof())) == (401, "invalid_proof")


def test_a_node_that_crashed_before_it_heard_gets_in_all_the_same(
    host: Gateway, node: BareNode
) -> None:
    token = host.invite(node.name)
    node.visit(node.ticket(token))
    assert _code(node.exchange(node.joiner.with_invite(token))) == (409, "token_already_used")
    with node.open(node.ticket()) as socket:
        assert node.welcome(socket).chain[-1].key == node.key.public


def test_a_revoked_node_hears_that_it_is_only_if_it_proves_itself(
    host: Gateway, node: BareNode
) -> None:
    node.enter(host.invite())
    ticket = node.ticket()
    host.call("POST", f"/room/nodes/{node.name}/revoke", {})
    assert node.refusal(ticket) == (403, "revoked")
    assert _code(node.exchange(node.by_proof())) == (403, "revoked")
    stranger = BareNode(host, node.name)
    assert _code(stranger.exchange(stranger.by_proof())) == (401, "invalid_proof")
    again = node.joiner.with_invite(host.invite())
    assert _code(node.exchange(again)) == (403, "revoked"), "a new invite does not help"


def test_pages_from_elsewhere_are_refused(host: Gateway, node: BareNode) -> None:
    ticket = node.ticket(host.invite())
    evil = {"origin": "https://evil.example"}
    assert node.refusal(ticket, headers=evil) == (403, "forbidden")
    node.visit(ticket, headers={"origin": host.url})


def test_bodies_are_bounded_and_typed(host: Gateway, node: BareNode) -> None:
    url = f"{host.url}/ansible/auth/exchange"
    assert httpx.post(url, content=b"x" * 20_000).status_code == 413
    bad: list[object] = [{}, {"nodeId": "../x"}, [], {"nodeId": "a", "nodeKey": "short"}]
    for body in bad:
        assert _code(httpx.post(url, json=body)) == (400, "invalid_request")


def test_a_node_that_tries_too_often_is_told_to_wait(start: Callable[..., GatewayProcess]) -> None:
    gateway = start(room__join_burst=3, room__joins_per_sec=0.1)
    url = f"{gateway.url}/ansible/auth/challenge"
    answers = [httpx.get(url) for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert int(answers[3].headers["retry-after"]) >= 1
    assert BareNode(gateway, "n").refusal(None) == (429, "rate_limited")


def test_the_local_api_of_the_room_needs_the_local_token(host: Gateway) -> None:
    for path in ("/v1/room", "/v1/room/nodes", "/v1/room/invites"):
        assert httpx.get(host.url + path).status_code == 401


def test_neither_invites_nor_tickets_are_logged_or_stored(host: Gateway, node: BareNode) -> None:
    token = host.invite()
    ticket = node.ticket(token)
    node.visit(ticket)
    node.refusal(ticket)
    kept = host.log.read_bytes() + (host.state_dir / "journal.db").read_bytes()
    kept += (host.state_dir / "journal.db-wal").read_bytes()
    secret = token.rpartition(".")[2].encode()
    assert secret not in kept
    assert ticket.encode() not in kept
    assert node.name.encode() in kept, "or this would look in the wrong place"
    assert secret.decode() not in json.dumps(host.call("GET", "/room/invites"))


def test_a_keyless_node_reads_the_room_in_development(tmp_path: Path) -> None:
    settings = {"room__profile": "development", "room__allow_keyless": "true"}
    with Gateway(tmp_path, "ann", **settings) as ann:
        pad = BareNode(ann, "pad")
        body = {"inviteToken": ann.invite("pad"), "nodeId": "pad", "nonce": "n" * 24}
        answer = pad.exchange(body)
        assert answer.status_code == 200, answer.text
        with pad.open(answer.json()["wsTicket"]) as socket:
            assert socket.recv(timeout=10)
