import pytest

from gatepost.pipeline.jobs.shares import even_share_rows


@pytest.mark.parametrize(
    ("total", "slots", "shares"), [(700, 2, 8), (700, 3, 9), (50, 2, 2), (800, 4, 8)]
)
def test_every_slot_gets_as_many_shares(total: int, slots: int, shares: int) -> None:
    rows = even_share_rows(total, 100, slots)
    assert rows <= 100
    assert -(-total // rows) == shares


def test_nothing_makes_shares_of_one_row() -> None:
    assert even_share_rows(0, 100, 2) == 1
