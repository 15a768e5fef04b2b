"""Operations on dead letters: find, discard and replay them."""

import asyncio
from functools import partial

from gatepost.core.batch_commit import commit_until_none
from gatepost.core.gateway_core import Core
from gatepost.gateway.api.mailbox_operations import query_mailbox
from gatepost.journal import Tx
from gatepost.mailbox import dead_letters
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.mailbox.enqueue import find_mailbox
from gatepost.wire.operations import (
    AnyAnswer,
    Count,
    DeadLetter,
    DeadLetters,
    EnqueueAck,
    PeekDeadLetter,
    PurgeDeadLetter,
)


class DeadLetterOperations:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._batch_size = core.settings.journal.sweep_batch

    async def perform_peek(self, op: PeekDeadLetter) -> AnyAnswer:
        found = await self.find(op.mailbox, DeadLetterFilter(), op.limit, op.after)
        return DeadLetters(re=op.id, messages=found)

    async def perform_purge(self, op: PurgeDeadLetter) -> AnyAnswer:
        count = await self.discard(op.mailbox, DeadLetterFilter(), "operator")
        return Count(re=op.id, count=count)

    async def find(
        self, mailbox: str, wanted: DeadLetterFilter, limit: int, after: str = ""
    ) -> list[DeadLetter]:
        query = partial(dead_letters.find_dead_letters, wanted=wanted, limit=limit, after=after)
        return await query_mailbox(self._core, mailbox, query)

    async def discard(self, mailbox: str, wanted: DeadLetterFilter, actor: str) -> int:
        """Delete all matching dead letters, one batch per transaction; return how many."""
        size = self._batch_size

        def discard_batch(tx: Tx) -> int:
            id = find_mailbox(tx, mailbox)
            return dead_letters.discard_dead_letters(tx, id, wanted, size, actor) if id else 0

        return await commit_until_none(self._core, discard_batch)

    async def replay(
        self, mailbox: str, wanted: DeadLetterFilter, limit: int, rate: float | None, actor: str
    ) -> list[EnqueueAck]:
        """Replay up to `limit` matching dead letters, at most `rate` per second if given."""
        acks: list[EnqueueAck] = []
        wanted.replayed = False if wanted.replayed is None else wanted.replayed
        while len(acks) < limit:
            size = min(
                limit - len(acks), self._batch_size if rate is None else max(1, int(rate / 10))
            )
            replay = partial(self._core.coordinator.replay, mailbox=mailbox, wanted=wanted)
            more = await self._core.commit(partial(replay, limit=size, actor=actor))
            acks += more
            if len(more) < size or any(ack.error for ack in more):
                break
            await asyncio.sleep(0 if rate is None else size / rate)
        return acks
