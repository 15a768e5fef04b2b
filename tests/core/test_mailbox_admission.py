"""Mailboxes exist for agents that exist; the operator may make a limited number more."""

from functools import partial
from pathlib import Path

import pytest
from msgspec import Raw

from gatepost.errors import TooManyMailboxes, UnknownAgent
from gatepost.gateway.api.operations import Operations
from gatepost.journal import Tx
from gatepost.wire.operations import Dequeue, Enqueue, NewMessage, Register
from tests.gateway.tools import dump, opened

pytestmark = pytest.mark.anyio


def _enqueue(n: int, box: str) -> Enqueue:
    new = NewMessage(msg_id=f"m:{n}", from_="sender", to=box, payload=Raw(b'"x"'))
    return Enqueue(messages=[new])


def _mailboxes(operations: Operations) -> list[str]:
    return sorted(row[1] for row in dump(operations.core)["mailbox"])


def _require_known(operations: Operations, name: str, tx: Tx) -> None:
    operations.core.admission.require_known(tx, name)


async def test_the_operator_makes_only_so_many_mailboxes(state: Path) -> None:
    async with opened(state, limits__max_mailboxes=2) as operations:
        for n, box in enumerate(("a", "b", "a", "b")):
            await operations.perform(_enqueue(n, box))
        with pytest.raises(TooManyMailboxes):
            await operations.perform(_enqueue(5, "c"))
        with pytest.raises(TooManyMailboxes):
            await operations.perform(Dequeue(mailbox="c", wait_secs=0.01))
        assert _mailboxes(operations) == ["a", "b"]


async def test_a_registered_agent_always_has_one(state: Path) -> None:
    async with opened(state, limits__max_mailboxes=1) as operations:
        await operations.perform(_enqueue(1, "a"))
        await operations.perform(Register(agent="late"))
        await operations.perform(_enqueue(2, "late"))
        assert _mailboxes(operations) == ["a", "late"]


async def test_what_nobody_knows_is_unknown(state: Path) -> None:
    async with opened(state) as operations:
        await operations.perform(Register(agent="known"))
        await operations.perform(_enqueue(1, "box"))
        for name in ("known", "box", "box"):
            await operations.core.commit(partial(_require_known, operations, name))
        with pytest.raises(UnknownAgent):
            await operations.core.commit(partial(_require_known, operations, "nobody"))
