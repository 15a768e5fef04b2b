"""Waits double, up to a bound, and never all at the same moment."""

from gatepost.delivery import RetryPolicy
from gatepost.testing import ManualClock


def test_a_backoff_doubles_and_is_spread_by_a_fifth() -> None:
    policy, clock = RetryPolicy(), ManualClock()
    for attempt, wait in ((1, 2_000), (2, 4_000), (5, 32_000), (9, 300_000), (500, 300_000)):
        waits = {policy.backoff(attempt, clock) for _ in range(50)}
        assert len(waits) > 10
        assert wait * 0.8 - 1 <= min(waits) <= max(waits) <= wait * 1.2
