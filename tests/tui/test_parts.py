"""The parts of the screens that need no terminal."""

import pytest

from gatepost.ledger import Ledger
from gatepost.tui.jump_targets import find_target
from gatepost.tui.ledger_history import BUCKET_MS, LedgerHistory, draw_sparkline
from gatepost.tui.row_filter import RowFilter
from gatepost.tui.table_view import ID_WIDTH, Column, choose_columns, shorten_cell


def test_a_sparkline_shows_how_much_was_sent_in_each_bucket() -> None:
    history = LedgerHistory()
    for bucket, sent in ((100, 10), (101, 12), (101, 14), (103, 15)):
        history.note(Ledger(sent=sent), bucket * BUCKET_MS)
    now = 104 * BUCKET_MS
    assert history.levels("sent", now, 5) == [10, 14, 14, 15, 15]
    # What was sent before the first look is no growth.
    assert history.growth("sent", now, 5) == [0, 4, 0, 1, 0]
    assert draw_sparkline([0, 4, 0, 1, 0]) == "▁█▁▃▁"


def test_a_filter_asks_the_gateway_for_the_names_it_knows_alone() -> None:
    wanted = RowFilter("agent:bob Order:7 red")
    assert wanted.named(("agent", "term")) == {"agent": "bob"}
    assert wanted.is_match(["order:7", "is RED"], {"agent": "bob"})
    assert not wanted.is_match(["order:8", "is red"], {"agent": "bob"})


@pytest.mark.parametrize(
    ("text", "title", "wanted"),
    [
        ("tasks status:failed", "tasks", "status:failed"),
        ("sent", "messages", ""),
        ("in-motion agent:bob", "messages", "term:in_motion agent:bob"),
        ("mail bob", "mail of bob", ""),
        ("01a1f646-ac83-73df-ae66-000000000001",) * 2 + ("",),
    ],
)
def test_a_jump_finds_views_terms_mail_and_messages(text: str, title: str, wanted: str) -> None:
    found = find_target(text)
    assert found is not None
    assert found[0].title.removeprefix("journey of ") == title
    assert found[1] == wanted


def test_a_jump_to_nowhere_finds_nothing() -> None:
    assert find_target("bob") is None
    assert find_target("mail") is None


def test_a_narrow_terminal_keeps_the_end_of_an_id_and_leaves_columns_out() -> None:
    columns = (Column("Id", ID_WIDTH), Column("Text"), Column("More", 20, is_wide=True))
    assert choose_columns(columns, 80, 2) == [(0, 13), (1, 63)]
    assert choose_columns(columns, 200, 2) == [(0, ID_WIDTH), (1, 138), (2, 20)]
    id = "01a1f646-ac83-73df-ae66-000000000001"
    assert shorten_cell(columns[0], id, 13) == "…000000000001"
    assert shorten_cell(columns[1], "a sentence", 5) == "a se…"
