"""Copies of sent messages, for a legacy document that old readers still use.

While the mirror is switched on, every send queues a copy in its own transaction: a message that was
acknowledged is never missing in the queue. `gatepost migrate mirror` takes the copies from there.
"""

import asyncio
from collections.abc import Callable, Iterable

from msgspec import UNSET, Raw, UnsetType

from gatepost.errors import Unavailable
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal import Tx
from gatepost.journal.facts import find_fact, save_fact
from gatepost.journal.transaction import Row
from gatepost.tasks.task_request import RequestContent
from gatepost.tasks.task_table import Task
from gatepost.wire.mirror_views import MirroredMessage, MirrorPage
from gatepost.wire.operations import NewSend, Sent
from gatepost.wire.tasks import NewTask

# Sends are refused while this many copies wait for `gatepost migrate mirror`.
MAX_WAITING = 100_000
# Idempotency keys of messages that come from the legacy document.
LEGACY_KEY_PREFIX = "legacy:"

_FACT = "mirror"
_ADD_COPY = """
INSERT OR IGNORE INTO mirror (event_id, from_agent, to_agent, corr_id, sent_at, payload, digest,
    is_task)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_COPIES = """
SELECT number, event_id, from_agent, to_agent, corr_id, sent_at, payload, digest, is_task
FROM mirror ORDER BY number LIMIT ?
"""
# The blobs that waiting copies refer to.
MIRRORED_BLOBS_SQL = "SELECT digest FROM mirror WHERE digest IS NOT NULL"
_SELECT_SPAN = """
SELECT (SELECT min(number) FROM mirror), (SELECT max(number) FROM mirror)
"""


class MirrorQueue:
    """`is_on` is a copy in memory of the switch in the journal."""

    def __init__(self) -> None:
        self.is_on = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._call_soon: Callable[[Callable[[], None]], object] = lambda call: call()

    def start(self, tx: Tx, loop: asyncio.AbstractEventLoop) -> None:
        self.is_on = find_fact(tx, _FACT) == "on"
        self._call_soon = loop.call_soon_threadsafe

    def switch(self, tx: Tx, on: bool) -> None:
        """Switch the mirror on or off. Switching it off drops the copies that still wait."""
        save_fact(tx, _FACT, "on" if on else "off")
        if not on:
            tx.execute("DELETE FROM mirror")
        before = self.is_on
        tx.add_effect(lambda: setattr(self, "is_on", on))
        tx.on_rollback(lambda: setattr(self, "is_on", before))

    def add_copies(self, tx: Tx, sends: Iterable[tuple[NewSend, Sent]]) -> None:
        """Queue copies of new messages, except those that came from the legacy document."""
        if not self.is_on:
            return
        self._check_capacity(tx)
        for new, sent in sends:
            if _is_legacy_key(new.idempotency_key):
                continue
            for copy in sent.copies or [sent]:
                if copy.error is None:
                    self._add_copy(tx, new, copy)
        tx.add_effect(self._wake_readers)

    def add_task_copies(
        self, tx: Tx, created: Iterable[tuple[NewTask, RequestContent, Iterable[Task]]]
    ) -> None:
        """Queue the tasks that were created just now, unless they came from the legacy document."""
        if not self.is_on:
            return
        self._check_capacity(tx)
        for new, content, tasks in created:
            if _is_legacy_key(new.idempotency_key):
                continue
            inline = None if content.digest else content.payload
            for task in tasks:
                ends = (parse_event_id(task.id), task.requester, task.agent, task.id)
                tx.execute(_ADD_COPY, (*ends, tx.now, inline, content.digest, 1))
        tx.add_effect(self._wake_readers)

    def _add_copy(self, tx: Tx, new: NewSend, sent: Sent) -> None:
        inline = None if isinstance(new.payload, UnsetType) else bytes(new.payload)
        digest = None if isinstance(new.payload_ref, UnsetType) else new.payload_ref
        to = sent.to_agent or new.to_agent
        ends = (parse_event_id(sent.event_id), new.from_agent, to, sent.corr_id)
        tx.execute(_ADD_COPY, (*ends, tx.now, inline, digest, 0))

    def _check_capacity(self, tx: Tx) -> None:
        if self.count_waiting(tx) >= MAX_WAITING:
            raise Unavailable(
                f"{MAX_WAITING:,} messages wait for the legacy document: run"
                " `gatepost migrate mirror`, or switch it off with --off",
                retry_after=5.0,
            )

    def count_waiting(self, tx: Tx) -> int:
        """An upper bound of the waiting copies, whose numbers are consecutive."""
        ((first, last),) = tx.fetch_all(_SELECT_SPAN)
        return 0 if first is None else int(last) - int(first) + 1

    def read_page(self, tx: Tx, limit: int) -> MirrorPage:
        found = [_mirrored_message(row) for row in tx.fetch_all(_SELECT_COPIES, (limit,))]
        return MirrorPage(self.is_on, self.count_waiting(tx), found)

    def remove_copies(self, tx: Tx, through: int) -> int:
        tx.execute("DELETE FROM mirror WHERE number <= ?", (through,))
        return tx.changed_rows()

    def next_copy(self) -> "asyncio.Future[None]":
        """Resolved when a copy is queued. Its commit group may not be on disk yet."""
        added: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(added)
        added.add_done_callback(self._waiting.discard)
        return added

    def _wake_readers(self) -> None:
        """Called in the writer's thread."""
        if self._waiting:
            self._call_soon(self._resolve_waiting)

    def _resolve_waiting(self) -> None:
        for added in list(self._waiting):
            if not added.done():
                added.set_result(None)


def _is_legacy_key(key: str | UnsetType) -> bool:
    return not isinstance(key, UnsetType) and key.startswith(LEGACY_KEY_PREFIX)


def _mirrored_message(row: Row) -> MirroredMessage:
    number, id, from_agent, to_agent, corr_id, sent_at, payload, digest, is_task = row
    inline = UNSET if payload is None else Raw(payload)
    ends = (from_agent, to_agent, corr_id, sent_at)
    return MirroredMessage(number, format_event_id(id), *ends, inline, digest, bool(is_task))
