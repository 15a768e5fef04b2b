"""Numbers that must add up."""

from gatepost.migration import ImportCounts, ImportSummary, RejectedItem
from tests.migration.tools import item_of


def test_every_item_that_was_read_ended_somewhere() -> None:
    assert ImportCounts(10, 1, 2, 3, 4).is_balanced
    assert not ImportCounts(10, 1, 2, 3, 3).is_balanced
    assert not ImportCounts(9, 1, 2, 3, 4).is_balanced


def test_counts_add_up_over_kinds() -> None:
    report = ImportSummary(False, ImportCounts(3, 1, 1, 1, 0), ImportCounts(4, 0, 0, 2, 2))
    assert report.total == ImportCounts(7, 1, 1, 3, 2)


def test_items_are_counted_by_kind_and_rejects_by_reason() -> None:
    report = ImportSummary(False)
    report.count_items([item_of("1")], [item_of("2"), item_of("3")])
    report.count_rejects(
        [
            RejectedItem("tasks", "t", "bad_time", "x", {}),
            RejectedItem("tasks", "u", "bad_time", "x", {}),
        ]
    )
    report.count_rejects([RejectedItem("messages", "m", "bad_time", "x", {})])
    assert report.messages == ImportCounts(0, 1, 2, 0, 1)
    assert report.tasks == ImportCounts(0, 0, 0, 0, 2)
    assert report.reasons == {"bad_time": 3}
