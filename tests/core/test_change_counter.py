"""Counting changes, and waiting for them."""

import asyncio

import pytest

from gatepost.core.change_counter import ChangeCounter

pytestmark = pytest.mark.anyio


async def test_a_change_wakes_those_who_wait_for_it() -> None:
    changes = ChangeCounter()
    waiter = asyncio.create_task(changes.wait_for_change(0, 30))
    await asyncio.sleep(0)
    assert not waiter.done()
    changes.note_change()
    await asyncio.wait_for(waiter, 5)
    assert changes.count == 1


async def test_a_wait_for_a_later_change_goes_on_after_an_earlier_one() -> None:
    changes = ChangeCounter()
    waiter = asyncio.create_task(changes.wait_until_reached(2, 30))
    await asyncio.sleep(0)
    changes.note_change()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiter.done()
    changes.advance_to(3)
    await asyncio.wait_for(waiter, 5)


async def test_a_wait_ends_when_its_time_is_up() -> None:
    changes = ChangeCounter()
    await changes.wait_for_change(0, 0.01)
    await changes.wait_until_reached(1, 0.01)
    assert changes.count == 0
