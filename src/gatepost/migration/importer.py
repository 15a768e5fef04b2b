"""Phase one: sends every undelivered item of a dump to the gateway, once, even if repeated."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from gatepost.client import Client
from gatepost.clock import Clock
from gatepost.migration import phase_marker
from gatepost.migration.import_summary import ImportSummary
from gatepost.migration.item_sender import (
    PERMANENT_ERRORS,
    ItemTriage,
    reject_refused,
    send_items,
    triage_items,
)
from gatepost.migration.json_values import render_json
from gatepost.migration.legacy_dump import LegacyDump
from gatepost.migration.legacy_records import (
    AgentNames,
    LegacyItem,
    RejectedItem,
    sort_by_age,
    unmapped_fields,
)
from gatepost.migration.migration_files import MigrationFolder, replace_file
from gatepost.migration.migration_ledger import MigrationLedger
from gatepost.migration.outcome_client import OutcomeClient
from gatepost.migration.phase_marker import MigrationCommand
from gatepost.wire.operations import NewSend, SendCheck

_MAX_BATCH_ITEMS, _MAX_BATCH_BYTES = 100, 512 * 1024


class ImportPlan(Struct, frozen=True):
    """Import options: agent names, TTL of sent items, files for rejects and finished items."""

    names: AgentNames = msgspec.field(default_factory=AgentNames)
    ttl_secs: float | None = None
    rejects: Path | None = None
    history: Path | None = None


async def import_dump(
    client: Client, folder: MigrationFolder, dump: LegacyDump, plan: ImportPlan, clock: Clock
) -> ImportSummary:
    """Import a dump and update the phase marker."""
    node_id = (await client.status()).node_id
    phase_marker.check_transition(
        phase_marker.load_marker(folder), MigrationCommand.IMPORT, node_id
    )
    report = await send_dump(client, folder, dump, plan, clock)
    phase_marker.enter_phase(
        folder, MigrationCommand.IMPORT, node_id, clock.now(), counts=report.total
    )
    return report


def survey_dump(
    folder: MigrationFolder, dump: LegacyDump, plan: ImportPlan, clock: Clock
) -> ImportSummary:
    """Report what a dump holds, without a gateway. Writes only the files named in the plan."""
    triage = triage_items(
        dump.parse_items(plan.names), MigrationLedger(folder.ledger, clock), clock.now()
    )
    return _report_survey(dump, triage, plan)


def _report_survey(dump: LegacyDump, triage: ItemTriage, plan: ImportPlan) -> ImportSummary:
    report = _start_report(dump, triage, dry_run=True)
    report.count_items(triage.to_send, triage.already_imported)
    report.count_rejects(triage.rejects)
    if plan.rejects is not None:
        _write_run_rejects(report, plan.rejects, dump, triage.rejects)
    _write_history(report, plan.history, triage.history)
    return report


async def rehearse_import(
    lookup: OutcomeClient, folder: MigrationFolder, dump: LegacyDump, plan: ImportPlan, clock: Clock
) -> ImportSummary:
    """Report what an import would do, with the gateway's refusals. Nothing is sent."""
    triage = triage_items(
        dump.parse_items(plan.names), MigrationLedger(folder.ledger, clock), clock.now()
    )
    accepted: list[LegacyItem] = []
    for batch in split_batches(sort_by_age(triage.to_send)):
        answers = await lookup.check_sends(_describe_sends(batch, plan.ttl_secs))
        for item, answer in zip(batch, answers, strict=True):
            error = None if answer.error is None else answer.error.to_error()
            if isinstance(error, PERMANENT_ERRORS):
                triage.rejects.append(reject_refused(item, error))
            else:
                accepted.append(item)
    triage.to_send = accepted
    return _report_survey(dump, triage, plan)


def _describe_sends(items: Iterable[LegacyItem], ttl_secs: float | None) -> SendCheck:
    """The messages that an import would send; a payload that is uploaded first is left out."""
    check = SendCheck([])
    for index, item in enumerate(items):
        payload = msgspec.json.encode(item.payload)
        if len(payload) > _MAX_BATCH_BYTES:
            check.left_out[str(index)], payload = len(payload), b"null"
        check.messages.append(
            NewSend(
                item.sender,
                to_agent=item.to,
                payload=Raw(payload),
                idempotency_key=item.key,
                corr_id=UNSET if item.corr_id is None else item.corr_id,
                ttl_secs=UNSET if ttl_secs is None else ttl_secs,
            )
        )
    return check


async def send_dump(
    client: Client, folder: MigrationFolder, dump: LegacyDump, plan: ImportPlan, clock: Clock
) -> ImportSummary:
    """Send all open items in batches. Each batch is in the ledger before the next starts."""
    ledger = MigrationLedger(folder.ledger, clock)
    triage = triage_items(dump.parse_items(plan.names), ledger, clock.now())
    report = _start_report(dump, triage, dry_run=False)
    report.count_items((), triage.already_imported)
    rejects = list(triage.rejects)
    for batch in split_batches(sort_by_age(triage.to_send)):
        async with ledger.take_turn():
            # Another process may have sent some of them meanwhile.
            now = triage_items(batch, ledger, clock.now())
            results = await send_items(client, ledger, now.to_send, ttl_secs=plan.ttl_secs)
        refused = [
            reject_refused(i, results.refused[i.key])
            for i in now.to_send
            if i.key in results.refused
        ]
        report.count_items(
            [i for i in now.to_send if i.key in results.event_ids], now.already_imported
        )
        rejects += now.rejects + refused
    report.count_rejects(rejects)
    _write_run_rejects(report, plan.rejects or folder.rejects, dump, rejects)
    _write_history(report, plan.history, triage.history)
    return report


def split_batches(items: Iterable[LegacyItem]) -> Iterator[list[LegacyItem]]:
    """Split items into batches, in order, each small enough for one frame.

    A batch is answered before the next is sent. Later items therefore do not overtake a payload
    that has to be uploaded first.
    """
    batch: list[LegacyItem] = []
    weight = 0
    for item in items:
        size = len(msgspec.json.encode(item.payload))
        if batch and (len(batch) == _MAX_BATCH_ITEMS or weight + size > _MAX_BATCH_BYTES):
            yield batch
            batch, weight = [], 0
        batch.append(item)
        weight += size
    if batch:
        yield batch


def _start_report(dump: LegacyDump, triage: ItemTriage, *, dry_run: bool) -> ImportSummary:
    """Count all items before sending, so that the totals can be checked afterwards."""
    report = ImportSummary(dry_run, others=dump.others)
    kinds = [item.kind for item in [*triage.to_send, *triage.already_imported, *triage.history]]
    for kind in [*kinds, *(reject.kind for reject in triage.rejects)]:
        report.counts_of(kind).read += 1
    for item in triage.history:
        report.counts_of(item.kind).history += 1
    names = Counter(
        name for kind, _, record in dump.iter_records() for name in unmapped_fields(kind, record)
    )
    report.unmapped = dict(names)
    return report


def write_rejects(path: Path, rejects: Iterable[RejectedItem], gone: set[tuple[str, str]]) -> None:
    """Append rejects to the file, and drop its lines about (kind, id) in `gone`, now outdated."""
    lines = [line for line in _read_lines(path) if _reject_subject(line) not in gone]
    if not (rejects := list(rejects)) and not path.exists():
        return
    replace_file(path, "".join([*lines, *map(_encode_reject, rejects)]).encode())


def _write_run_rejects(
    report: ImportSummary, path: Path, dump: LegacyDump, rejects: list[RejectedItem]
) -> None:
    write_rejects(path, rejects, {(kind, id) for kind, id, _ in dump.iter_records()})
    report.rejects_file = str(path) if rejects else None


def _write_history(report: ImportSummary, path: Path | None, history: list[LegacyItem]) -> None:
    if path is None:
        return
    rows = [
        {"kind": i.kind, "id": i.id, "to": i.to, "record": i.record} for i in sort_by_age(history)
    ]
    replace_file(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    report.history_file = str(path)


def _read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def _reject_subject(line: str) -> tuple[Any, Any]:
    reject = json.loads(line)
    return reject["kind"], reject["id"]


def _encode_reject(reject: RejectedItem) -> str:
    return render_json({name: getattr(reject, name) for name in reject.__struct_fields__}) + "\n"
