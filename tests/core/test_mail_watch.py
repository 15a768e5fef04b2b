"""Watchers of mail are woken by new mail of their mailbox, and take none."""

import asyncio
from pathlib import Path

import pytest
from msgspec import Raw

from gatepost.wire.operations import Enqueue, NewMessage, Peek
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


def _mail(msg_id: str, to: str) -> Enqueue:

    return Enqueue(messages=[NewMessage("sender", to, Raw(b"1"), msg_id)])


async def test_a_watcher_is_woken_by_mail_of_its_mailbox_only(state: Path) -> None:
    async with opened(state) as operations:
        core = operations.core
        async with core.watching_mail("bob") as event:
            event.clear()
            await operations.perform(_mail("m1", "alice"))
            assert not event.is_set()
            await operations.perform(_mail("m2", "bob"))
            async with asyncio.timeout(10):
                await event.wait()
        found = await operations.perform(Peek(mailbox="bob"))
        assert [each.state for each in found.messages] == ["pending"]


async def test_a_watcher_that_left_is_not_woken(state: Path) -> None:
    async with opened(state) as operations:
        core = operations.core
        async with core.watching_mail("bob") as event:
            pass
        await core.commit(lambda tx: None)
        event.clear()
        await operations.perform(_mail("m1", "bob"))
        assert not event.is_set()
