"""HTTP client for the outcome of messages at the gateway."""

import asyncio
from typing import Self, TypeVar

import httpx
import msgspec

from gatepost.client import Sent, Target
from gatepost.errors import DeadlineExceeded, Unavailable, UnknownMessage, error_from_code
from gatepost.wire import Failure

T = TypeVar("T")

_MAX_REQUESTS = 16


class OutcomeClient:
    """`async with OutcomeClient(target) as client: await client.message_outcome(event_id)`."""

    def __init__(self, target: Target, timeout: float = 30.0) -> None:
        self._http = httpx.AsyncClient(
            base_url=target.url,
            headers={"authorization": f"Bearer {target.token}"},
            timeout=timeout,
            trust_env=False,
        )
        self._request_slots = asyncio.Semaphore(_MAX_REQUESTS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def message_outcome(self, event_id: str) -> str | None:
        """The outcome of the message's turn, `waiting` before its end, None if it is unknown.

        The gateway forgets a delivery before its events, so the second query asks for the events.
        """
        async with self._request_slots:
            try:
                sent = await self._get_json(f"/v1/messages/{event_id}", Sent)
            except UnknownMessage:
                return await self._outcome_from_events(event_id)
        return "waiting" if sent.processed_at is None else sent.outcome or "processed"

    async def _outcome_from_events(self, event_id: str) -> str | None:
        try:
            return (
                "processed"
                if await self._get_json(f"/v1/messages/{event_id}/trace", list)
                else None
            )
        except UnknownMessage:
            return None

    async def _get_json(self, path: str, kind: type[T]) -> T:
        try:
            response = await self._http.get(path)
        except httpx.TimeoutException:
            raise DeadlineExceeded("the gateway did not answer in time") from None
        except httpx.TransportError as error:
            why = type(error).__name__
            raise Unavailable(
                f"the gateway at {self._http.base_url} cannot be reached: {why}"
            ) from None
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=kind)
            failure = msgspec.json.decode(response.content, type=Failure)
        except msgspec.MsgspecError:
            raise Unavailable(f"the gateway answers with status {response.status_code}") from None
        raise error_from_code(failure.code, failure.message)
