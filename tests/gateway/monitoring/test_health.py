"""A gateway is degraded while it has a problem, and a moment longer."""

from gatepost.gateway.monitoring.health import GatewayHealth
from gatepost.testing import ManualClock


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


def test_a_clock_that_goes_back_ends_the_moment(clock: ManualClock) -> None:
    problems = ["the disk is full"]
    health = GatewayHealth(clock)
    health.add_check(lambda: problems)
    assert health.current_status() == "degraded"
    problems.clear()
    clock.advance(-(9**9))
    assert health.current_status() == "online"
