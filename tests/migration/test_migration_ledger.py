"""The ledger: whole lines, one writer at a time, nothing forgotten."""

import asyncio
from pathlib import Path

import pytest

from gatepost.errors import ConfigError, DeadlineExceeded
from gatepost.migration.migration_ledger import MigrationLedger
from gatepost.testing import ManualClock
from tests.migration.tools import item_of


def ledger(path: Path) -> MigrationLedger:
    return MigrationLedger(path / "ledger", ManualClock())


def test_what_was_written_is_read_again_latest_state_wins(tmp_path: Path) -> None:
    one, item = ledger(tmp_path), item_of()
    one.write_step([(item, "")], "intent")
    one.write_step([(item, "e1")], "sent", "mirror")
    entry = ledger(tmp_path).entries[item.key]
    assert (entry.state, entry.event_id, entry.origin) == ("sent", "e1", "mirror")
    assert entry.digest == item.digest
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o600


def test_a_turn_sees_what_others_wrote(tmp_path: Path) -> None:
    one, other, item = ledger(tmp_path), ledger(tmp_path), item_of()

    async def run() -> None:
        async with one.take_turn():
            one.write_step([(item, "e1")], "sent")
        async with other.take_turn():
            assert other.entries[item.key].event_id == "e1"
            other.mark_settled([item.key])
        async with one.take_turn():
            assert one.entries[item.key].state == "settled"

    asyncio.run(run())


def test_turns_do_not_overlap_and_waiting_has_an_end(tmp_path: Path) -> None:
    one, other = ledger(tmp_path), ledger(tmp_path)

    async def run() -> None:
        async with one.take_turn():
            with pytest.raises(DeadlineExceeded, match="another migration command"):
                async with other.take_turn(timeout=0.05):
                    pass
        async with other.take_turn(timeout=0.05):
            pass

    asyncio.run(run())


@pytest.mark.parametrize("lost", [1, 10, 100])
def test_half_a_line_is_cut_off_by_the_next_writer(tmp_path: Path, lost: int) -> None:
    first, second, third = item_of("1"), item_of("2"), item_of("3")
    one = ledger(tmp_path)
    one.write_step([(first, "e1"), (second, "e2")], "sent")
    file = tmp_path / "ledger"
    file.write_bytes(file.read_bytes()[:-lost])

    async def run() -> None:
        after = ledger(tmp_path)
        async with after.take_turn():
            assert after.entries.keys() == {first.key}
            after.write_step([(third, "e3")], "sent")

    asyncio.run(run())
    assert ledger(tmp_path).entries.keys() == {first.key, third.key}


def test_damage_before_the_end_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(b"nonsense\n")
    with pytest.raises(ConfigError, match="is damaged"):
        ledger(tmp_path)
