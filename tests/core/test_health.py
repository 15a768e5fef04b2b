"""A gateway is degraded while it has a problem, and a moment longer."""

import threading

import pytest

from gatepost.core.health import GatewayHealth, JournalWatch
from gatepost.errors import StorageFailed
from gatepost.journal import Writer, open_memory_journal
from gatepost.testing import ManualClock
from tests.waiting import wait_until


def test_a_problem_degrades_a_gateway_until_it_was_gone_for_a_moment(clock: ManualClock) -> None:
    problems = ["the disk is full"]
    health = GatewayHealth(clock)
    assert health.current_status() == "online"
    health.add_check(lambda: problems)
    assert health.current_status() == "degraded"
    assert health.problems() == ["the disk is full"]
    problems.clear()
    clock.advance(29_000)
    assert health.current_status() == "degraded"
    clock.advance(1_000)
    assert health.current_status() == "online"


def test_a_gateway_that_recovers_says_so(clock: ManualClock) -> None:
    problems = ["the disk is full"]
    health = GatewayHealth(clock)
    health.add_check(lambda: problems)
    health.current_status()
    assert health.find_reason() == "the disk is full"
    problems.clear()
    assert (health.current_status(), health.find_reason()) == ("degraded", "it recovers")
    clock.advance(30_000)
    assert (health.current_status(), health.find_reason()) == ("online", None)


def test_a_clock_that_goes_back_ends_the_moment(clock: ManualClock) -> None:
    problems = ["the disk is full"]
    health = GatewayHealth(clock)
    health.add_check(lambda: problems)
    assert health.current_status() == "degraded"
    problems.clear()
    clock.advance(-(9**9))
    assert health.current_status() == "online"


def test_a_writer_that_was_slow_is_ready_again() -> None:
    writer = Writer(open_memory_journal(), ManualClock(), lambda outcomes: None)
    watch, going = JournalWatch(writer, 0.01), threading.Event()
    writer.start()
    watch.require_progress()
    writer.submit(lambda tx: going.wait(30), lambda value, error: None)
    wait_until(watch.find_problems)
    with pytest.raises(StorageFailed, match="busy with one commit"):
        watch.require_progress()
    going.set()
    wait_until(lambda: not watch.find_problems())
    watch.require_progress()
    writer.stop()
    assert watch.find_problems() == []
