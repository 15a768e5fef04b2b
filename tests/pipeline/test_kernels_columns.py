"""Ids far from their events name no hour."""

from typing import Final

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.columns import is_near_id

DAY: Final = 24 * 3_600_000
NOW: Final = 1_772_490_600_000


def drawn(at: int) -> bytes:
    return at.to_bytes(6, "big") + bytes(10)


def near(*ids: bytes | None) -> list[bool]:
    column = pa.chunked_array([pa.array(ids, pa.binary())])
    found = is_near_id(column, np.full(len(ids), NOW, np.int64), 31 * DAY)
    return [bool(each) for each in found]


def test_an_id_is_drawn_at_most_so_long_before_its_event_and_a_day_after_it() -> None:
    assert near(drawn(NOW), drawn(NOW - 31 * DAY), drawn(NOW + DAY)) == [True] * 3
    assert near(drawn(NOW - 31 * DAY - 1), drawn(NOW + DAY + 1)) == [False] * 2
    assert near(bytes(16), b"\xff" * 16) == [False] * 2


def test_what_is_not_16_bytes_long_is_not_near() -> None:
    assert near(drawn(NOW)[:15], b"", None, drawn(NOW) + b"0", drawn(NOW)) == [False] * 4 + [True]
