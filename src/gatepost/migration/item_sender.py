"""Sends items to the gateway, each once. The ledger records intent before and result after.

`triage_items` decides from the ledger alone whether an item has to be sent; `send_items` sends it.
"""

import asyncio
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from gatepost.client import Client, Sent
from gatepost.errors import (
    Conflict,
    GatepostError,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
)
from gatepost.migration.legacy_records import LegacyItem, RejectedItem
from gatepost.migration.migration_ledger import LedgerEntry, LedgerOrigin, MigrationLedger

# How long an interrupted send may be repeated. By default the gateway remembers idempotency keys
# for twice as long (journal.tombstone_secs).
REPEATABLE_MS = 86_400_000
# Refusals of one item that a retry would not change. Any other error ends the run, which can be
# repeated.
PERMANENT_ERRORS = (InvalidRequest, NotFound, Conflict, PayloadTooLarge)


class ItemTriage(Struct):
    """Items by the action they need."""

    to_send: list[LegacyItem] = field(default_factory=list)
    already_imported: list[LegacyItem] = field(default_factory=list)
    history: list[LegacyItem] = field(default_factory=list)
    rejects: list[RejectedItem] = field(default_factory=list)


class SentItems(Struct):
    """The results of sending items, by idempotency key."""

    event_ids: dict[str, str] = field(default_factory=dict)
    refused: dict[str, GatepostError] = field(default_factory=dict)


def triage_items(
    found: Iterable[LegacyItem | RejectedItem], ledger: MigrationLedger, now: int
) -> ItemTriage:
    triage = ItemTriage()
    for each in found:
        if isinstance(each, RejectedItem):
            triage.rejects.append(each)
        else:
            _triage_item(each, ledger.entries.get(each.key), now, triage)
    return triage


def _triage_item(item: LegacyItem, entry: LedgerEntry | None, now: int, triage: ItemTriage) -> None:
    if entry is not None and entry.is_sent:
        if entry.digest == item.digest:
            triage.already_imported.append(item)
        else:
            triage.rejects.append(reject_item(item, "changed", _CHANGED_REASON))
    elif item.event_id is not None:
        triage.already_imported.append(item)
    elif entry is not None and entry.state == "conflict":
        triage.rejects.append(reject_item(item, "conflict", _CONFLICT_REASON))
    elif item.done:
        triage.history.append(item)
    elif entry is not None and entry.state == "intent" and now - entry.at > REPEATABLE_MS:
        triage.rejects.append(reject_item(item, "in_doubt", _IN_DOUBT_REASON))
    else:
        triage.to_send.append(item)


_CHANGED_REASON = (
    "this id was imported before with other content: the record was edited,"
    " or it is from another document"
)
_IN_DOUBT_REASON = (
    "a run was interrupted while sending this, too long ago to repeat it safely:"
    " ask its recipient, and send it by hand if it is not there"
)
_CONFLICT_REASON = (
    "the gateway accepted this id before, with other content or as a large payload whose sender was"
    " interrupted: ask its recipient"
)


def reject_item(item: LegacyItem, code: str, reason: str) -> RejectedItem:
    return RejectedItem(item.kind, item.id, code, reason, item.record, item.to)


def reject_refused(item: LegacyItem, error: GatepostError) -> RejectedItem:
    if isinstance(error, IdempotencyConflict):
        return reject_item(item, "conflict", _CONFLICT_REASON)
    return reject_item(item, error.code, error.message)


async def send_items(
    client: Client,
    ledger: MigrationLedger,
    items: Sequence[LegacyItem],
    *,
    origin: LedgerOrigin = "import",
    ttl_secs: float | None = None,
    timeout: float = 30.0,
) -> SentItems:
    """Send items in order. Call it within a turn of the ledger, with items triaged in that turn.

    An error that is not a refusal of one item is raised after the known results were recorded.
    """
    # An interrupted item keeps the time of its first attempt, because its key ages from then on.
    new = [item for item in items if not ledger.is_intended(item.key)]
    ledger.write_step([(item, "") for item in new], "intent", origin)
    sends = (_send_item(client, item, ttl_secs, timeout) for item in items)
    answers = await asyncio.gather(*sends, return_exceptions=True)
    results, failures = SentItems(), list[BaseException]()
    for item, answer in zip(items, answers, strict=True):
        if isinstance(answer, Sent):
            results.event_ids[item.key] = answer.event_id
        elif isinstance(answer, PERMANENT_ERRORS):
            results.refused[item.key] = answer
        else:
            failures.append(answer)
    _record_results(ledger, items, results, origin)
    if failures:
        raise failures[0]
    return results


def _record_results(
    ledger: MigrationLedger, items: Sequence[LegacyItem], results: SentItems, origin: LedgerOrigin
) -> None:
    sent = [(item, results.event_ids[item.key]) for item in items if item.key in results.event_ids]
    ledger.write_step(sent, "sent", origin)
    conflicts = {k for k, e in results.refused.items() if isinstance(e, IdempotencyConflict)}
    refused = results.refused.keys() - conflicts
    ledger.write_step([(item, "") for item in items if item.key in refused], "refused", origin)
    ledger.write_step([(item, "") for item in items if item.key in conflicts], "conflict", origin)


async def _send_item(
    client: Client, item: LegacyItem, ttl_secs: float | None, timeout: float
) -> Sent:
    return await client.send(
        item.to,
        item.payload,
        from_=item.sender,
        idempotency_key=item.key,
        corr_id=item.corr_id,
        ttl_secs=ttl_secs,
        timeout=timeout,
    )
