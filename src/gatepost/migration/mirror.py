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
from gatepost.migration import phase
from gatepost.migration.fields import EVENT_FIELD, Item, Names, Reject, understand
from gatepost.migration.files import Folder, remove, replace
from gatepost.migration.handover import Handed, hand_over, sort
from gatepost.migration.importing import keep_rejects
from gatepost.migration.ledger import Ledger
from gatepost.migration.legacy_file import LegacyFile, Records, mirrored_ids, open_legacy
from gatepost.migration.phase import Command, Phase

_GROUP_MAX = 256
_QUEUE_MAX = 10_000


class Letter(Struct):
    """One send that waits for its group to finish."""

    item: Item
    done: "asyncio.Future[str]"


class LegacyMirror:
    """`async with LegacyMirror(client, folder, out) as mirror: await mirror.send("bob", "hi")`.

    It does not open after the cut-over. A mirror open at that time continues to send, but only to
    the gateway.
    """

    def __init__(
        self, client: Client, folder: Folder, out: Path, clock: Clock | None = None
    ) -> None:
        self._client = client
        self._folder = folder
        self._out = out.absolute()
        self._clock = clock or SystemClock()
        self._ids = EventIdGenerator(self._clock)
        self._ledger = Ledger(folder.ledger, self._clock)
        self._queue: asyncio.Queue[Letter] = asyncio.Queue(_QUEUE_MAX)
        self._legacy: LegacyFile
        self._worker: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        node_id = (await self._client.status()).node_id
        marker = phase.load(self._folder)
        phase.allowed(marker, Command.DUAL_WRITE, node_id)
        if marker is not None and marker.mirror not in (None, str(self._out)):
            raise WrongState(f"dual-write goes to {marker.mirror}: name that file")
        self._legacy = open_legacy(self._out)
        async with self._ledger.turn():
            await finish_interrupted(self._client, self._ledger, self._folder, self._legacy)
            now = self._clock.now()
            phase.enter(self._folder, Command.DUAL_WRITE, node_id, now, mirror=str(self._out))
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._worker.cancel()
        await asyncio.wait([self._worker])
        while not self._queue.empty():
            _fail(self._queue.get_nowait(), Unavailable("the mirror was closed; this was not sent"))

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
        record = {"fromAgentId": sender, "toAgentId": to, "content": _json(payload)}
        record |= {"status": "pending", "createdAt": self._clock.now()}
        if corr_id is not None:
            record["corrId"] = corr_id
        mirrored = Letter(_item(self._id(sender, idempotency_key), record), _future())
        try:
            async with asyncio.timeout(timeout):
                await self._queue.put(mirrored)
                return await mirrored.done
        except TimeoutError:
            raise DeadlineExceeded("no answer in time, so the outcome is unknown") from None

    def _id(self, sender: str, key: str | None) -> str:
        """The legacy id. A repeated send under the caller's key gets the same id."""
        if key is None:
            return self._ids.next_id()
        return "key-" + hashlib.sha256(f"{sender}\n{key}".encode()).hexdigest()[:40]

    async def _work(self) -> None:
        while True:
            group = [await self._queue.get()]
            while len(group) < _GROUP_MAX and not self._queue.empty():
                group.append(self._queue.get_nowait())
            try:
                await self._take(group)
            except asyncio.CancelledError:
                for mirrored in group:
                    _fail(mirrored, Unavailable("the mirror was closed; the outcome is unknown"))
                raise
            except Exception as error:
                for mirrored in group:
                    _fail(mirrored, error)

    async def _take(self, group: list[Letter]) -> None:
        """Send one group within a turn, after finishing an interrupted group."""
        first: dict[str, Item] = {}
        for mirrored in group:
            first.setdefault(mirrored.item.key, mirrored.item)
        async with self._ledger.turn():
            legacy = None if _is_cut_over(self._folder) else self._legacy
            await finish_interrupted(self._client, self._ledger, self._folder, legacy)
            records = {item.id: item.record for item in first.values()}
            replace(self._folder.group, msgspec.json.encode(records))
            results = await finish_interrupted(self._client, self._ledger, self._folder, legacy)
        for mirrored in group:
            same = first[mirrored.item.key].digest == mirrored.item.digest
            _resolve(mirrored, results if same else Handed())


async def finish_interrupted(
    client: Client, ledger: Ledger, folder: Folder, legacy: LegacyFile | None
) -> Handed:
    """Bring the group on disk, if any, to both sides. Call it within a turn of the ledger."""
    if not folder.group.exists():
        return Handed()
    records = _group(folder)
    triage = sort([_item(id, record) for id, record in records.items()], ledger, ledger.now())
    results = await hand_over(client, ledger, triage.send, origin="mirror")
    for item in triage.already:
        results.events[item.key] = ledger.entries[item.key].event_id
    sent = [item for item in [*triage.send, *triage.already] if item.key in results.events]
    if legacy is not None and sent:
        legacy.put({i.id: i.record | {EVENT_FIELD: results.events[i.key]} for i in sent})
    _keep(folder, triage.rejects)
    remove(folder.group)
    return results


def _group(folder: Folder) -> Records:
    try:
        return msgspec.json.decode(folder.group.read_bytes(), type=Records)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{folder.group} is damaged: {error}") from None


def _keep(folder: Folder, rejects: list[Reject]) -> None:
    """Write items that can go to neither side: their result is unknown, or they changed."""
    if rejects:
        keep_rejects(folder.rejects, rejects, {(each.kind, each.id) for each in rejects})


class Difference(Struct):
    """Message counts of both sides of the mirror, and the ids that only one of them has."""

    gateway: int
    legacy: int
    only_gateway: list[str]
    only_legacy: list[str]
    interrupted: int

    @property
    def equal(self) -> bool:
        return not (self.only_gateway or self.only_legacy or self.interrupted)


def compare(folder: Folder, out: Path, clock: Clock) -> Difference:
    """Compare the mirrored messages in the ledger with those in the legacy file."""
    entries = Ledger(folder.ledger, clock).entries.values()
    sent = {entry.id for entry in entries if entry.origin == "mirror" and entry.handed_over}
    legacy = mirrored_ids(out)
    waiting = len(_group(folder)) if folder.group.exists() else 0
    return Difference(len(sent), len(legacy), sorted(sent - legacy), sorted(legacy - sent), waiting)


def _item(id: str, record: dict[str, Any]) -> Item:
    (found,) = understand("messages", id, record, Names())
    if isinstance(found, Reject):
        raise InvalidRequest(f"this cannot be mirrored: {found.reason}")
    return found


def _json(payload: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not JSON-encodable: {error}") from None


def _is_cut_over(folder: Folder) -> bool:
    marker = phase.load(folder)
    return marker is not None and marker.phase is Phase.CUT_OVER


def _future() -> "asyncio.Future[str]":
    return asyncio.get_running_loop().create_future()


def _resolve(mirrored: Letter, results: Handed) -> None:
    key = mirrored.item.key
    if key in results.events:
        if not mirrored.done.done():
            mirrored.done.set_result(results.events[key])
    else:
        conflict = IdempotencyConflict("this idempotency key was used with another message")
        _fail(mirrored, results.refused.get(key, conflict))


def _fail(mirrored: Letter, error: Exception) -> None:
    if not mirrored.done.done():
        mirrored.done.set_exception(error)
