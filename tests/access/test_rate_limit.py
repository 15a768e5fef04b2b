import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.access import SourceRateLimiter, rate_limit_source
from gatepost.errors import RateLimited


def knocks(limiter: SourceRateLimiter, source: str, now: int, count: int) -> int:
    """How many of `count` knocks are let through."""
    through = 0
    for _ in range(count):
        try:
            limiter.take_token(source, now)
            through += 1
        except RateLimited:
            pass
    return through


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    limiter = SourceRateLimiter(rate=2, burst=5)
    assert knocks(limiter, "a", 0, 10) == 5
    assert knocks(limiter, "a", 1000, 10) == 2
    assert knocks(limiter, "a", 100_000, 10) == 5


def test_a_refusal_says_when_to_try_again_and_keeps_its_word() -> None:
    limiter = SourceRateLimiter(rate=0.5, burst=1)
    limiter.take_token("a", 0)
    with pytest.raises(RateLimited) as refusal:
        limiter.take_token("a", 500)
    assert refusal.value.retry_after == 1.5
    limiter.take_token("a", 2000)


def test_one_source_does_not_spend_anothers_knocks() -> None:
    limiter = SourceRateLimiter(rate=1, burst=1)
    limiter.take_token("a", 0)
    limiter.take_token("b", 0)


def test_a_crowd_of_sources_shares_one_bucket_and_washes_nobody_away() -> None:
    limiter = SourceRateLimiter(rate=1, burst=2, most=3)
    assert sum(knocks(limiter, f"s{i}", 0, 2) for i in range(100)) == 3 * 2 + 2
    assert knocks(limiter, "s0", 0, 1) == 0
    assert len(limiter) == 3


def test_sources_that_rested_make_room_for_new_ones() -> None:
    limiter = SourceRateLimiter(rate=1, burst=2, most=3)
    for source in "abc":
        limiter.take_token(source, 0)
    assert knocks(limiter, "d", 1000, 5) == 2
    assert len(limiter) == 3


def test_a_clock_set_back_takes_nothing_away() -> None:
    limiter = SourceRateLimiter(rate=1, burst=3)
    limiter.take_token("a", 10_000)
    assert knocks(limiter, "a", 0, 5) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3000)), max_size=60))
def test_no_source_ever_passes_more_than_burst_and_rate_allow(steps: list[tuple[str, int]]) -> None:
    limiter, now, passed = (
        SourceRateLimiter(rate=2, burst=3, most=4),
        0,
        dict.fromkeys("abcdefgh", 0),
    )
    for source, pause in steps:
        now += pause
        passed[source] += knocks(limiter, source, now, 1)
        assert len(limiter) <= 4
    assert all(count <= 2 * (3 + now / 1000 * 2) for count in passed.values())


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::2", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("unix", "unix"),
    ],
)
def test_what_counts_as_one_source(host: str, source: str) -> None:
    assert rate_limit_source(host) == source
