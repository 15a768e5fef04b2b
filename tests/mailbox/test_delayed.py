"""Delayed mail: it waits for its time of day, and wakes whoever waits for it."""

import pytest

from gatepost.testing import ManualClock
from tests.mailbox.harness import START, MailboxHarness, ids


@pytest.fixture
def harness() -> MailboxHarness:
    return MailboxHarness()


@pytest.mark.parametrize("ordered", [True, False])
def test_delayed_mail_is_not_taken_before_its_time(harness: MailboxHarness, ordered: bool) -> None:
    harness.send("a", ordered=ordered, not_before=START + 60_000)
    harness.tick(59_999)
    assert harness.take() == []
    harness.tick(1)
    assert harness.take() == ["a"]


@pytest.mark.parametrize("ordered", [True, False])
def test_delayed_mail_wakes_a_consumer_without_polling(
    harness: MailboxHarness, ordered: bool
) -> None:
    _, got = harness.waiter()
    harness.send("a", ordered=ordered, not_before=START + 60_000)
    assert (got, harness.writer.idle_timeout()) == ([], 60.0)
    harness.tick(60_000)
    assert ids(got) == ["a"]


def test_ordered_mail_waits_behind_delayed_mail_of_its_pair(harness: MailboxHarness) -> None:
    harness.send("a")
    harness.send("b", not_before=START + 60_000)
    harness.send("c")
    harness.send("other", by="zoe")
    taken = harness.dequeue(5)
    assert ids(taken) == ["a", "other"]
    harness.ack(taken[0])
    assert harness.take(5) == []
    harness.tick(60_000)
    assert harness.take(5) == ["b", "c"]


def test_delayed_unordered_mail_holds_nobody_up(harness: MailboxHarness) -> None:
    harness.send("later", ordered=False, not_before=START + 60_000)
    harness.send("now", ordered=False)
    harness.send("first")
    assert harness.take(5) == ["now", "first"]


def test_a_time_that_is_past_delays_nothing(harness: MailboxHarness) -> None:
    harness.send("a", not_before=START - 1)
    assert harness.take() == ["a"]


def test_the_default_ttl_begins_when_the_mail_is_due(harness: MailboxHarness) -> None:
    week = 7 * 86_400_000
    harness.send("a", not_before=START + week)
    harness.tick(week + 86_399_999)
    assert harness.states() == {"a": "pending"}
    harness.tick(1)
    assert harness.states() == {"a": "expired"}


def test_delayed_mail_expires_by_its_own_ttl(harness: MailboxHarness) -> None:
    harness.send("a", not_before=START + 60_000, ttl=90_000)
    harness.tick(90_000)
    assert harness.states() == {"a": "expired"}


def test_delayed_mail_survives_a_restart(harness: MailboxHarness) -> None:
    harness.send("a", not_before=START + 60_000)
    harness.send("b", ordered=False, not_before=START + 60_000)
    later = MailboxHarness(clock=ManualClock(START + 59_999), connection=harness.connection)
    later.tick()
    assert later.take(5) == []
    later.tick(1)
    assert later.take(5) == ["a", "b"]


def test_delayed_mail_is_due_at_its_time_of_day_though_the_clock_was_set_back(
    harness: MailboxHarness,
) -> None:
    harness.send("a", not_before=START + 60_000)
    harness.send("b", ordered=False, not_before=START + 60_000)
    harness.clock.set(START - 3_600_000)
    harness.tick(600_000)
    assert harness.take(5) == []
    harness.clock.set(START + 60_000)
    harness.tick()
    assert harness.take(5) == ["a", "b"]


def test_mail_that_was_due_stays_due_though_the_clock_was_set_back(harness: MailboxHarness) -> None:
    harness.send("a", not_before=START + 60_000)
    harness.send("b", ordered=False, not_before=START + 60_000)
    harness.tick(60_000)
    harness.clock.set(START)
    harness.tick()
    assert harness.take(5) == ["a", "b"]


def test_peek_shows_when_delayed_mail_is_due(harness: MailboxHarness) -> None:
    harness.send("a", not_before=START + 60_000)
    harness.send("b", ordered=False, not_before=START + 30_000)
    harness.send("c", by="zoe")
    assert [(row.msg_id, row.not_before) for row in harness.peek()] == [
        ("c", None), ("b", START // 1000 + 30), ("a", START // 1000 + 60)
    ]  # fmt: skip


def test_delayed_mail_can_be_purged(harness: MailboxHarness) -> None:
    harness.send("a", not_before=START + 60_000)
    harness.send("b", ordered=False, not_before=START + 60_000)
    assert harness.purge() == 2
    harness.tick(60_000)
    assert harness.take(5) == []
