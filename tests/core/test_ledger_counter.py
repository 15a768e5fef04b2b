"""The ledger of a gateway is counted once for all who ask at about the same time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gatepost.core.ledger_counter import LedgerCounter
from gatepost.errors import Unavailable
from gatepost.ledger import Ledger
from gatepost.testing import ManualClock


class Journal:
    """Answers when it is told to, and counts how often it was read."""

    def __init__(self) -> None:
        self.reads = 0
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, query: Callable[[Any], Ledger]) -> Ledger:
        self.reads += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return Ledger(sent=self.reads, processed=self.reads)


@pytest.mark.anyio
async def test_many_that_ask_at_once_cost_one_count() -> None:
    journal = Journal()
    counter = LedgerCounter(journal.read, ManualClock(5))
    asking = [asyncio.create_task(counter.count()) for _ in range(50)]
    await asyncio.sleep(0)
    journal.may_answer.set()
    found = await asyncio.gather(*asking)
    assert journal.reads == 1
    assert {(each.ledger.sent, each.at) for each in found} == {(1, 5)}
    assert await counter.count() is found[0], "it is shown again for a moment"


@pytest.mark.anyio
async def test_one_that_stops_waiting_does_not_stop_the_count_of_others() -> None:
    journal = Journal()
    counter = LedgerCounter(journal.read, ManualClock(5))
    leaving, staying = (asyncio.create_task(counter.count()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    journal.may_answer.set()
    assert (await staying).ledger.sent == 1


@pytest.mark.anyio
async def test_a_count_that_fails_is_no_ledger_and_tried_again() -> None:
    journal = Journal()
    journal.may_answer.set()
    journal.error = Unavailable("the journal is behind")
    counter = LedgerCounter(journal.read, ManualClock(5))
    told: asyncio.Future[Ledger | None] = asyncio.get_running_loop().create_future()
    counter.read_ledger(None, told.set_result)
    assert await told is None
    journal.error = None
    assert (await counter.count()).ledger.sent == 2
