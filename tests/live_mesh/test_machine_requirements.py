"""Tests that need other machines are skipped where there are none, except in integration."""

import sys

import pytest

from tests.live_mesh import machines


@pytest.mark.parametrize(
    ("environment", "platform", "user", "outcome"),
    [
        ("true", "linux", 0, pytest.fail.Exception),
        ("true", "linux", 1000, pytest.skip.Exception),
        ("true", "darwin", 0, pytest.skip.Exception),
        ("", "linux", 0, pytest.skip.Exception),
    ],
)
def test_integration_as_root_fails_a_test_that_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
    environment: str,
    platform: str,
    user: int,
    outcome: type[BaseException],
) -> None:
    """Otherwise the README's blocks could be skipped for ever, and nobody would notice."""
    monkeypatch.setenv("CI", environment)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(machines, "missing_for_machines", lambda: "there is no `ip`")
    with pytest.raises(outcome, match="there is no `ip`"):
        machines.require_machines()


def test_nothing_is_skipped_where_machines_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "missing_for_machines", lambda: "")
    machines.require_machines()
