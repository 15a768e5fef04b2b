"""Calls of one agent elsewhere, over whichever binding its card offers.

The operator names the agent's address. Its card may name others, but only at the same origin: so
neither the token nor a message goes where the operator has not pointed.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from a2a.client.card_resolver import A2ACardResolver
from a2a.client.client import Client, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a_errors

from gatepost.a2a.door_records import OutsideAgent

_TIMEOUT_SECS = 30.0
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_MAX_TOKEN_BYTES = 16 * 1024


class OutsideAway(Exception):
    """The agent cannot be reached, or cannot answer now."""


class OutsideRefused(Exception):
    """The agent has answered that it will not do this."""


class OutsideTaskLost(Exception):
    """The agent does not know the task that it has taken."""


class OutsideClient:
    def __init__(self, agent: OutsideAgent) -> None:
        self._agent = agent
        self._http = httpx.AsyncClient(
            # What is compressed can be small on its way and huge in memory.
            headers={"accept-encoding": "identity"},
            timeout=_TIMEOUT_SECS,
            trust_env=False,
            follow_redirects=False,
            event_hooks={"request": [self._add_token], "response": [bound_answer]},
        )
        self._client: Client | None = None

    async def close(self) -> None:
        await self._http.aclose()

    async def _add_token(self, request: httpx.Request) -> None:
        if not self._agent.token_file:
            return
        # Read again each time: whoever renews it only has to write the file.
        path = Path(self._agent.token_file)
        try:
            token = path.read_bytes()[:_MAX_TOKEN_BYTES].decode("ascii").strip()
        except (OSError, ValueError):
            raise httpx.RequestError(f"{path} cannot be read", request=request) from None
        request.headers["authorization"] = f"Bearer {token}"

    async def connect(self) -> None:
        """Read the agent's card again. OutsideAway if that is impossible."""
        try:
            card = await A2ACardResolver(self._http, self._agent.url).get_agent_card()
            del_foreign_interfaces(card, self._agent.url)
            config = ClientConfig(
                streaming=False,
                polling=True,
                httpx_client=self._http,
                supported_protocol_bindings=["JSONRPC", "HTTP+JSON"],
            )
            self._client = ClientFactory(config).create(card)
        except Exception as error:
            raise OutsideAway(f"its card cannot be used: {error}"[:500]) from None

    async def send(self, message: pb.Message) -> pb.Task | pb.Message:
        """Send a message without waiting for its end."""
        request = pb.SendMessageRequest(message=message)
        try:
            answer = await anext(self._connected().send_message(request))
        except Exception as error:
            raise _explain(error) from None
        return answer.task if answer.HasField("task") else answer.message

    async def get_task(self, id: str) -> pb.Task:
        try:
            return await self._connected().get_task(pb.GetTaskRequest(id=id))
        except Exception as error:
            raise _explain(error) from None

    async def cancel_task(self, id: str) -> None:
        try:
            await self._connected().cancel_task(pb.CancelTaskRequest(id=id))
        except Exception as error:
            raise _explain(error) from None

    def _connected(self) -> Client:
        if self._client is None:
            raise OutsideAway("its card was not read yet")
        return self._client


def del_foreign_interfaces(card: pb.AgentCard, url: str) -> None:
    """Leave the interfaces at the operator's origin. ValueError if there are none."""
    own = [each for each in card.supported_interfaces if _origin(each.url) == _origin(url)]
    if not own:
        raise ValueError("it names no interface at its own origin")
    kept = [pb.AgentInterface.FromString(each.SerializeToString()) for each in own]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)


def _origin(url: str) -> tuple[Any, ...]:
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, parts.port or default


def _explain(error: Exception) -> Exception:
    if isinstance(error, OutsideAway):
        return error
    if isinstance(error, a2a_errors.TaskNotFoundError):
        return OutsideTaskLost(str(error)[:500])
    is_passing = isinstance(error, A2AClientError | a2a_errors.InternalError)
    if isinstance(error, a2a_errors.A2AError) and not is_passing:
        return OutsideRefused(f"{type(error).__name__}: {error}"[:500])
    return OutsideAway(str(error)[:500] or type(error).__name__)


async def bound_answer(response: httpx.Response) -> None:
    """Read an answer within its bound, before anything else reads it whole."""
    body = b""
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > _MAX_ANSWER_BYTES:
            await response.aclose()
            raise httpx.ReadError("the answer is too large", request=response.request)
    if "content-encoding" in response.headers:
        raise httpx.DecodingError("the answer is compressed", request=response.request)
    response._content = body
