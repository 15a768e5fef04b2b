"""Phase two without changes to senders: every message sent through the gateway is mirrored.

The gateway queues a copy of each send in the transaction of that send. The mirror writes copies to
the legacy document and then removes them from the queue, so that a crash at any moment makes it
write some of them again, which changes nothing: the document has each under its event id.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from gatepost.clock import Clock
from gatepost.connect.gateway_endpoint import LocateGateway
from gatepost.connect.http_calls import AsyncHttpCalls, read_body
from gatepost.errors import WrongState
from gatepost.migration import phase_marker
from gatepost.migration.legacy_file import LegacyFile, LegacyRecords, open_legacy_file
from gatepost.migration.legacy_records import (
    EVENT_FIELD,
    AgentNames,
    LegacyItem,
    LegacyKind,
    parse_legacy_record,
)
from gatepost.migration.migration_files import MigrationFolder
from gatepost.migration.migration_ledger import MigrationLedger
from gatepost.migration.phase_marker import MigrationCommand, MigrationPhase
from gatepost.wire.mirror_views import MirrorDone, MirroredMessage, MirrorPage, MirrorSwitch
from gatepost.wire.operations import Count

# The field under which a task of the legacy document travels in a message.
TASK_FIELD = "legacyTask"

_PAGE = 200
_WAIT_SECS = 30.0
_TIMEOUT_SECS = 60.0


class SendMirror:
    """Call `open` once, then `copy_page` again and again; `close` leaves the queue running."""

    def __init__(
        self, locate: LocateGateway, folder: MigrationFolder, out: Path, clock: Clock
    ) -> None:
        self._calls = AsyncHttpCalls(locate)
        self._folder = folder
        self._out = out.absolute()
        self._clock = clock
        self._ledger = MigrationLedger(folder.ledger, clock)
        self._legacy: LegacyFile

    async def open(self, node_id: str) -> None:
        """Switch the queue on; from now on no send is missed."""
        marker = phase_marker.load_marker(self._folder)
        phase_marker.check_transition(marker, MigrationCommand.DUAL_WRITE, node_id)
        if marker is not None and marker.mirror not in (None, str(self._out)):
            raise WrongState(f"dual-write goes to {marker.mirror}: name that file")
        self._legacy = open_legacy_file(self._out)
        await self.switch(on=True)
        now, mirror = self._clock.now(), str(self._out)
        phase_marker.enter_phase(
            self._folder, MigrationCommand.DUAL_WRITE, node_id, now, mirror=mirror
        )

    async def close(self) -> None:
        await self._calls.close()

    async def switch(self, *, on: bool) -> None:
        """Switch the queue; off drops the copies that wait."""
        await self._calls.put("/v1/mirror", MirrorSwitch(on), MirrorPage, _TIMEOUT_SECS)

    async def copy_page(self, wait_secs: float = _WAIT_SECS) -> int:
        """Mirror the oldest messages; returns how many. Waits for one if there is none."""
        query = urlencode({"limit": _PAGE, "wait_secs": wait_secs})
        timeout = wait_secs + _TIMEOUT_SECS
        page = await self._calls.get(f"/v1/mirror?{query}", MirrorPage, timeout)
        if self._is_cut_over():
            await self.switch(on=False)
            raise WrongState("the migration was cut over: nothing is mirrored any more")
        if page.messages:
            await self._write_page(page.messages)
            done = MirrorDone(page.messages[-1].number)
            await self._calls.post("/v1/mirror/done", done, Count, _TIMEOUT_SECS)
        return len(page.messages)

    def _is_cut_over(self) -> bool:
        marker = phase_marker.load_marker(self._folder)
        return marker is not None and marker.phase is MigrationPhase.CUT_OVER

    async def _write_page(self, messages: list[MirroredMessage]) -> None:
        records: dict[LegacyKind, LegacyRecords] = {"messages": {}, "tasks": {}}
        for message in messages:
            kind, record = legacy_record(message, await self._read_payload(message))
            records[kind][message.event_id] = record
        async with self._ledger.take_turn():
            self._legacy.add_records(records)
            items = [
                item
                for kind, added in records.items()
                for id, record in added.items()
                for item in parse_legacy_record(kind, id, record, AgentNames())
                if isinstance(item, LegacyItem)
            ]
            new = [(item, item.id) for item in items if item.key not in self._ledger.entries]
            self._ledger.write_step(new, "sent", "mirror")

    async def _read_payload(self, message: MirroredMessage) -> Any:
        if message.payload_ref is None:
            return msgspec.json.decode(message.payload)  # type: ignore[arg-type]
        path = f"/v1/blobs/{message.payload_ref}"
        async with self._calls.open_response("GET", path, _TIMEOUT_SECS) as response:
            return decode_blob(await read_body(response))


def decode_blob(content: bytes) -> Any:
    """A large payload: JSON if it is JSON, else its text, else a note of its size."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"gatepostBytes": len(content)}


def legacy_record(message: MirroredMessage, payload: Any) -> tuple[LegacyKind, dict[str, Any]]:
    """The record of a message in the legacy document; a task goes to the map of tasks.

    The request of a task has names of the legacy document: `description`, `taskType`, `input`.
    """
    shared: dict[str, Any] = {EVENT_FIELD: message.event_id, "createdAt": message.sent_at}
    task = payload if message.is_task else None
    if isinstance(payload, dict) and not message.is_task:
        task = payload.get(TASK_FIELD)
    if isinstance(task, dict):
        ends = {"createdBy": message.from_agent, "assignedTo": message.to_agent}
        return "tasks", {"status": "assigned", **ends, **task, **shared}
    ends = {"fromAgentId": message.from_agent, "toAgentId": message.to_agent}
    more = {"status": "pending", "corrId": message.corr_id, **shared}
    return "messages", {**ends, "content": payload, **more}
