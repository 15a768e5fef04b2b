"""Open files: connections never get the last ones."""

import resource
from pathlib import Path

import pytest

from gatepost.config import LimitsSettings
from gatepost.listening import open_files
from gatepost.listening.open_files import plan_open_files
from tests.gateway.tools import settings


@pytest.fixture
def hard_limit(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The system's limit, which a test may set; the limit of this process stays."""
    hard = [1_000_000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, hard[0]))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    return hard


def test_where_files_are_plenty_the_settings_count(state: Path, hard_limit: list[int]) -> None:
    planned = plan_open_files(settings(state))
    assert planned == (LimitsSettings(), 16)


@pytest.mark.parametrize("files", [256, 1024, 2048, 4096])
def test_where_files_are_few_connections_leave_some(
    state: Path, hard_limit: list[int], files: int
) -> None:
    hard_limit[0] = files
    given = settings(state)
    limits, per_session = plan_open_files(given)
    assert limits.max_connections >= 16
    assert limits.max_unauthenticated >= 16
    assert per_session >= 1
    taken = limits.max_connections + limits.max_unauthenticated
    taken += per_session * given.hub.max_sessions
    assert files - taken >= min(open_files._OTHER_FILES, files // 2)


def test_very_many_sessions_have_a_connection_each(state: Path, hard_limit: list[int]) -> None:
    assert plan_open_files(settings(state, hub__max_sessions=10_000)).per_session == 1
