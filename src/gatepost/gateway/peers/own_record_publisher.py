"""Keeps the records this gateway writes about itself up to date in the room."""

from contextlib import suppress

from gatepost.errors import GatepostError
from gatepost.gateway.peers import own_records
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.room import ConnectionPresence, RecordRetention, RoomRecord
from gatepost.room.retention import finished_records

_FAREWELL_SECS = 0.5
_ANNOUNCE_MS = 15_000
_PROGRESS_MS = 30_000


class OwnRecordPublisher:
    def __init__(self, publisher: RecordPublisher) -> None:
        self._publisher = publisher
        self._replica = publisher.replica
        self._core = publisher.replica.core
        self._announced_at = 0
        self._progress_at = 0
        self._has_left = False

    async def refresh_records(self) -> None:
        """Publish changes of this node and its agents, and a heartbeat."""
        if self._has_left or not self._publisher.is_ready:
            return
        await self._replica.follow_epoch()
        async with self._publisher.claims_lock:
            agents = await self._core.read(self._core.agents.list)
            room, node = self._replica.current_room, self._core.node.id
            changes: dict[tuple[str, str], RoomRecord | None] = {
                ("nodes", node): self._replica.build_node_record(room, "online"),
                **own_records.agent_claims(room, agents, node),
                **await self._delivery_progress(),
            }
            await self._publisher.publish_records(changes)
        self._announce_presence()

    async def remove_finished_records(self) -> None:
        """Remove our finished records; the coordinator sets how long they are kept."""
        if not self._publisher.is_ready:
            return
        room = self._replica.current_room
        coordination = room.effective.coordination
        kept = RecordRetention() if coordination is None else coordination.retention
        finished = finished_records(room, self._core.clock.now(), kept)
        await self._publisher.publish_records(dict.fromkeys(finished))

    async def announce_leaving(self) -> None:
        """Publish that this node goes offline, and wait a moment until peers have received it."""
        if (room := self._replica.room) is None:
            return
        self._has_left = True
        offline = self._replica.build_node_record(room, "offline")
        with suppress(GatepostError):
            await self._publisher.publish_records({("nodes", self._core.node.id): offline})
            await self._replica.received.save_records()
        await self._replica.connections.wait_until_idle(_FAREWELL_SECS)

    async def _delivery_progress(self) -> dict[tuple[str, str], RoomRecord]:
        """Return our delivery record, but only now and then: it changes with every message."""
        now = self._core.clock.now()
        if now < self._progress_at + _PROGRESS_MS:
            return {}
        found = await self._core.read(own_records.delivery_record)
        if found is None:
            return {}
        self._progress_at = now
        return {("delivery", self._core.node.id): found}

    def _announce_presence(self) -> None:
        now = self._core.clock.now()
        if now >= self._announced_at + _ANNOUNCE_MS:
            self._announced_at = now
            presence = ConnectionPresence(node_id=self._core.node.id, status="online", seen_at=now)
            self._replica.awareness.announce_presence(presence)
