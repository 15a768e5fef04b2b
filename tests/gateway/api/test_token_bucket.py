"""The token bucket."""

import time

import pytest

from gatepost.errors import RateLimited
from gatepost.gateway.api.token_bucket import TokenBucket


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    return moment


def test_a_burst_is_allowed_and_then_the_rate(now: list[float]) -> None:
    bucket = TokenBucket(10, 5)
    for _ in range(5):
        bucket.take_tokens(1)
    with pytest.raises(RateLimited) as refused:
        bucket.take_tokens(2)
    assert refused.value.retry_after == pytest.approx(0.2)
    now[0] += 0.2
    bucket.take_tokens(2)
    with pytest.raises(RateLimited):
        bucket.take_tokens(1)


def test_waiting_never_saves_up_more_than_a_burst(now: list[float]) -> None:
    bucket = TokenBucket(10, 5)
    now[0] += 1000
    bucket.take_tokens(5)
    with pytest.raises(RateLimited):
        bucket.take_tokens(1)


def test_more_than_a_burst_takes_all_of_it_and_is_not_refused_for_ever(now: list[float]) -> None:
    bucket = TokenBucket(10, 5)
    bucket.take_tokens(1000)
    with pytest.raises(RateLimited):
        bucket.take_tokens(1)
    now[0] += 0.5
    bucket.take_tokens(1000)
