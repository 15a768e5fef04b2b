"""The credit of one reader: spent by sending, given back by storing, never more than granted."""

from hypothesis import given
from hypothesis import strategies as st

from gatepost.links.credit_window import CreditWindow


def test_a_frame_may_overdraw_the_window_once() -> None:
    window = CreditWindow(10)
    window.spend(100)
    assert not window.has_credit
    window.refund(90)
    assert not window.has_credit
    window.refund(1)
    assert window.has_credit


def test_one_batch_at_a_time_is_read() -> None:
    window = CreditWindow(10)
    assert window.begin_read()
    assert not window.begin_read()
    window.end_read()
    assert window.begin_read()


def test_nothing_is_read_without_credit() -> None:
    window = CreditWindow(10)
    window.spend(10)
    assert not window.begin_read()
    window.refund(1)
    assert window.begin_read()


def test_a_window_of_zero_never_opens() -> None:
    window = CreditWindow(0)
    window.refund(1_000)
    assert not window.has_credit


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1_000))))
def test_credit_never_exceeds_the_window(steps: list[tuple[bool, int]]) -> None:
    window = CreditWindow(100)
    for spends, size in steps:
        (window.spend if spends else window.refund)(size)
    window.refund(10**9)
    window.spend(100)
    assert not window.has_credit
