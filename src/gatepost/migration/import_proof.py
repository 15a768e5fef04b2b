"""The proof that an import is complete: checks every item of a dump against the gateway."""

import asyncio
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from gatepost.clock import Clock
from gatepost.migration.item_sender import triage_items
from gatepost.migration.legacy_dump import LegacyDump
from gatepost.migration.legacy_records import AgentNames, LegacyItem
from gatepost.migration.migration_files import MigrationFolder
from gatepost.migration.migration_ledger import MigrationLedger
from gatepost.migration.outcome_client import OutcomeClient

_WAITING = "waiting"


class ImportProof(Struct):
    """Counts of items, and lists of those that are wrong.

    `outcomes` counts imported items by their outcome at the gateway. `missing` items are imported
    but unknown to the gateway, `left` items are not imported, `doubled` items share one message.
    """

    read: int
    imported: int
    history: int
    rejected: int
    outcomes: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        whole = self.read == self.imported + self.history + self.rejected + len(self.left)
        return whole and not (self.missing or self.left or self.doubled)


async def verify_import(
    lookup: OutcomeClient,
    folder: MigrationFolder,
    dump: LegacyDump,
    names: AgentNames,
    clock: Clock,
) -> ImportProof:
    found = dump.parse_items(names)
    ledger = MigrationLedger(folder.ledger, clock)
    triage = triage_items(found, ledger, clock.now())
    events = {item.key: _event_id_of(item, ledger) for item in triage.already_imported}
    answers = await asyncio.gather(*(lookup.message_outcome(event) for event in events.values()))
    outcomes = dict(zip(events, answers, strict=True))
    await _record_settled(ledger, outcomes)
    refused = [item for item in triage.to_send if ledger.is_refused(item.key)]
    known = {key: _known_outcome(key, outcome, ledger) for key, outcome in outcomes.items()}
    return ImportProof(
        read=len(found),
        imported=len(triage.already_imported),
        history=len(triage.history),
        rejected=len(triage.rejects) + len(refused),
        outcomes=dict(Counter(outcome for outcome in known.values() if outcome)),
        missing=_describe_items(
            item for item in triage.already_imported if known[item.key] is None
        ),
        left=_describe_items(item for item in triage.to_send if not ledger.is_refused(item.key)),
        doubled=_find_doubled(triage.already_imported, events),
    )


def _event_id_of(item: LegacyItem, ledger: MigrationLedger) -> str:
    entry = ledger.entries.get(item.key)
    return entry.event_id if entry and entry.is_sent else item.event_id or ""


def _known_outcome(key: str, outcome: str | None, ledger: MigrationLedger) -> str | None:
    """The outcome, with the ledger's `settled` for messages that the gateway has forgotten."""
    entry = ledger.entries.get(key)
    return "settled" if outcome is None and entry and entry.state == "settled" else outcome


async def _record_settled(ledger: MigrationLedger, outcomes: dict[str, str | None]) -> None:
    settled = {key for key, outcome in outcomes.items() if outcome not in (None, _WAITING)}
    async with ledger.take_turn():
        entries = ledger.entries
        ledger.mark_settled(
            key for key in settled if key in entries and entries[key].state == "sent"
        )


def _describe_items(items: Iterable[LegacyItem]) -> list[str]:
    return [f"{item.kind}/{item.id} to {item.to}" for item in items]


def _find_doubled(items: list[LegacyItem], events: dict[str, str]) -> list[str]:
    times = Counter(events[item.key] for item in items)
    return _describe_items(item for item in items if times[events[item.key]] > 1)
