"""Tells operators what may have changed, as it changes: topics, coalesced, and no contents.

Whoever hears of a topic reads what it shows again. Without a listener nothing is watched, so that a
page that nobody looks at costs nothing. A listener that does not read keeps one set of topics.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from gatepost.core.wait_registry import WaitRegistry
from gatepost.errors import GatepostError, Unavailable
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.gateway.overview.room_ledger import RoomLedgers
from gatepost.room.service.room_replica import RoomReplica
from gatepost.wire.overview_views import ChangeNotice, Topic

_MAX_LISTENERS = 64
# Between two notices of one listener.
_COALESCE_SECS = 0.25
# How soon a change at another gateway, or of how it stands, is noticed while somebody listens.
_LOOK_SECS = 1.0
_WAIT_SECS = 3600.0


class _Listener:
    def __init__(self) -> None:
        self.topics: set[Topic] = set()
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(self, topics: tuple[Topic, ...]) -> None:
        self.topics.update(topics)
        if not self.changed.done():
            self.changed.set_result(None)

    def take(self) -> list[Topic]:
        topics, self.topics = sorted(self.topics), set()
        self.changed = asyncio.get_running_loop().create_future()
        return topics


class ChangeStream:
    def __init__(
        self,
        operations: Operations,
        replica: RoomReplica,
        peers: PeerStatuses,
        ledgers: RoomLedgers,
    ) -> None:
        self._core = operations.core
        self._waits: WaitRegistry = operations.waits
        self._peers = peers
        self._ledgers = ledgers
        self._listeners: set[_Listener] = set()
        self._looking: asyncio.Task[None] | None = None
        self._seen_nodes: object = None
        replica.watch_changes(lambda _: self._note("room", "nodes"))
        operations.tasks.watchers.listeners.append(lambda _: self._note("tasks"))

    @property
    def listener_count(self) -> int:
        return len(self._listeners)

    def require_place(self) -> None:
        if len(self._listeners) >= _MAX_LISTENERS:
            raise Unavailable("too many watch the changes already", retry_after=5.0)

    async def listen(self) -> AsyncGenerator[ChangeNotice, None]:
        """Yield what changed, as soon as it does, until the gateway stops.

        The first notice has all topics, so that a listener that comes back reads everything again.
        """
        self.require_place()
        listener = _Listener()
        listener.note(("messages", "tasks", "ledger", "room", "nodes"))
        self._add(listener)
        try:
            while not self._waits.is_stopping:
                if not await self._waits.wait_for(listener.changed, _WAIT_SECS):
                    continue
                yield ChangeNotice(listener.take(), self._core.clock.now())
                await asyncio.sleep(_COALESCE_SECS)
        finally:
            self._remove(listener)

    def _add(self, listener: _Listener) -> None:
        self._listeners.add(listener)
        if self._looking is None:
            self._core.observer.watch_commits(self._note_commit)
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def _remove(self, listener: _Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners and self._looking is not None:
            self._core.observer.ignore_commits(self._note_commit)
            self._looking.cancel()
            self._looking = None

    def _note(self, *topics: Topic) -> None:
        for listener in self._listeners:
            listener.note(topics)

    def _note_commit(self, value: Any, error: GatepostError | None) -> None:
        self._note("messages", "ledger")

    async def _look(self) -> None:
        """Look for what no commit of this gateway tells, for as long as somebody listens."""
        while True:
            await asyncio.sleep(_LOOK_SECS)
            with contextlib.suppress(GatepostError):
                if await self._ledgers.ask():
                    self._note("ledger")
                nodes = await self._describe_nodes()
                if nodes != self._seen_nodes:
                    self._seen_nodes = nodes
                    self._note("nodes")

    async def _describe_nodes(self) -> object:
        peers = await self._peers.describe_peers()
        states = [
            (p.id, p.status, p.linked, p.relay, p.waiting, p.accepted, p.problem) for p in peers
        ]
        return states, self._peers.publisher(), self._peers.mesh_problems()
