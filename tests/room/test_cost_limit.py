"""A node that keeps us busy is read more slowly, and nobody else is."""

from gatepost.room.cost_limit import COST_BURST_SECS, COST_SHARE, CostLimits


def test_a_node_may_take_its_share_for_ever() -> None:
    limits = CostLimits()
    assert not any(limits.charge("ben", COST_SHARE * 0.9, float(now)) for now in range(1000))


def test_a_node_over_its_share_pauses_until_it_is_within_it_again() -> None:
    exceeded: list[str] = []
    limits = CostLimits(exceeded.append)
    now = spent = 0.0
    while now < 1000:
        pause = limits.charge("mallory", 0.03, now)
        spent += 0.03
        now += 0.03 + pause
    assert spent <= COST_BURST_SECS + COST_SHARE * now + 0.1
    assert set(exceeded) == {"mallory"}
    assert limits.charge("ben", 0.03, now) == 0


def test_the_limit_is_one_for_all_connections_of_a_node() -> None:
    limits = CostLimits()
    pauses = [limits.charge("mallory", COST_BURST_SECS / 2, 0.0) for _ in range(3)]
    assert pauses[:2] == [0, 0]
    assert pauses[2] > 0


def test_a_burst_is_allowed_again_after_a_while() -> None:
    limits = CostLimits()
    assert limits.charge("ben", COST_BURST_SECS, 0.0) == 0
    assert limits.charge("ben", COST_BURST_SECS, COST_BURST_SECS / COST_SHARE) == 0
