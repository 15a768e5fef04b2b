"""HTTP client for the outcome of messages at the gateway, sent or not sent yet."""

import asyncio
from typing import Self

from gatepost.client import Sent, Target
from gatepost.connect.http_calls import AsyncHttpCalls
from gatepost.errors import UnknownMessage
from gatepost.wire.operations import SendCheck, SendResults

_MAX_REQUESTS = 16


class OutcomeClient:
    """`async with OutcomeClient(target) as client: await client.message_outcome(event_id)`."""

    def __init__(self, target: Target, timeout: float = 30.0) -> None:
        self._calls = AsyncHttpCalls(lambda: target)
        self._timeout = timeout
        self._request_slots = asyncio.Semaphore(_MAX_REQUESTS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.close()

    async def message_outcome(self, event_id: str) -> str | None:
        """The outcome of the message's turn, `waiting` before its end, None if it is unknown.

        The gateway forgets a delivery before its events, so the second query asks for the events.
        """
        async with self._request_slots:
            try:
                sent = await self._calls.get(f"/v1/messages/{event_id}", Sent, self._timeout)
            except UnknownMessage:
                return await self._outcome_from_events(event_id)
        return sent.outcome or "processed" if sent.has_reached("processed") else "waiting"

    async def check_sends(self, check: SendCheck) -> list[Sent]:
        """The answers that the gateway would give if these messages were sent."""
        async with self._request_slots:
            answer = await self._calls.post("/v1/messages/check", check, SendResults, self._timeout)
            return answer.results

    async def _outcome_from_events(self, event_id: str) -> str | None:
        try:
            events = await self._calls.get(f"/v1/messages/{event_id}/trace", list, self._timeout)
            return "processed" if events else None
        except UnknownMessage:
            return None
