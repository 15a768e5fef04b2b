"""Times in steps of three digits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatepost.pipeline.kernels.time_buckets import (
    BUCKET_COUNT,
    bucket_of,
    longest_time,
    round_up_times,
)


@given(st.integers(0, 10**13))
def test_times_are_rounded_up_to_three_digits(ms: int) -> None:
    (found,) = round_up_times(np.array([ms])).tolist()
    assert ms <= found
    assert found - ms < max(1, ms / 100)
    assert len(str(found).rstrip("0")) <= 3
    assert round_up_times(np.array([found])).tolist() == [found]


def test_every_step_is_a_time_of_its_own_and_later_ones_are_longer() -> None:
    every = np.arange(BUCKET_COUNT)
    times = longest_time(every)
    assert (np.diff(times) > 0).all()
    assert (bucket_of(times) == every).all()


def test_there_is_a_step_for_everything() -> None:
    strange = np.array([-(10**15), -1, 10**17, np.iinfo(np.int64).max])
    assert bucket_of(strange).tolist() == [0, 0, BUCKET_COUNT - 1, BUCKET_COUNT - 1]
