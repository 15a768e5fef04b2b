import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.access import SourceRateLimiter, TokenBucket, rate_limit_source
from gatepost.errors import RateLimited
from gatepost.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# -- the bucket


def test_a_burst_is_allowed_and_then_the_rate(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock)
    for _ in range(5):
        bucket.take_tokens(1)
    with pytest.raises(RateLimited) as refused:
        bucket.take_tokens(2)
    assert refused.value.retry_after == pytest.approx(0.2)
    clock.advance(200)
    bucket.take_tokens(2)
    with pytest.raises(RateLimited):
        bucket.take_tokens(1)


def test_waiting_never_saves_up_more_than_a_burst(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock)
    clock.advance(1_000_000)
    assert bucket.is_full()
    bucket.take_tokens(5)
    with pytest.raises(RateLimited):
        bucket.take_tokens(1)


def test_more_than_a_burst_takes_all_of_it_and_is_not_refused_for_ever(clock: ManualClock) -> None:
    bucket = TokenBucket(10, 5, clock)
    bucket.take_tokens(1000)
    with pytest.raises(RateLimited):
        bucket.take_tokens(1)
    clock.advance(500)
    bucket.take_tokens(1000)


# -- a bucket per source


def count_allowed(limiter: SourceRateLimiter, source: str, count: int) -> int:
    """Make `count` attempts; return how many are allowed."""
    allowed = 0
    for _ in range(count):
        try:
            limiter.take_token(source)
            allowed += 1
        except RateLimited:
            pass
    return allowed


def test_a_burst_passes_and_then_the_rate_holds(clock: ManualClock) -> None:
    limiter = SourceRateLimiter(2, 5, clock)
    assert count_allowed(limiter, "a", 10) == 5
    clock.set(1000)
    assert count_allowed(limiter, "a", 10) == 2
    clock.set(100_000)
    assert count_allowed(limiter, "a", 10) == 5


def test_an_attempt_after_the_given_wait_is_allowed(clock: ManualClock) -> None:
    limiter = SourceRateLimiter(0.5, 1, clock)
    limiter.take_token("a")
    clock.set(500)
    with pytest.raises(RateLimited) as refusal:
        limiter.take_token("a")
    assert refusal.value.retry_after == 1.5
    clock.set(2000)
    limiter.take_token("a")


def test_one_source_does_not_spend_the_attempts_of_another(clock: ManualClock) -> None:
    limiter = SourceRateLimiter(1, 1, clock)
    limiter.take_token("a")
    limiter.take_token("b")


def test_a_crowd_of_sources_shares_one_bucket_and_drops_no_other(clock: ManualClock) -> None:
    limiter = SourceRateLimiter(1, 2, clock, most=3)
    assert sum(count_allowed(limiter, f"s{i}", 2) for i in range(100)) == 3 * 2 + 2
    assert count_allowed(limiter, "s0", 1) == 0
    assert len(limiter) == 3


def test_sources_that_rested_are_dropped_for_new_ones(clock: ManualClock) -> None:
    limiter = SourceRateLimiter(1, 2, clock, most=3)
    for source in "abc":
        limiter.take_token(source)
    clock.set(1000)
    assert count_allowed(limiter, "d", 5) == 2
    assert len(limiter) == 3


def test_a_clock_set_back_removes_no_tokens(clock: ManualClock) -> None:
    limiter = SourceRateLimiter(1, 3, clock)
    clock.set(10_000)
    limiter.take_token("a")
    clock.set(0)
    assert count_allowed(limiter, "a", 5) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3000)), max_size=60))
def test_no_source_ever_passes_more_than_burst_and_rate_allow(steps: list[tuple[str, int]]) -> None:
    clock, allowed = ManualClock(), dict.fromkeys("abcdefgh", 0)
    limiter = SourceRateLimiter(2, 3, clock, most=4)
    for source, pause in steps:
        clock.advance(pause)
        allowed[source] += count_allowed(limiter, source, 1)
        assert len(limiter) <= 4
    assert all(count <= 2 * (3 + clock.now() / 1000 * 2) for count in allowed.values())


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
def test_the_source_of_a_host(host: str, source: str) -> None:
    assert rate_limit_source(host) == source
