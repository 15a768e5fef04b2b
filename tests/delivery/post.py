"""Two agents of one gateway, and their mail."""

import asyncio
import json
from typing import Any

from msgspec import Raw

from gatepost.events import decode_event
from gatepost.gateway.api.operations import Operations
from gatepost.wire.operations import Ack, Await, Dequeue, LeasedMessage, Nack, NewSend, Send, Sent
from tests.waiting import async_wait_until


class Post:
    """Two agents, `al` and `bob`, and what they do with each other's mail."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.core = operations.core

    async def send(self, payload: object = "hi", **fields: Any) -> Sent:
        given = {"from_agent": "al", "to_agent": "bob"} | fields
        if "payload_ref" not in fields:
            given["payload"] = Raw(json.dumps(payload).encode())
        reply = await self.operations.perform(Send(messages=[NewSend(**given)]))
        (sent,) = reply.results
        if sent.error is not None:
            raise sent.error.to_error()
        assert isinstance(sent, Sent)
        return sent

    async def take(self, agent: str = "bob", limit: int = 1) -> list[LeasedMessage]:
        reply = await self.operations.perform(Dequeue(mailbox=agent, limit=limit))
        messages: list[LeasedMessage] = reply.messages
        return messages

    async def ack(self, message: LeasedMessage, reply: object = None) -> None:
        replies = {} if reply is None else {message.receipt: Raw(json.dumps(reply).encode())}
        op = Ack(mailbox=message.to, receipts=[message.receipt], replies=replies)
        assert (await self.operations.perform(op)).settled == 1

    async def nack(self, message: LeasedMessage) -> None:
        op = Nack(mailbox=message.to, receipts=[message.receipt], reason="broken")
        assert (await self.operations.perform(op)).settled == 1

    async def wait_for_callers(self, event_id: str, count: int) -> None:
        """Wait until this many callers wait for the end of a message."""
        await asyncio.sleep(0)
        waiting = self.core.delivery.sent._waiting
        await async_wait_until(lambda: len(waiting.get(event_id, [])) >= count)

    async def status(self, event_id: str, wait: float = 0.0) -> Sent:
        reply = await self.operations.perform(Await(event_id=event_id, wait_secs=wait))
        assert isinstance(reply.result, Sent)
        return reply.result

    async def outbox(self) -> list[Any]:
        rows = await self.core.read(lambda tx: tx.fetch_all("SELECT body FROM outbox ORDER BY seq"))
        return [decode_event(row[0]) for row in rows]
