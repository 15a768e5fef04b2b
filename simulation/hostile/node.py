"""The hostile node that joins a real gateway: exchange, ticket, WebSocket."""

from typing import Any

import httpx
import msgspec
from websockets.sync.client import ClientConnection, connect

from gatepost.access import ExchangeRequester
from gatepost.access.auth_messages import Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.access.welcome_header import WELCOME_HEADER, decode_welcome
from gatepost.clock import Clock
from gatepost.events import NodeKey, fingerprint_key
from gatepost.links.service.join_client import websocket_url
from gatepost.links.service.join_server import CHALLENGE_PATH, EXCHANGE_PATH, ROOM_PATH
from gatepost.room import CONTROL_ROOM
from gatepost.wire.operations import decode_failure
from simulation.hostile.connection import HostileConnection
from simulation.hostile.identity import HostileIdentity

_TIMEOUT_SECS = 20.0


class HostileNode(HostileIdentity):
    """An admitted node that is nothing but a key and whatever a test lets it say.

        with GatewayProcess(folder, node__id="ann") as ann:
            mallory = HostileNode(ann.url, "mallory")
            with mallory.join(invite) as connection:
                connection.send_records(mallory.sign_node())
                connection.greet()
                mallory.outbox.add_signal("ann", ref, Signal(signal="expire", through=2**53 - 1))
                connection.send_events()

    The invite decides its tier. `join` uses it up; from then on `connect` opens as many further
    connections as a test wants, by proof of the key. All of it is true by default, and every part
    can be replaced by a lie: see `HostileConnection`, `HostileOutbox` and `HostileIdentity`, which
    also works without a gateway.
    """

    def __init__(
        self, url: str, name: str, key: NodeKey | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(name, key, clock)
        self.url = url
        self._requester = ExchangeRequester(name, self.key, self.clock)
        # The gateway's key, as its last answer named it.
        self.host_key = b""

    def join(self, token: str, **options: Any) -> HostileConnection:
        """Enter the room with an invite."""
        return self.open_connection(self.exchange(self._requester.with_invite(token)), **options)

    def connect(self, **options: Any) -> HostileConnection:
        """Enter the room again, by proof."""
        return self.open_connection(self.exchange(self.prove_key()), **options)

    def prove_key(self) -> ExchangeRequest:
        """A true answer to a new challenge."""
        response = httpx.get(self.url + CHALLENGE_PATH, timeout=_TIMEOUT_SECS, trust_env=False)
        challenge = msgspec.json.decode(_content(response), type=Challenge)
        issuer = fingerprint_key(challenge.issuer_key)
        return self._requester.with_challenge(challenge, issuer)

    def exchange(self, request: ExchangeRequest) -> ExchangeAnswer:
        """Exchange a request for a ticket; a refusal raises the error of the gateway."""
        body = msgspec.json.encode(request)
        url = self.url + EXCHANGE_PATH
        response = httpx.post(url, content=body, timeout=_TIMEOUT_SECS, trust_env=False)
        answer = msgspec.json.decode(_content(response), type=ExchangeAnswer)
        self.host_key = answer.issuer_key
        return answer

    def open_connection(self, answer: ExchangeAnswer, **options: Any) -> HostileConnection:
        """Open the WebSocket with a ticket. `options` go to `websockets.sync.client.connect`."""
        socket = connect(
            f"{websocket_url(self.url)}{ROOM_PATH}/{CONTROL_ROOM}",
            additional_headers={"authorization": f"Bearer {answer.ws_ticket}"},
            **{
                "compression": None,
                "max_size": None,
                "ping_interval": None,
                "close_timeout": 1,
                **options,
            },
        ).__enter__()
        self._read_welcome(socket, answer)
        return HostileConnection(self, socket)

    def _read_welcome(self, socket: ClientConnection, answer: ExchangeAnswer) -> None:
        assert socket.response is not None
        text = socket.response.headers[WELCOME_HEADER]
        self.welcome(decode_welcome(text, answer.session_id, answer.issuer_key))


def _content(response: httpx.Response) -> bytes:
    if response.is_success:
        return response.content
    error = decode_failure(response.content)
    raise error or AssertionError(f"{response.url} answered HTTP {response.status_code}")
