"""Backlogs that grow, on a clock that only the test moves."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.config import AlertsSettings as Settings
from gatepost.core.gateway_core import Core
from gatepost.gateway.monitoring.backlog_alerts import BacklogAlerts, BacklogKey, GrowthDetector
from gatepost.journal import Tx
from gatepost.mailbox import NewMail
from gatepost.testing import GatewayProcess, ManualClock
from tests.gateway.tools import client, mail, opened
from tests.waiting import wait_until

MINUTE = 60_000
BOB: BacklogKey = ("node", "bob")


def fed(growth: GrowthDetector, levels: list[int], start: int = 0) -> list[tuple[int, str]]:
    """(minute, what) of every change, with a sample a minute."""
    return [
        (minute, change.event)
        for minute, level in enumerate(levels, start)
        for change in growth.add_sample(minute * MINUTE, {BOB: level} if level else {})
    ]


def test_growth_for_ten_minutes_is_an_alarm_once_an_episode() -> None:
    growth = GrowthDetector(10 * MINUTE, 10)
    assert fed(growth, [n * 5 for n in range(30)]) == [(10, "raised")]
    assert growth.alarms == [BOB]


def test_nine_minutes_are_not_enough() -> None:
    assert fed(GrowthDetector(10 * MINUTE, 10), [100 * n for n in range(10)] + [0]) == []


def test_a_backlog_that_stands_is_none_that_grows() -> None:
    assert fed(GrowthDetector(10 * MINUTE, 10), [500] * 60) == []
    assert fed(GrowthDetector(10 * MINUTE, 10), [500 + n % 9 for n in range(60)]) == []


def test_one_dip_below_where_it_was_starts_the_clock_again() -> None:
    levels = [100 + 10 * n for n in range(8)] + [99] + [100 + 10 * n for n in range(30)]
    assert fed(GrowthDetector(10 * MINUTE, 10), levels) == [(18, "raised")]


def test_an_alarm_ends_when_it_shrinks_and_may_come_again() -> None:
    growth = GrowthDetector(10 * MINUTE, 10)
    grows = [10 * n for n in range(15)]
    assert fed(growth, [*grows, 135, 131]) == [(10, "raised")], "a little less is not shrinking"
    assert fed(growth, [120], 17) == [(17, "cleared")]
    assert growth.alarms == []
    again = [120 + 10 * n for n in range(1, 20)]
    assert fed(growth, again, 18) == [(27, "raised")], "ten minutes from where it calmed down"


def test_an_alarm_stays_while_the_backlog_does() -> None:
    growth = GrowthDetector(10 * MINUTE, 10)
    assert fed(growth, [n * 5 for n in range(12)] + [55] * 100) == [(10, "raised")]
    assert fed(growth, [0], 200) == [(200, "cleared")]


def test_what_is_found_at_the_start_is_no_growth_but_what_comes_later_is() -> None:
    growth = GrowthDetector(10 * MINUTE, 10)
    assert fed(growth, [0] * 5 + [50] * 30) == [(14, "raised")], "it came from nothing, and stays"
    assert fed(GrowthDetector(10 * MINUTE, 10), [50] * 30) == []


@given(st.lists(st.integers(0, 40), max_size=60))
def test_raised_and_cleared_alternate_and_every_alarm_is_growth(levels: list[int]) -> None:
    changes = fed(GrowthDetector(10 * MINUTE, 10), levels)
    assert [what for _, what in changes] == ["raised", "cleared"] * (len(changes) // 2) + [
        "raised"
    ] * (len(changes) % 2)
    for minute, what in changes:
        if what == "raised":
            window = levels[minute - 10 : minute + 1]
            assert len(window) == 11
            assert min(window) == window[0] <= window[-1] - 10


# A backlog that is empty for a while has another window.
@given(st.lists(st.integers(0, 3), min_size=11, max_size=40), st.integers(1, 50))
def test_whatever_grows_steadily_is_noticed(steps: list[int], start: int) -> None:
    levels = [start := start + step for step in steps]
    grown = any(levels[i] - levels[i - 10] >= 10 for i in range(10, len(levels)))
    assert bool(fed(GrowthDetector(10 * MINUTE, 10), levels)) == grown


async def _put(core: Core, count: int, first: int) -> None:
    def put(tx: Tx) -> None:
        mails = [NewMail(f"m{first + n}", b"1") for n in range(count)]
        core.dispatcher.enqueue(tx, "bob", "al", mails)

    await core.commit(put)


def test_a_mailbox_nobody_empties_is_an_incident(
    state: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with opened(state, clock) as operations:
            core = operations.core
            alerts = BacklogAlerts(core, Settings())
            assert alerts.every_secs == 15
            for minute in range(25):
                await _put(core, 3, minute * 3)
                await alerts.check_backlogs()
                clock.advance(MINUTE)
            query = "SELECT class, subject, detail FROM incident"
            ((kind, subject, detail),) = await core.read(lambda tx: tx.fetch_all(query))
            assert (kind, subject.split("@")[0]) == ("backlog_growth", "mailbox/bob")
            assert "grew from 3 to 33 in 10 min" in detail
            assert list(alerts.growing_backlogs) == [("mailbox", "bob")]
            assert core.delivery.incidents.counts["backlog_growth"] == 1
            await operations.mailboxes.purge("bob", "test")
            await alerts.check_backlogs()
            assert list(alerts.growing_backlogs) == []

    asyncio.run(scenario())
    assert "the backlog in the mailbox bob grew from 3 to 33" in caplog.text


def test_a_running_gateway_says_so_everywhere(start: Callable[..., GatewayProcess]) -> None:
    gateway = start(alerts__backlog_secs=1, alerts__backlog_least=5)
    with client(gateway) as http:
        sent = 0

        def grows() -> object:
            nonlocal sent
            sent += 5
            news = [mail(f"m{sent + n}", "slow") for n in range(5)]
            http.post("/v1/enqueue/batch", json={"messages": news})
            return http.get("/v1/incidents?class=backlog_growth").json()["incidents"]

        wait_until(grows)
        assert http.get("/v1/status").json()["incidents"] == {"backlog_growth": 1}
        alarm = 'gatepost_backlog_growing{name="slow",what="mailbox"} 1.0'
        assert alarm in http.get("/metrics").text
        http.delete("/v1/mailboxes/slow")
        wait_until(lambda: alarm not in http.get("/metrics").text)
    assert "the backlog in the mailbox slow grew from" in gateway.log.read_text()
    assert "shrinks again" in gateway.log.read_text()
