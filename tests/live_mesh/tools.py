"""Real gateways that meet, and a node that is only a key and what it says."""

import json
from base64 import b64decode
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from gatepost.access import ExchangeRequester, welcome_header
from gatepost.access.auth_messages import Challenge, ExchangeRequest
from gatepost.access.welcome_header import Welcome
from gatepost.clock import SystemClock
from gatepost.events import NodeKey, fingerprint_key
from gatepost.room import Genesis, RecordAuthor
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client
from tests.waiting import wait_until

ROOM = "/ansible/room/ansible-control"


class Gateway(GatewayProcess):
    """A gateway process and its local API."""

    def __init__(self, folder: Path, name: str, **settings: object) -> None:
        super().__init__(folder / name, node__id=name, **settings)
        self.name = name

    def call(self, method: str, path: str, body: object = None) -> Any:
        with client(self) as http:
            answer = http.request(method, f"/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def invite(self, node: str | None = None, tier: str = "backbone", ttl_secs: int = 600) -> str:
        body = {"tier": tier, "node": node, "ttl_secs": ttl_secs}
        return str(self.call("POST", "/room/invites", body)["token"])

    def join(self, host: "Gateway", tier: str = "backbone") -> None:
        token = host.invite(self.name, tier)
        self.call("POST", "/room/join", {"seed": host.url, "token": token})

    def nodes(self) -> dict[str, Any]:
        return {node["id"]: node for node in self.call("GET", "/room/nodes")["nodes"]}

    def records(self) -> dict[str, Any]:
        """Everything in this gateway's replica, as it was signed."""
        shown = self.call("GET", "/room")["records"]
        return {f"{each['map']} {each['key']}": each["record"] for each in shown}

    def routes(self) -> set[str]:
        """Agents that mail can be sent to, as `agent@owner`: their owners count as members."""
        return {f"{each['id']}@{each['owner']}" for each in self.call("GET", "/room/agents")}

    def incidents(self) -> dict[str, int]:
        return dict(self.call("GET", "/room")["incidents"])

    def connected_to(self, *others: str) -> bool:
        nodes = self.nodes()
        return all(other in nodes and nodes[other]["connected"] for other in others)


def expect_changes_by(
    writers: Set[str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Only these writers have written meanwhile, and nothing was lost or set back."""
    assert before.keys() <= after.keys(), f"gone: {before.keys() - after.keys()}"
    changed = {place: record for place, record in after.items() if record != before.get(place)}
    foreign = [place for place, record in changed.items() if record["writer"] not in writers]
    assert not foreign, f"written by others: {foreign}"
    set_back = [
        place
        for place, record in changed.items()
        if place in before and not _is_later(record, before[place])
    ]
    assert not set_back, f"changed without a later version: {set_back}"


def _is_later(record: Any, earlier: Any) -> bool:
    return bool(record["writer"] == earlier["writer"] and record["version"] > earlier["version"])


def converge(*gateways: Gateway, secs: float = 30) -> None:
    """Wait until all of them hold the same."""
    wait_until(lambda: len({json.dumps(g.records(), sort_keys=True) for g in gateways}) == 1, secs)


class BareNode:
    """A node without a gateway, which joins step by step."""

    def __init__(self, host: GatewayProcess, name: str) -> None:
        self.host = host
        self.name = name
        self.key = NodeKey(SystemClock().random(32))
        self.session = ""
        self.issuer_key = b""

    @property
    def joiner(self) -> ExchangeRequester:
        return ExchangeRequester(self.name, self.key, SystemClock())

    def exchange(self, request: object) -> httpx.Response:
        body = msgspec.json.encode(request)
        return httpx.post(f"{self.host.url}/ansible/auth/exchange", content=body)

    def challenge(self) -> Challenge:
        answer = httpx.get(f"{self.host.url}/ansible/auth/challenge")
        return msgspec.json.decode(answer.content, type=Challenge)

    def by_proof(self) -> ExchangeRequest:
        challenge = self.challenge()
        return self.joiner.with_challenge(challenge, fingerprint_key(challenge.issuer_key))

    def ticket(self, token: str | None = None) -> str:
        """A ticket for an invite, or for a proof."""
        request = self.by_proof() if token is None else self.joiner.with_invite(token)
        answer = self.exchange(request)
        assert answer.status_code == 200, answer.text
        self.session = answer.json()["sessionId"]
        self.issuer_key = b64decode(answer.json()["issuerKey"])
        return str(answer.json()["wsTicket"])

    def open(self, ticket: str | None, **options: Any) -> AbstractContextManager[ClientConnection]:
        headers = {} if ticket is None else {"authorization": f"Bearer {ticket}"}
        url = self.host.url.replace("http", "ws") + options.pop("path", ROOM)
        extra = options.pop("headers", {})
        protocols = [Subprotocol(each) for each in options.pop("subprotocols", ())] or None
        opened: AbstractContextManager[ClientConnection] = connect(
            url,
            additional_headers=headers | extra,
            subprotocols=protocols,
            compression=None,
            max_size=None,
            **options,
        )
        return opened

    def visit(self, ticket: str | None, **options: Any) -> None:
        """Go in and out again."""
        with self.open(ticket, **options):
            pass

    def refusal(self, ticket: str | None, **options: Any) -> tuple[int, str]:
        """The status and code with which the handshake is refused."""
        try:
            self.visit(ticket, **options)
        except InvalidStatus as refused:
            body = json.loads(bytes(refused.response.body or b""))
            assert body["message"]
            return refused.response.status_code, body["code"]
        raise AssertionError("it was let in")

    def welcome(self, socket: ClientConnection) -> Welcome:
        assert socket.response is not None
        said = socket.response.headers[welcome_header.WELCOME_HEADER]
        return welcome_header.decode_welcome(said, self.session, self.issuer_key)

    def enter(self, token: str) -> tuple[Genesis, RecordAuthor]:
        """Join, and leave again with all it takes to write."""
        with self.open(self.ticket(token)) as socket:
            said = self.welcome(socket)
        return said.genesis, RecordAuthor(self.key, said.chain)


def close_code(socket: ClientConnection, secs: float = 5) -> int:
    """Read until the gateway hangs up."""
    try:
        while True:
            socket.recv(timeout=secs)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return closed.rcvd.code
