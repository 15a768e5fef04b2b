"""What is to be done with an item follows from the ledger alone."""

import asyncio
from pathlib import Path

import pytest

from gatepost.errors import DeadlineExceeded
from gatepost.migration.item_sender import REPEATABLE_MS, ItemTriage, send_items, triage_items
from gatepost.migration.migration_ledger import LedgerState, MigrationLedger
from gatepost.testing import GatewayProcess, ManualClock
from tests.migration.tools import client_of, item_of

ITEM = item_of()


@pytest.fixture
def ledger(tmp_path: Path) -> MigrationLedger:
    return MigrationLedger(tmp_path / "ledger", ManualClock())


def pile(ledger: MigrationLedger, item: object = ITEM, later: int = 0) -> str:
    found: ItemTriage = triage_items([item], ledger, ledger.now() + later)  # type: ignore[list-item]
    if found.rejects:
        return found.rejects[0].code
    (name,) = [name for name in ("to_send", "already_imported", "history") if getattr(found, name)]
    return name


@pytest.mark.parametrize(
    ("state", "expected", "a_day_later"),
    [
        ("intent", "to_send", "in_doubt"),
        ("sent", "already_imported", "already_imported"),
        ("settled", "already_imported", "already_imported"),
        ("refused", "to_send", "to_send"),
        ("conflict", "conflict", "conflict"),
    ],
)
def test_an_open_item_by_its_latest_step(
    ledger: MigrationLedger, state: LedgerState, expected: str, a_day_later: str
) -> None:
    ledger.write_step([(ITEM, "e")], state)
    assert pile(ledger) == expected
    assert pile(ledger, later=REPEATABLE_MS + 1) == a_day_later


def test_what_is_new_is_sent_and_what_is_done_is_history(ledger: MigrationLedger) -> None:
    assert pile(ledger) == "to_send"
    assert pile(ledger, item_of(status="read")) == "history"


def test_an_imported_item_stays_imported_when_old_readers_read_it_too(
    ledger: MigrationLedger,
) -> None:
    ledger.write_step([(ITEM, "e")], "sent")
    assert pile(ledger, item_of(status="read")) == "already_imported"


def test_an_id_that_comes_again_with_another_content_is_not_passed_over(
    ledger: MigrationLedger,
) -> None:
    ledger.write_step([(ITEM, "e")], "sent")
    assert pile(ledger, item_of(content="edited")) == "changed"


def test_what_the_mirror_wrote_is_not_imported_even_without_a_ledger(
    ledger: MigrationLedger,
) -> None:
    assert pile(ledger, item_of(gatepostEventId="e")) == "already_imported"


def test_an_interrupted_item_keeps_the_time_of_its_first_attempt(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    """The gateway's memory of the key began then, so a day is counted from then."""
    clock = ManualClock()
    ledger = MigrationLedger(tmp_path / "ledger", clock)
    ledger.write_step([(ITEM, "")], "intent")
    first = clock.now()
    clock.advance(REPEATABLE_MS // 2)

    async def test() -> None:
        async with client_of(gateway) as client:
            gateway.stop()
            with pytest.raises(DeadlineExceeded):
                await send_items(client, ledger, [ITEM], timeout=0.2)

    asyncio.run(test())
    entry = ledger.entries[ITEM.key]
    assert (entry.state, entry.at) == ("intent", first)
