"""The room's coordinator: sweeps ended records, and rotates the room when that is worth it.

Every gateway removes its own ended records, as often and as late as the coordinator's claim says.
One gateway coordinates: the genesis of the room. It publishes its settings if they differ from
those in the room, and starts the next document when most of the present one is obsolete.
"""

from gatepost.errors import Forbidden
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.room import (
    CoordinationRecord,
    CoordinatorTerm,
    RecordRetention,
    SharedRoom,
    claim_key,
)
from gatepost.room.retention import finished_records, is_rotation_due
from gatepost.room.roles import Act, may_act, role_of

_DEFAULT_SWEEP_SECS = 600
_SECOND_MS = 1000


class RoomCoordinator:
    def __init__(self, publisher: RecordPublisher) -> None:
        self._publisher = publisher
        self._replica = publisher.replica
        self._core = publisher.replica.core
        self._swept_at: int | None = None

    async def sweep_when_due(self) -> None:
        """Sweep, if `sweepEverySeconds` have passed since the last time.

        The coordinator goes by its own settings, which it publishes with its first sweep.
        """
        if not self._publisher.is_ready:
            return
        claimed, own = self.current_claim(), self._core.settings.room
        every_secs = own.sweep_every_secs if self.is_coordinator() else claimed.sweep_every_seconds
        now, every = self._core.clock.now(), every_secs * _SECOND_MS
        if self._swept_at is None:
            self._swept_at = now
        if self._swept_at <= now < self._swept_at + every:
            return
        self._swept_at = now
        await self.sweep()

    async def sweep(self) -> None:
        """Remove our ended records; as the coordinator, publish settings and rotate if due."""
        if self.is_coordinator():
            await self._publish_settings()
        room, kept = self._replica.current_room, self.current_claim().retention
        finished = finished_records(room, self._core.clock.now(), kept)
        await self._publisher.publish_records(dict.fromkeys(finished))
        if self.is_coordinator() and is_rotation_due(room, self._core.clock.now(), kept):
            await self.rotate()

    def is_coordinator(self) -> bool:
        link = self._replica.author.chain[-1]
        role = role_of(link.key, link.tier, self._replica.current_room.genesis.key)
        return may_act(role, Act.ROTATE_ROOM)

    def current_claim(self) -> CoordinationRecord:
        """The claim that counts; until there is one, the defaults."""
        known = self._replica.current_room.effective.coordination
        return known or self._make_claim(RecordRetention(), _DEFAULT_SWEEP_SECS, 1)

    async def rotate(self) -> SharedRoom:
        """Start the next document without ended records; every gateway follows."""
        room = self._replica.current_room
        if not self.is_coordinator():
            raise Forbidden(
                f"only the room's coordinator can rotate it; run this on {room.genesis.node}"
            )
        known = self.current_claim()
        await self._publish_claim(
            self._make_claim(known.retention, known.sweep_every_seconds, room.epoch + 1)
        )
        await self._replica.follow_epoch()
        return self._replica.current_room

    async def _publish_settings(self) -> None:
        settings, known = self._core.settings.room, self.current_claim()
        wanted = RecordRetention(
            tombstone_ms=int(settings.keep_tombstones_secs * _SECOND_MS),
            invite_ms=int(settings.keep_invites_secs * _SECOND_MS),
            review_ms=int(settings.keep_reviews_secs * _SECOND_MS),
        )
        epoch = self._replica.current_room.epoch
        published = (known.retention, known.sweep_every_seconds, known.room_epoch)
        if published != (wanted, settings.sweep_every_secs, epoch):
            await self._publish_claim(self._make_claim(wanted, settings.sweep_every_secs, epoch))

    async def _publish_claim(self, claim: CoordinationRecord) -> None:
        key = ("coordination", claim_key("coordinator", self._core.node.id))
        await self._publisher.publish_records({key: claim})

    def _make_claim(
        self, retention: RecordRetention, sweep_secs: int, epoch: int
    ) -> CoordinationRecord:
        """A claim of this node with the next term."""
        known, node = self._replica.current_room.effective.coordination, self._core.node.id
        return CoordinationRecord(
            coordinator=node,
            term=CoordinatorTerm(counter=1 if known is None else known.term.counter + 1, node=node),
            sweep_every_seconds=sweep_secs,
            retention=retention,
            room_epoch=epoch,
        )
