"""The ledger of deliveries, in the words and numbers of the gateways that sent them."""

import pyarrow as pa

from gatepost.ledger import Ledger
from gatepost.pipeline.kernels.message_ledger import LEDGER_COLUMNS, count_ledger
from gatepost.pipeline.tables.arrow_schemas import rows_to_table
from gatepost.pipeline.tables.schemas import DELIVERIES


def deliveries(*rows: tuple[str | None, str, str | None, str | None, bool]) -> pa.Table:
    known = [dict(zip(LEDGER_COLUMNS, row, strict=True)) for row in rows]
    blank = dict.fromkeys(DELIVERIES.names)
    return rows_to_table(DELIVERIES, [blank | row for row in known])


def test_every_message_is_in_one_term() -> None:
    table = deliveries(
        ("message", "replied", None, None, False),
        ("task_create", "processed", "ok", None, False),
        ("message", "processed", "dead_letter", "failed 4 times", False),
        ("message", "processed", "expired", None, False),
        ("task_cancel", "dead_letter", None, "expired", False),
        ("message", "dead_letter", None, "no_route", False),
        ("message", "accepted", None, None, False),
        ("message", "retry_pending", None, None, False),
    )
    assert count_ledger(table) == Ledger(
        sent=8, processed=2, in_motion=1, waiting=1, dead_letters=2, expired=2
    )


def test_replies_forwards_and_orphans_are_not_entries() -> None:
    table = deliveries(
        ("reply", "processed", "kept", None, False),
        ("message", "processed", "ok", None, True),
        (None, "orphan", None, None, False),
        ("message", "emitted", None, None, False),
    )
    assert count_ledger(table) == Ledger(sent=1, waiting=1)
    assert count_ledger(table.slice(0, 0)) == Ledger()
