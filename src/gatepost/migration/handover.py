"""Handing items to the gateway, each once: noted, sent, noted again.

`sort` decides from the ledger alone what is to be done with an item; `hand_over` does it.
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

# How long an interrupted hand-over may be repeated. The gateway remembers keys for twice as long
# (journal.tombstone_secs) unless it was told otherwise.
SURE_MS = 86_400_000
# What will not get better by trying again. Everything else ends the run, which can be repeated.
_FINAL = (InvalidRequest, NotFound, Conflict, PayloadTooLarge)


class Sorted(Struct):
    """Items by what is to be done with them."""

    send: list[Item] = field(default_factory=list)
    already: list[Item] = field(default_factory=list)
    history: list[Item] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)


class Handed(Struct):
    """What became of items that were to be sent, by key."""

    events: dict[str, str] = field(default_factory=dict)
    refused: dict[str, GatepostError] = field(default_factory=dict)


def sort(found: Iterable[Item | Reject], ledger: Ledger, now: int) -> Sorted:
    piles = Sorted()
    for one in found:
        if isinstance(one, Reject):
            piles.rejects.append(one)
        else:
            _sort_item(one, ledger.entries.get(one.key), now, piles)
    return piles


def _sort_item(item: Item, entry: Entry | None, now: int, piles: Sorted) -> None:
    if entry is not None and entry.handed_over:
        if entry.digest == item.digest:
            piles.already.append(item)
        else:
            piles.rejects.append(rejected(item, "changed", _CHANGED))
    elif item.event_id is not None:
        piles.already.append(item)
    elif entry is not None and entry.state == "conflict":
        piles.rejects.append(rejected(item, "conflict", _OTHER))
    elif item.done:
        piles.history.append(item)
    elif entry is not None and entry.state == "intent" and now - entry.at > SURE_MS:
        piles.rejects.append(rejected(item, "in_doubt", _IN_DOUBT))
    else:
        piles.send.append(item)


_CHANGED = (
    "this id was imported before with another content: the record was edited,"
    " or it is from another document"
)
_IN_DOUBT = (
    "a run was interrupted while sending this, too long ago to repeat it safely:"
    " ask its recipient, and send it by hand if it is not there"
)
_OTHER = (
    "the gateway took this id before, with another content or as a large payload whose sender was"
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
    """Send items in their order. Within a turn of the ledger, and once it is asked about them.

    An error that says nothing about an item is raised, after what is known was noted.
    """
    # An interrupted item keeps the time of its first attempt, from which on the key may age.
    new = [item for item in items if not ledger.intended(item.key)]
    ledger.write([(item, "") for item in new], "intent", origin)
    sends = (_send(client, item, ttl_secs, timeout) for item in items)
    answers = await asyncio.gather(*sends, return_exceptions=True)
    handed, troubles = Handed(), list[BaseException]()
    for item, answer in zip(items, answers, strict=True):
        if isinstance(answer, Sent):
            handed.events[item.key] = answer.event_id
        elif isinstance(answer, _FINAL):
            handed.refused[item.key] = answer
        else:
            troubles.append(answer)
    _note(ledger, items, handed, origin)
    if troubles:
        raise troubles[0]
    return handed


def _note(ledger: Ledger, items: Sequence[Item], handed: Handed, origin: Origin) -> None:
    sent = [(item, handed.events[item.key]) for item in items if item.key in handed.events]
    ledger.write(sent, "sent", origin)
    conflicts = {k for k, e in handed.refused.items() if isinstance(e, IdempotencyConflict)}
    refused = handed.refused.keys() - conflicts
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
