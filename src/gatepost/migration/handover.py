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
from gatepost.migration.fields import Item, Reject
from gatepost.migration.ledger import Entry, Ledger, Origin

# How long an interrupted send may be repeated. By default the gateway remembers idempotency keys
# for twice as long (journal.tombstone_secs).
SURE_MS = 86_400_000
# Refusals of one item that a retry would not change. Any other error ends the run, which can be
# repeated.
_FINAL = (InvalidRequest, NotFound, Conflict, PayloadTooLarge)


class Sorted(Struct):
    """Items by the action they need."""

    send: list[Item] = field(default_factory=list)
    already: list[Item] = field(default_factory=list)
    history: list[Item] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)


class Handed(Struct):
    """The results of sending items, by idempotency key."""

    events: dict[str, str] = field(default_factory=dict)
    refused: dict[str, GatepostError] = field(default_factory=dict)


def sort(found: Iterable[Item | Reject], ledger: Ledger, now: int) -> Sorted:
    triage = Sorted()
    for each in found:
        if isinstance(each, Reject):
            triage.rejects.append(each)
        else:
            _sort_item(each, ledger.entries.get(each.key), now, triage)
    return triage


def _sort_item(item: Item, entry: Entry | None, now: int, triage: Sorted) -> None:
    if entry is not None and entry.handed_over:
        if entry.digest == item.digest:
            triage.already.append(item)
        else:
            triage.rejects.append(rejected(item, "changed", _CHANGED))
    elif item.event_id is not None:
        triage.already.append(item)
    elif entry is not None and entry.state == "conflict":
        triage.rejects.append(rejected(item, "conflict", _OTHER))
    elif item.done:
        triage.history.append(item)
    elif entry is not None and entry.state == "intent" and now - entry.at > SURE_MS:
        triage.rejects.append(rejected(item, "in_doubt", _IN_DOUBT))
    else:
        triage.send.append(item)


_CHANGED = (
    "this id was imported before with other content: the record was edited,"
    " or it is from another document"
)
_IN_DOUBT = (
    "a run was interrupted while sending this, too long ago to repeat it safely:"
    " ask its recipient, and send it by hand if it is not there"
)
_OTHER = (
    "the gateway accepted this id before, with other content or as a large payload whose sender was"
    " interrupted: ask its recipient"
)


def rejected(item: Item, code: str, reason: str) -> Reject:
    return Reject(item.kind, item.id, code, reason, item.record, item.to)


def refusal(item: Item, error: GatepostError) -> Reject:
    if isinstance(error, IdempotencyConflict):
        return rejected(item, "conflict", _OTHER)
    return rejected(item, error.code, error.message)


async def hand_over(
    client: Client,
    ledger: Ledger,
    items: Sequence[Item],
    *,
    origin: Origin = "import",
    ttl_secs: float | None = None,
    timeout: float = 30.0,
) -> Handed:
    """Send items in order. Call it within a turn of the ledger, with items triaged in that turn.

    An error that is not a refusal of one item is raised after the known results were recorded.
    """
    # An interrupted item keeps the time of its first attempt, because its key ages from then on.
    new = [item for item in items if not ledger.intended(item.key)]
    ledger.write([(item, "") for item in new], "intent", origin)
    sends = (_send(client, item, ttl_secs, timeout) for item in items)
    answers = await asyncio.gather(*sends, return_exceptions=True)
    results, failures = Handed(), list[BaseException]()
    for item, answer in zip(items, answers, strict=True):
        if isinstance(answer, Sent):
            results.events[item.key] = answer.event_id
        elif isinstance(answer, _FINAL):
            results.refused[item.key] = answer
        else:
            failures.append(answer)
    _note(ledger, items, results, origin)
    if failures:
        raise failures[0]
    return results


def _note(ledger: Ledger, items: Sequence[Item], results: Handed, origin: Origin) -> None:
    sent = [(item, results.events[item.key]) for item in items if item.key in results.events]
    ledger.write(sent, "sent", origin)
    conflicts = {k for k, e in results.refused.items() if isinstance(e, IdempotencyConflict)}
    refused = results.refused.keys() - conflicts
    ledger.write([(item, "") for item in items if item.key in refused], "refused", origin)
    ledger.write([(item, "") for item in items if item.key in conflicts], "conflict", origin)


async def _send(client: Client, item: Item, ttl_secs: float | None, timeout: float) -> Sent:
    return await client.send(
        item.to,
        item.payload,
        from_=item.sender,
        idempotency_key=item.key,
        corr_id=item.corr_id,
        ttl_secs=ttl_secs,
        timeout=timeout,
    )
