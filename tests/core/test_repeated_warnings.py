"""Warnings that come many times a second fill one line a minute."""

import pytest

from gatepost.core.repeated_warnings import RepeatedWarnings
from gatepost.testing import ManualClock


def test_a_warning_is_logged_once_a_minute_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    warnings = RepeatedWarnings(clock)
    for _ in range(100):
        warnings.warn("the disk is full")
        clock.advance(100)
    warnings.warn("something else")
    assert [record.getMessage() for record in caplog.records] == [
        "the disk is full",
        "something else",
    ]
    clock.advance(60_000)
    warnings.warn("the disk is full")
    assert caplog.messages[-1] == "the disk is full (and 99 times since the last such line)"


def test_the_memory_of_warnings_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings(ManualClock())
    for number in range(1000):
        warnings.warn(f"warning {number}")
    assert len(warnings._logged) == 64
    assert len(caplog.records) == 1000
