"""Times in steps of three digits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatepost.pipeline.kernels.rounded_times import round_up_times


@given(st.integers(0, 10**13))
def test_times_are_rounded_up_to_three_digits(ms: int) -> None:
    (found,) = round_up_times(np.array([ms])).tolist()
    assert ms <= found
    assert found - ms < max(1, ms / 100)
    assert len(str(found).rstrip("0")) <= 3
    assert round_up_times(np.array([found])).tolist() == [found]


def test_there_are_few_times_and_one_for_everything() -> None:
    assert len(np.unique(round_up_times(np.arange(100_000)))) == 1000 + 900 + 900 + 1
    strange = np.array([-(10**15), -1, 10**17, np.iinfo(np.int64).max])
    assert round_up_times(strange).tolist() == [0, 0, 10**13, 10**13]
