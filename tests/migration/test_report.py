"""Numbers that must add up."""

from gatepost.migration import Counts, Reject, Report
from tests.migration.tools import item_of


def test_every_item_that_was_read_ended_somewhere() -> None:
    assert Counts(10, 1, 2, 3, 4).balanced
    assert not Counts(10, 1, 2, 3, 3).balanced
    assert not Counts(9, 1, 2, 3, 4).balanced


def test_counts_add_up_over_kinds() -> None:
    report = Report(False, Counts(3, 1, 1, 1, 0), Counts(4, 0, 0, 2, 2))
    assert report.total == Counts(7, 1, 1, 3, 2)


def test_items_are_counted_by_kind_and_rejects_by_reason() -> None:
    report = Report(False)
    report.count([item_of("1")], [item_of("2"), item_of("3")])
    report.reject(
        [Reject("tasks", "t", "bad_time", "x", {}), Reject("tasks", "u", "bad_time", "x", {})]
    )
    report.reject([Reject("messages", "m", "bad_time", "x", {})])
    assert report.messages == Counts(0, 1, 2, 0, 1)
    assert report.tasks == Counts(0, 0, 0, 0, 2)
    assert report.reasons == {"bad_time": 3}
