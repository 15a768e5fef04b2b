"""A newcomer of another implementation: plain HTTP, and the fields of the documents alone."""

import http.client
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
# The fields of the join request that the protocol has beside the token and the time.
TUNNEL = {
    "wg_pubkey": "joiner-wireguard-pubkey",
    "wg_endpoint": "1.2.3.4:51820",
    "tunnel_ip": "10.200.200.11",
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for development, which admits nodes without a key."""
    keyless: dict[str, object] = {"room__profile": "development", "room__allow_keyless": True}
    with Gateway(tmp_path_factory.mktemp("foreign"), "ann", **keyless) as running:
        running.invite()
        yield running


def post(host: Gateway, path: str, body: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(host.url).netloc, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def exchange(host: Gateway, invite: str, nonce: str) -> str:
    """The single-use ticket for an invite, by the request of the documents."""
    body = {"inviteToken": invite, "nodeId": "mbp-jane", "nonce": nonce}
    began = time.time()
    status, answer = post(host, "/ansible/auth/exchange", body)
    assert status == 200, answer
    assert {"wsTicket", "expiresAt", "rooms", "sessionId"} <= answer.keys()
    # It lives for 30 to 60 s, in whole seconds.
    ends = answer["expiresAt"] / 1000
    assert began + 29 <= ends <= time.time() + 60
    return str(answer["wsTicket"])


def upgrade(host: Gateway, ticket: str) -> tuple[int, bytes]:
    """Open the room: the status, and the first bytes of the room or the body of the refusal."""
    connection = http.client.HTTPConnection(urlsplit(host.url).netloc, timeout=30)
    try:
        headers = UPGRADE | {"Authorization": f"Bearer {ticket}"}
        connection.request("GET", "/ansible/room/ansible-control", headers=headers)
        answer = connection.getresponse()
        if answer.status != 101:
            return answer.status, answer.read()
        return answer.status, answer.fp.read(1)
    finally:
        connection.close()


def split_join_secret(text: str) -> tuple[str, str]:
    """The cluster token and the join secret, as docs/bootstrap.md says how to split them."""
    both = urlsafe_b64decode(text.rpartition(".")[2] + "==")
    token, secret = (urlsafe_b64encode(half).rstrip(b"=") for half in (both[:32], both[32:]))
    return token.decode(), secret.decode()


def read_join_secret(host: Gateway) -> str:
    """Empty until the gateway has one."""
    try:
        return str(host.call("GET", "/mesh/secrets")["join_secret"])
    except AssertionError:
        return ""


def assert_first_ticket_alone_opens(host: Gateway, invite: str) -> None:
    first, second = exchange(host, invite, "a" * 24), exchange(host, invite, "b" * 24)
    status, begun = upgrade(host, first)
    assert (status, begun) == (101, b"\x82"), "the room sends its sync as a binary frame"
    status, refusal = upgrade(host, second)
    assert (status, json.loads(refusal)["code"]) == (409, "token_already_used")
    status, refusal = upgrade(host, first)
    assert (status, json.loads(refusal)["code"]) == (409, "ticket_already_used")
    body = {"inviteToken": invite, "nodeId": "mbp-jane", "nonce": "c" * 24}
    status, answer = post(host, "/ansible/auth/exchange", body)
    assert (status, answer["code"]) == (409, "token_already_used")


def test_of_two_tickets_of_an_invite_the_first_alone_opens_the_room(host: Gateway) -> None:
    assert_first_ticket_alone_opens(host, host.invite("mbp-jane", "edge"))


def test_a_newcomer_bootstraps_with_the_five_fields_of_the_protocol(host: Gateway) -> None:
    token, secret = split_join_secret(wait_until(lambda: read_join_secret(host)))
    body = {"cluster_token": token, **TUNNEL, "request_time": int(time.time())}
    status, answer = post(host, f"/.rb/{secret}", body)
    assert status == 200, answer
    fields = {f"responder_{name}" for name in ("node_id", "wg_pubkey", "wg_endpoint", "tunnel_ip")}
    assert {"success", "known_peers", *fields} <= answer.keys()
    assert (answer["success"], answer["responder_node_id"]) == (True, "ann")
    wrong = post(host, f"/.rb/{secret}", body | {"cluster_token": "wrong"})
    late = post(host, f"/.rb/{secret}", body | {"request_time": int(time.time()) - 301})
    nowhere = post(host, "/.rb/nowhere", body)
    assert wrong == late == nowhere and nowhere[0] == 404
    assert_first_ticket_alone_opens(host, answer["invite"])
