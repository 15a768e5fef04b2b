"""Rounds times up to three digits, which leaves few different values."""

import numpy as np

from gatepost.pipeline.kernels.columns import Numbers

# From a second to 300 years in milliseconds.
_POWERS = 10 ** np.arange(3, 14)


def round_up_times(ms: Numbers) -> Numbers:
    """Round times up; negative times become 0, and too long ones the longest."""
    known = np.clip(ms, 0, _POWERS[-1])
    unit = 10 ** np.searchsorted(_POWERS, known, side="right")
    return -(-known // unit) * unit
