"""Phase two: messages sent through the gateway are also written to the legacy file.

Sends that wait at the same time form a group. A group is first written to a file, then sent, then
added to the legacy document; then its file is deleted. A process that finds the file of an
interrupted group finishes the group. Every step may be repeated, because the gateway and the
document each accept a message once.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

from gatepost.client import Client
from gatepost.clock import Clock, SystemClock
from gatepost.errors import (
    ConfigError,
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidRequest,
    Unavailable,
    WrongState,
)
from gatepost.events import EventIdGenerator
from gatepost.migration import phase_marker
from gatepost.migration.importer import write_rejects
from gatepost.migration.item_sender import SentItems, send_items, triage_items
from gatepost.migration.legacy_file import LegacyFile, LegacyRecords, mirrored_ids, open_legacy_file
from gatepost.migration.legacy_records import (
    EVENT_FIELD,
    AgentNames,
    LegacyItem,
    RejectedItem,
    parse_legacy_record,
)
from gatepost.migration.migration_files import MigrationFolder, remove_file, replace_file
from gatepost.migration.migration_ledger import MigrationLedger
from gatepost.migration.phase_marker import MigrationCommand, MigrationPhase

_GROUP_MAX = 256
_QUEUE_MAX = 10_000


class MirroredSend(Struct):
    """One send that waits for its group to finish."""

    item: LegacyItem
    done: "asyncio.Future[str]"


class LegacyMirror:
    """`async with LegacyMirror(client, folder, out) as mirror: await mirror.send("bob", "hi")`.

    It does not open after the cut-over. A mirror open at that time continues to send, but only to
    the gateway.
    """

    def __init__(
        self, client: Client, folder: MigrationFolder, out: Path, clock: Clock | None = None
    ) -> None:
        self._client = client
        self._folder = folder
        self._out = out.absolute()
        self._clock = clock or SystemClock()
        self._ids = EventIdGenerator(self._clock)
        self._ledger = MigrationLedger(folder.ledger, self._clock)
        self._queue: asyncio.Queue[MirroredSend] = asyncio.Queue(_QUEUE_MAX)
        self._legacy: LegacyFile
        self._worker: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        node_id = (await self._client.status()).node_id
        marker = phase_marker.load_marker(self._folder)
        phase_marker.check_transition(marker, MigrationCommand.DUAL_WRITE, node_id)
        if marker is not None and marker.mirror not in (None, str(self._out)):
            raise WrongState(f"dual-write goes to {marker.mirror}: name that file")
        self._legacy = open_legacy_file(self._out)
        async with self._ledger.take_turn():
            await finish_interrupted_group(self._client, self._ledger, self._folder, self._legacy)
            now = self._clock.now()
            phase_marker.enter_phase(
                self._folder, MigrationCommand.DUAL_WRITE, node_id, now, mirror=str(self._out)
            )
        self._worker = asyncio.create_task(self._process_groups())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._worker.cancel()
        await asyncio.wait([self._worker])
        while not self._queue.empty():
            _fail_send(
                self._queue.get_nowait(), Unavailable("the mirror was closed; this was not sent")
            )

    async def send(
        self,
        to: str,
        payload: Any,
        *,
        from_: str | None = None,
        corr_id: str | None = None,
        idempotency_key: str | None = None,
        timeout: float = 30.0,
    ) -> str:
        """Send to both sides. Return the event id once both have the message on disk."""
        sender = from_ or self._client.name
        if sender is None:
            raise InvalidRequest("say who sends: `from_=`, or `Client(name)` for all calls")
        record = {"fromAgentId": sender, "toAgentId": to, "content": _json_payload(payload)}
        record |= {"status": "pending", "createdAt": self._clock.now()}
        if corr_id is not None:
            record["corrId"] = corr_id
        mirrored = MirroredSend(
            _build_item(self._legacy_id(sender, idempotency_key), record), _new_future()
        )
        try:
            async with asyncio.timeout(timeout):
                await self._queue.put(mirrored)
                return await mirrored.done
        except TimeoutError:
            raise DeadlineExceeded("no answer in time, so the outcome is unknown") from None

    def _legacy_id(self, sender: str, key: str | None) -> str:
        """The legacy id. A repeated send under the caller's key gets the same id."""
        if key is None:
            return self._ids.next_id()
        return "key-" + hashlib.sha256(f"{sender}\n{key}".encode()).hexdigest()[:40]

    async def _process_groups(self) -> None:
        while True:
            group = [await self._queue.get()]
            while len(group) < _GROUP_MAX and not self._queue.empty():
                group.append(self._queue.get_nowait())
            try:
                await self._send_group(group)
            except asyncio.CancelledError:
                for mirrored in group:
                    _fail_send(
                        mirrored, Unavailable("the mirror was closed; the outcome is unknown")
                    )
                raise
            except Exception as error:
                for mirrored in group:
                    _fail_send(mirrored, error)

    async def _send_group(self, group: list[MirroredSend]) -> None:
        """Send one group within a turn, after finishing an interrupted group."""
        first: dict[str, LegacyItem] = {}
        for mirrored in group:
            first.setdefault(mirrored.item.key, mirrored.item)
        async with self._ledger.take_turn():
            legacy = None if _is_cut_over(self._folder) else self._legacy
            await finish_interrupted_group(self._client, self._ledger, self._folder, legacy)
            records = {item.id: item.record for item in first.values()}
            replace_file(self._folder.mirror_group, msgspec.json.encode(records))
            results = await finish_interrupted_group(
                self._client, self._ledger, self._folder, legacy
            )
        for mirrored in group:
            same = first[mirrored.item.key].digest == mirrored.item.digest
            _resolve_send(mirrored, results if same else SentItems())


async def finish_interrupted_group(
    client: Client, ledger: MigrationLedger, folder: MigrationFolder, legacy: LegacyFile | None
) -> SentItems:
    """Bring the group on disk, if any, to both sides. Call it within a turn of the ledger."""
    if not folder.mirror_group.exists():
        return SentItems()
    records = _read_group(folder)
    triage = triage_items(
        [_build_item(id, record) for id, record in records.items()], ledger, ledger.now()
    )
    results = await send_items(client, ledger, triage.to_send, origin="mirror")
    for item in triage.already_imported:
        results.event_ids[item.key] = ledger.entries[item.key].event_id
    sent = [
        item
        for item in [*triage.to_send, *triage.already_imported]
        if item.key in results.event_ids
    ]
    if legacy is not None and sent:
        records = {i.id: i.record | {EVENT_FIELD: results.event_ids[i.key]} for i in sent}
        legacy.add_records({"messages": records})
    _keep_rejects(folder, triage.rejects)
    remove_file(folder.mirror_group)
    return results


def _read_group(folder: MigrationFolder) -> LegacyRecords:
    try:
        return msgspec.json.decode(folder.mirror_group.read_bytes(), type=LegacyRecords)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{folder.mirror_group} is damaged: {error}") from None


def _keep_rejects(folder: MigrationFolder, rejects: list[RejectedItem]) -> None:
    """Write items that can go to neither side: their result is unknown, or they changed."""
    if rejects:
        write_rejects(folder.rejects, rejects, {(each.kind, each.id) for each in rejects})


class MirrorDifference(Struct):
    """Message counts of both sides of the mirror, and the ids that only one of them has."""

    gateway: int
    legacy: int
    only_gateway: list[str]
    only_legacy: list[str]
    interrupted: int

    @property
    def is_equal(self) -> bool:
        return not (self.only_gateway or self.only_legacy or self.interrupted)


def compare_mirror(folder: MigrationFolder, out: Path, clock: Clock) -> MirrorDifference:
    """Compare the mirrored messages in the ledger with those in the legacy file."""
    entries = MigrationLedger(folder.ledger, clock).entries.values()
    sent = {entry.id for entry in entries if entry.origin == "mirror" and entry.is_sent}
    legacy = mirrored_ids(out)
    waiting = len(_read_group(folder)) if folder.mirror_group.exists() else 0
    return MirrorDifference(
        len(sent), len(legacy), sorted(sent - legacy), sorted(legacy - sent), waiting
    )


def _build_item(id: str, record: dict[str, Any]) -> LegacyItem:
    (found,) = parse_legacy_record("messages", id, record, AgentNames())
    if isinstance(found, RejectedItem):
        raise InvalidRequest(f"this cannot be mirrored: {found.reason}")
    return found


def _json_payload(payload: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not JSON-encodable: {error}") from None


def _is_cut_over(folder: MigrationFolder) -> bool:
    marker = phase_marker.load_marker(folder)
    return marker is not None and marker.phase is MigrationPhase.CUT_OVER


def _new_future() -> "asyncio.Future[str]":
    return asyncio.get_running_loop().create_future()


def _resolve_send(mirrored: MirroredSend, results: SentItems) -> None:
    key = mirrored.item.key
    if key in results.event_ids:
        if not mirrored.done.done():
            mirrored.done.set_result(results.event_ids[key])
    else:
        conflict = IdempotencyConflict("this idempotency key was used with another message")
        _fail_send(mirrored, results.refused.get(key, conflict))


def _fail_send(mirrored: MirroredSend, error: Exception) -> None:
    if not mirrored.done.done():
        mirrored.done.set_exception(error)
