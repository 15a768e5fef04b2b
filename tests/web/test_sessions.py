"""One-time links and sessions of the dashboard."""

import pytest

from gatepost.errors import Unauthorized, Unavailable
from gatepost.testing import ManualClock
from gatepost.web.sessions import LINK_MS, SESSION_MS, DashboardSessions


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def sessions(clock: ManualClock) -> DashboardSessions:
    return DashboardSessions(clock)


def test_a_link_opens_one_session(sessions: DashboardSessions) -> None:
    link = sessions.create_link(read_only=True)
    session, secret = sessions.open_session(link)
    assert session.read_only
    assert sessions.find_session(secret) is session
    with pytest.raises(Unauthorized):
        sessions.open_session(link)


def test_a_link_is_good_for_a_minute(sessions: DashboardSessions, clock: ManualClock) -> None:
    link = sessions.create_link(read_only=False)
    clock.advance(LINK_MS)
    with pytest.raises(Unauthorized):
        sessions.open_session(link)


def test_a_clock_that_is_set_back_makes_no_link_last_longer(
    sessions: DashboardSessions, clock: ManualClock
) -> None:
    link = sessions.create_link(read_only=False)
    clock.advance(-1000)
    with pytest.raises(Unauthorized):
        sessions.open_session(link)


def test_a_session_ends_by_itself_and_when_nobody_uses_it(
    sessions: DashboardSessions, clock: ManualClock
) -> None:
    _, idle = sessions.open_session(sessions.create_link(read_only=False))
    _, used = sessions.open_session(sessions.create_link(read_only=False))
    step = SESSION_MS // 12
    for _ in range(11):
        clock.advance(step)
        assert sessions.find_session(used) is not None
    assert sessions.find_session(idle) is None
    clock.advance(step)
    assert sessions.find_session(used) is None


def test_an_ended_session_is_gone_at_once(sessions: DashboardSessions) -> None:
    session, secret = sessions.open_session(sessions.create_link(read_only=False))
    sessions.end_session(session)
    assert sessions.find_session(secret) is None
    assert not sessions.is_live(session)


def test_links_and_sessions_have_bounds(sessions: DashboardSessions) -> None:
    first = sessions.create_link(read_only=False)
    for _ in range(16):
        sessions.create_link(read_only=False)
    with pytest.raises(Unauthorized):
        sessions.open_session(first)
    for _ in range(64):
        sessions.open_session(sessions.create_link(read_only=False))
    with pytest.raises(Unavailable):
        sessions.open_session(sessions.create_link(read_only=False))
