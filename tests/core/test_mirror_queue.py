"""Copies of sends for a legacy document: queued with the send, and only while it is switched on."""

import asyncio
from pathlib import Path

import pytest
from msgspec import UNSET, Raw

from gatepost.core import mirror_queue
from gatepost.gateway.api.operations import Operations
from gatepost.testing import ManualClock
from gatepost.wire.mirror_views import MirroredMessage, MirrorPage
from gatepost.wire.operations import NewSend, Register, Send, SendResults
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


async def _send(operations: Operations, *messages: NewSend) -> SendResults:
    reply: SendResults = await operations.perform(Send(messages=list(messages)))
    return reply


async def _page(operations: Operations) -> MirrorPage:
    core = operations.core
    return await core.read(lambda tx: core.mirror.read_page(tx, 100))


async def _switch(operations: Operations, on: bool) -> None:
    core = operations.core
    await core.commit(lambda tx: core.mirror.switch(tx, on))


def _message(to: str = "bob", payload: bytes = b'"hi"', key: str | None = None) -> NewSend:
    return NewSend("al", to, Raw(payload), idempotency_key=UNSET if key is None else key)


async def test_sends_are_copied_while_it_is_on(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        await operations.perform(Register(agent="bob"))
        await _send(operations, _message())
        await _switch(operations, on=True)
        sent = (await _send(operations, _message(payload=b'{"n":1}'))).results[0]
        await _send(operations, _message("nobody"))
        page = await _page(operations)
        (copy,) = page.messages
        assert (copy.event_id, copy.from_agent, copy.to_agent) == (sent.event_id, "al", "bob")
        assert (bytes(copy.payload), page.waiting) == (b'{"n":1}', 1)  # type: ignore[arg-type]
        await operations.core.commit(
            lambda tx: operations.core.mirror.remove_copies(tx, copy.number)
        )
        assert (await _page(operations)).messages == []
        await _send(operations, _message())
        await _switch(operations, on=False)
        assert (await _page(operations)) == MirrorPage(False, 0, [])


async def test_the_switch_outlives_a_restart(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        await operations.perform(Register(agent="bob"))
        await _switch(operations, on=True)
    async with opened(state, clock) as operations:
        await _send(operations, _message())
        assert (await _page(operations)).waiting == 1


async def test_messages_of_the_legacy_document_are_not_sent_back(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        await operations.perform(Register(agent="bob"))
        await _switch(operations, on=True)
        await _send(operations, _message(key="legacy:messages:1"), _message(key="other"))
        await _send(operations, _message(key="other"))
        assert (await _page(operations)).waiting == 1


async def test_a_copy_goes_to_each_receiver(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        for name in ("bob", "cat"):
            await operations.perform(Register(agent=name))
        await _switch(operations, on=True)
        await _send(operations, NewSend("al", "", Raw(b"1"), to_agents=["bob", "cat"]))
        found: list[MirroredMessage] = (await _page(operations)).messages
        assert [copy.to_agent for copy in found] == ["bob", "cat"]


async def test_sends_are_refused_when_nobody_takes_the_copies(
    state: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_queue, "MAX_WAITING", 2)
    async with opened(state, clock) as operations:
        await operations.perform(Register(agent="bob"))
        await _switch(operations, on=True)
        for _ in range(2):
            await _send(operations, _message())
        (refused,) = (await _send(operations, _message())).results
        assert refused.error is not None
        assert refused.error.code == "unavailable"
        assert (await _page(operations)).waiting == 2


async def test_a_reader_is_woken_by_a_send(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        await operations.perform(Register(agent="bob"))
        await _switch(operations, on=True)
        waiting = operations.core.mirror.next_copy()
        await _send(operations, _message())
        async with asyncio.timeout(10):
            await waiting
