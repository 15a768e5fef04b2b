"""Keeps the records this gateway writes about itself up to date in the room."""

from contextlib import suppress
from itertools import islice

from gatepost.core.health import HealthStatus
from gatepost.errors import GatepostError
from gatepost.room import (
    ConnectionPresence,
    RevocationRecord,
    RoomChange,
    RoomRecord,
    SignedRecord,
    TransportRecord,
)
from gatepost.room.awareness import shorten_reason
from gatepost.room.records import key_subject
from gatepost.room.service import own_records
from gatepost.room.service.record_announcer import RecordAnnouncer, RecordChanges

_FAREWELL_SECS = 0.5
_ANNOUNCE_MS = 15_000
_PROGRESS_MS = 30_000
_CLAIMS_MS = 60_000
# The most records that are signed before the event loop does other work.
_RECORDS_AT_ONCE = 256


class OwnRecordAnnouncer:
    def __init__(self, announcer: RecordAnnouncer) -> None:
        self._announcer = announcer
        self._replica = announcer.replica
        self._core = announcer.replica.core
        self._announced_at = 0
        self._announced: HealthStatus | None = None
        self._progress_at = 0
        # After how many commit groups the journal was last read for the delivery record.
        self._seen_groups = -1
        self._has_left = False
        # Claims are derived again after a change of an agent or its record, and periodically.
        self._claims_at = 0
        self._are_claims_stale = True
        self._watched: frozenset[str] = frozenset()
        self._replica.watch_changes(self._note_change)

    def note_agents_changed(self) -> None:
        self._are_claims_stale = True

    def _note_change(self, change: RoomChange | None) -> None:
        """Note a change of the room, or its replacement by another document."""
        self._are_claims_stale |= change is None or any(
            map(self._may_change_claims, change.changed)
        )

    def _may_change_claims(self, signed: SignedRecord) -> bool:
        is_revocation = isinstance(signed.data, RevocationRecord)
        return is_revocation or (
            signed.map == "agents" and key_subject(signed.key) in self._watched
        )

    async def refresh_records(self) -> None:
        """Publish changes of this node and its agents, and a heartbeat."""
        if self._has_left or not self._announcer.is_ready:
            return
        status = self._core.health.current_status()
        # Before the record, because with a full disk only the connections can show the status.
        self._announce_presence(status)
        await self._replica.follow_epoch()
        async with self._announcer.claims_lock:
            room, node = self._replica.current_room, self._core.node.id
            await self._announcer.publish_records(
                {
                    ("nodes", node): self._replica.build_node_record(room, status),
                    **self._transport_addresses(),
                    **await self._delivery_progress(),
                }
            )
            await self._publish_claims()

    async def _publish_claims(self) -> None:
        now = self._core.clock.now()
        if not self._are_claims_stale and self._claims_at <= now < self._claims_at + _CLAIMS_MS:
            return
        self._are_claims_stale = False
        try:
            agents = await self._core.read(self._core.agents.list)
            room = self._replica.current_room
            claims = own_records.agent_claims(room, agents, self._core.node.id)
            self._watched = frozenset(a.id for a in agents) | {key_subject(k) for _, k in claims}
            await self._publish_in_parts(claims)
        except BaseException:
            self._are_claims_stale = True
            raise
        self._claims_at = now

    async def _publish_in_parts(self, changes: RecordChanges) -> None:
        pending = iter(changes.items())
        while part := dict(islice(pending, _RECORDS_AT_ONCE)):
            await self._announcer.publish_records(part)

    async def announce_leaving(self) -> None:
        """Publish that this node goes offline, and wait a moment until peers have received it."""
        if (room := self._replica.room) is None:
            return
        self._has_left = True
        offline = self._replica.build_node_record(room, "offline")
        with suppress(GatepostError):
            await self._announcer.publish_records({("nodes", self._core.node.id): offline})
            await self._replica.received.save_records()
        await self._replica.connections.wait_until_idle(_FAREWELL_SECS)

    def _transport_addresses(self) -> dict[tuple[str, str], RoomRecord | None]:
        """Return our addresses for datagrams; None if we no longer have one."""
        transport = self._replica.transport
        record = None if transport == TransportRecord() else transport
        return {("transports", self._core.node.id): record}

    async def _delivery_progress(self) -> dict[tuple[str, str], RoomRecord]:
        """Return our delivery record at intervals, because it changes with every message."""
        now = self._core.clock.now()
        groups = self._core.writer.group_count
        if now < self._progress_at + _PROGRESS_MS or groups == self._seen_groups:
            return {}
        self._seen_groups = groups
        found = await self._core.read(own_records.delivery_record)
        if found is None:
            return {}
        self._progress_at = now
        return {("delivery", self._core.node.id): found}

    def _announce_presence(self, status: HealthStatus) -> None:
        now = self._core.clock.now()
        if status != self._announced or now >= self._announced_at + _ANNOUNCE_MS:
            self._announced, self._announced_at = status, now
            found = self._core.health.find_reason()
            reason = None if found is None else shorten_reason(found)
            self._replica.awareness.announce_presence(
                ConnectionPresence(
                    node_id=self._core.node.id, status=status, reason=reason, seen_at=now
                )
            )
