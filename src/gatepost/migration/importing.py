"""Phase one: sends every undelivered item of a dump to the gateway, once, even if repeated."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gatepost.client import Client
from gatepost.clock import Clock
from gatepost.migration import phase
from gatepost.migration.dump import Dump
from gatepost.migration.fields import Item, Names, Reject, by_age, unmapped
from gatepost.migration.files import Folder, replace
from gatepost.migration.handover import Sorted, hand_over, refusal, sort
from gatepost.migration.ledger import Ledger
from gatepost.migration.phase import Command
from gatepost.migration.report import Report
from gatepost.migration.values import kept

_BATCH, _BATCH_BYTES = 100, 512 * 1024


class Plan(Struct, frozen=True):
    """Import options: agent names, TTL of sent items, files for rejects and finished items."""

    names: Names = msgspec.field(default_factory=Names)
    ttl_secs: float | None = None
    rejects: Path | None = None
    history: Path | None = None


async def import_dump(
    client: Client, folder: Folder, dump: Dump, plan: Plan, clock: Clock
) -> Report:
    """Import a dump and update the phase marker."""
    node_id = (await client.status()).node_id
    phase.allowed(phase.load(folder), Command.IMPORT, node_id)
    report = await take_over(client, folder, dump, plan, clock)
    phase.enter(folder, Command.IMPORT, node_id, clock.now(), counts=report.total)
    return report


def survey(folder: Folder, dump: Dump, plan: Plan, clock: Clock) -> Report:
    """Report the effect of an import without sending. Writes only the files named in the plan."""
    triage = sort(dump.understood(plan.names), Ledger(folder.ledger, clock), clock.now())
    report = _begin(dump, triage, dry_run=True)
    report.count(triage.send, triage.already)
    report.reject(triage.rejects)
    if plan.rejects is not None:
        _keep_rejects(report, plan.rejects, dump, triage.rejects)
    _keep_history(report, plan.history, triage.history)
    return report


async def take_over(client: Client, folder: Folder, dump: Dump, plan: Plan, clock: Clock) -> Report:
    """Send all open items in batches. Each batch is in the ledger before the next starts."""
    ledger = Ledger(folder.ledger, clock)
    triage = sort(dump.understood(plan.names), ledger, clock.now())
    report = _begin(dump, triage, dry_run=False)
    report.count((), triage.already)
    rejects = list(triage.rejects)
    for batch in batches(by_age(triage.send)):
        async with ledger.turn():
            # Another process may have sent some of them meanwhile.
            now = sort(batch, ledger, clock.now())
            results = await hand_over(client, ledger, now.send, ttl_secs=plan.ttl_secs)
        refused = [refusal(i, results.refused[i.key]) for i in now.send if i.key in results.refused]
        report.count([i for i in now.send if i.key in results.events], now.already)
        rejects += now.rejects + refused
    report.reject(rejects)
    _keep_rejects(report, plan.rejects or folder.rejects, dump, rejects)
    _keep_history(report, plan.history, triage.history)
    return report


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split items into batches, in order, each small enough for one frame.

    A batch is answered before the next is sent. Later items therefore do not overtake a payload
    that has to be uploaded first.
    """
    batch: list[Item] = []
    weight = 0
    for item in items:
        size = len(msgspec.json.encode(item.payload))
        if batch and (len(batch) == _BATCH or weight + size > _BATCH_BYTES):
            yield batch
            batch, weight = [], 0
        batch.append(item)
        weight += size
    if batch:
        yield batch


def _begin(dump: Dump, triage: Sorted, *, dry_run: bool) -> Report:
    """Count all items before sending, so that the totals can be checked afterwards."""
    report = Report(dry_run, others=dump.others)
    kinds = [item.kind for item in [*triage.send, *triage.already, *triage.history]]
    for kind in [*kinds, *(reject.kind for reject in triage.rejects)]:
        report.of(kind).read += 1
    for item in triage.history:
        report.of(item.kind).history += 1
    names = Counter(name for kind, _, record in dump.each() for name in unmapped(kind, record))
    report.unmapped = dict(names)
    return report


def keep_rejects(path: Path, rejects: Iterable[Reject], gone: set[tuple[str, str]]) -> None:
    """Append rejects to the file, and drop its lines about (kind, id) in `gone`, now outdated."""
    lines = [line for line in _lines(path) if _about(line) not in gone]
    if not (rejects := list(rejects)) and not path.exists():
        return
    replace(path, "".join([*lines, *map(_reject_line, rejects)]).encode())


def _keep_rejects(report: Report, path: Path, dump: Dump, rejects: list[Reject]) -> None:
    keep_rejects(path, rejects, {(kind, id) for kind, id, _ in dump.each()})
    report.rejects_file = str(path) if rejects else None


def _keep_history(report: Report, path: Path | None, history: list[Item]) -> None:
    if path is None:
        return
    rows = [{"kind": i.kind, "id": i.id, "to": i.to, "record": i.record} for i in by_age(history)]
    replace(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    report.history_file = str(path)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def _about(line: str) -> tuple[Any, Any]:
    reject = json.loads(line)
    return reject["kind"], reject["id"]


def _reject_line(reject: Reject) -> str:
    return kept({name: getattr(reject, name) for name in reject.__struct_fields__}) + "\n"
