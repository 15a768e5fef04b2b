"""Waits of tests: for a condition and with a deadline, never for a guessed time.

A guessed time is too short on a busy machine and wasted on an idle one.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_FIRST_PAUSE_SECS = 0.002
_LONGEST_PAUSE_SECS = 0.05
_PAUSE_GROWTH = 1.3

Value = TypeVar("Value")


def wait_until(
    condition: Callable[[], Value], timeout: float = 60, *, failure: Callable[[], str] | None = None
) -> Value:
    """Return the first true value of the condition; `failure` says more when the time is over."""
    deadline, pauses = time.monotonic() + timeout, _growing_pauses()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_describe_timeout(timeout, failure))
        time.sleep(next(pauses))
    return value


async def async_wait_until(condition: Callable[[], object], timeout: float = 60) -> Any:
    """Wait without blocking the event loop; the condition may be a coroutine function.

    A condition that blocks belongs into a thread: `wait_until_in_thread`.
    """
    deadline, pauses = time.monotonic() + timeout, _growing_pauses()
    while not (value := await _evaluate(condition)):
        if time.monotonic() > deadline:
            raise AssertionError(_describe_timeout(timeout, None))
        await asyncio.sleep(next(pauses))
    return value


async def wait_until_in_thread(condition: Callable[[], Value], timeout: float = 60) -> Value:
    """Wait for a condition that blocks, for example one that asks a gateway."""
    return await asyncio.to_thread(wait_until, condition, timeout)


def assert_stays_true(condition: Callable[[], object], secs: float) -> None:
    """Prove that nothing happens: the condition holds now and for this long.

    Only here the length of a wait is a choice: an event that is later than this goes unseen.
    """
    deadline, pauses = time.monotonic() + secs, _growing_pauses()
    while time.monotonic() < deadline:
        assert condition(), "it happened, though it must not"
        time.sleep(next(pauses))
    assert condition(), "it happened, though it must not"


async def async_assert_stays_true(condition: Callable[[], object], secs: float) -> None:
    """The same as `assert_stays_true`, without blocking the event loop."""
    deadline, pauses = time.monotonic() + secs, _growing_pauses()
    while time.monotonic() < deadline:
        assert await _evaluate(condition), "it happened, though it must not"
        await asyncio.sleep(next(pauses))
    assert await _evaluate(condition), "it happened, though it must not"


def _growing_pauses() -> Iterator[float]:
    """A condition that takes long to come true is looked at less often: looking costs CPU."""
    pause = _FIRST_PAUSE_SECS
    while True:
        yield pause
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_SECS)


async def _evaluate(condition: Callable[[], object]) -> Any:
    value = condition()
    return await value if inspect.isawaitable(value) else value


def _describe_timeout(timeout: float, failure: Callable[[], str] | None) -> str:
    said = "" if failure is None else f": {failure()}"
    return f"it did not come true within {timeout:g} seconds{said}"
