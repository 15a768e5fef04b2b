"""The proof that an import is complete: checks every item of a dump against the gateway."""

import asyncio
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from gatepost.clock import Clock
from gatepost.migration.dump import Dump
from gatepost.migration.fields import Item, Names
from gatepost.migration.files import Folder
from gatepost.migration.handover import sort
from gatepost.migration.ledger import Ledger
from gatepost.migration.lookup import Lookup

_UNSETTLED = "waiting"


class Proof(Struct):
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
    def holds(self) -> bool:
        whole = self.read == self.imported + self.history + self.rejected + len(self.left)
        return whole and not (self.missing or self.left or self.doubled)


async def verify(lookup: Lookup, folder: Folder, dump: Dump, names: Names, clock: Clock) -> Proof:
    found = dump.understood(names)
    ledger = Ledger(folder.ledger, clock)
    triage = sort(found, ledger, clock.now())
    events = {item.key: _event(item, ledger) for item in triage.already}
    answers = await asyncio.gather(*(lookup.outcome(event) for event in events.values()))
    outcomes = dict(zip(events, answers, strict=True))
    await _remember(ledger, outcomes)
    refused = [item for item in triage.send if ledger.refused(item.key)]
    known = {key: _known(key, outcome, ledger) for key, outcome in outcomes.items()}
    return Proof(
        read=len(found),
        imported=len(triage.already),
        history=len(triage.history),
        rejected=len(triage.rejects) + len(refused),
        outcomes=dict(Counter(outcome for outcome in known.values() if outcome)),
        missing=_ids(item for item in triage.already if known[item.key] is None),
        left=_ids(item for item in triage.send if not ledger.refused(item.key)),
        doubled=_doubled(triage.already, events),
    )


def _event(item: Item, ledger: Ledger) -> str:
    entry = ledger.entries.get(item.key)
    return entry.event_id if entry and entry.handed_over else item.event_id or ""


def _known(key: str, outcome: str | None, ledger: Ledger) -> str | None:
    """The outcome, with the ledger's `settled` for messages that the gateway has forgotten."""
    entry = ledger.entries.get(key)
    return "settled" if outcome is None and entry and entry.state == "settled" else outcome


async def _remember(ledger: Ledger, outcomes: dict[str, str | None]) -> None:
    settled = {key for key, outcome in outcomes.items() if outcome not in (None, _UNSETTLED)}
    async with ledger.turn():
        entries = ledger.entries
        ledger.settle(key for key in settled if key in entries and entries[key].state == "sent")


def _ids(items: Iterable[Item]) -> list[str]:
    return [f"{item.kind}/{item.id} to {item.to}" for item in items]


def _doubled(items: list[Item], events: dict[str, str]) -> list[str]:
    times = Counter(events[item.key] for item in items)
    return _ids(item for item in items if times[events[item.key]] > 1)
