"""The room's coordinator: sweeps ended records, and rotates the room if most of it is obsolete.

Every gateway removes its own ended records, at the interval and age in the coordinator's claim. One
gateway coordinates: the genesis of the room, or the publisher that the mesh elected, if the genesis
permits elections. It publishes its settings if they differ from those in the room, and starts the
next document when most of the present one is obsolete. Each claim of an elected coordinator carries
its term, and the claim of the latest term counts. So a coordinator that was replaced while it slept
can no longer change anything.
"""

from collections.abc import Callable

from msgspec.structs import replace

from gatepost.errors import Forbidden
from gatepost.room import (
    CoordinationRecord,
    CoordinatorMandate,
    CoordinatorTerm,
    RecordRetention,
    SharedRoom,
    claim_key,
)
from gatepost.room.retention import finished_records, is_rotation_due
from gatepost.room.roles import Act, may_act, role_of
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.wire.mesh_views import Term

_DEFAULT_SWEEP_SECS = 600
_SECOND_MS = 1000


# The term in which the mesh elected this node; None if this node is not elected.
OfficeTerm = Callable[[], Term | None]


class RoomCoordinator:
    """`office` returns this node's term in a mesh; without it the genesis coordinates."""

    def __init__(self, announcer: RecordAnnouncer, office: OfficeTerm | None = None) -> None:
        self._office = office
        self._announcer = announcer
        self._replica = announcer.replica
        self._core = announcer.replica.core
        self._swept_at: int | None = None

    async def sweep_when_due(self) -> None:
        """Sweep, if `sweepEverySeconds` have passed since the last time.

        The coordinator uses its own settings, which it publishes with its first sweep.
        """
        if not self._announcer.is_ready:
            return
        await self._take_office()
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
        await self._announcer.publish_records(dict.fromkeys(finished))
        if self.is_coordinator() and is_rotation_due(room, self._core.clock.now(), kept):
            await self.rotate()

    def is_coordinator(self) -> bool:
        if self._office is None or self._replica.room is None:
            return self._is_genesis()
        is_permitted = self._is_genesis() or self._mandate() is not None
        return self._office() is not None and is_permitted

    def _is_genesis(self) -> bool:
        link = self._replica.author.chain[-1]
        role = role_of(link.key, link.tier, self._replica.current_room.genesis.key)
        return may_act(role, Act.ROTATE_ROOM)

    def _mandate(self) -> CoordinatorMandate | None:
        """The claim by which the genesis permits elections; None if it does not."""
        signed = self._replica.current_room.genesis_claim()
        claim = None if signed is None else signed.data
        if signed is None or not isinstance(claim, CoordinationRecord) or not claim.elections:
            return None
        return CoordinatorMandate(signed.text, signed.signature)

    async def _take_office(self) -> None:
        """Announce at once that elections are permitted, or that this node was elected.

        The genesis gives its mandate whether or not it is elected itself.
        """
        if self._office is None:
            return
        if self.is_coordinator():
            await self._publish_settings()
        elif self._is_genesis() and self._mandate() is None:
            known = self.current_claim()
            await self._publish_claim(
                self._make_claim(known.retention, known.sweep_every_seconds, known.room_epoch)
            )

    def current_claim(self) -> CoordinationRecord:
        """The claim that counts; until there is one, the defaults."""
        known = self._replica.current_room.effective.coordination
        return known or self._make_claim(RecordRetention(), _DEFAULT_SWEEP_SECS, 1)

    async def rotate(self) -> SharedRoom:
        """Start the next document without ended records; every gateway follows."""
        room = self._replica.current_room
        if not self.is_coordinator():
            raise Forbidden(
                "only the room's coordinator can rotate it; run this on"
                f" {self.current_claim().coordinator if self._office else room.genesis.node}"
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
        room = self._replica.current_room
        # During a rotation, a claim must not return to the previous epoch.
        epoch = max(room.epoch, min(known.room_epoch, room.epoch + 1))
        claim = self._make_claim(wanted, settings.sweep_every_secs, epoch)
        published = replace(known, mandate=claim.mandate)
        if self._office is None:
            published = replace(published, term=claim.term)
        is_missing = self._office is not None and room.effective.coordination is None
        if is_missing or published != claim:
            await self._publish_claim(claim)

    async def _publish_claim(self, claim: CoordinationRecord) -> None:
        key = ("coordination", claim_key("coordinator", self._core.node.id))
        await self._announcer.publish_records({key: claim})

    def _make_claim(
        self, retention: RecordRetention, sweep_secs: int, epoch: int
    ) -> CoordinationRecord:
        """A claim of this node: in the term of its office, or without a mesh in the next term."""
        node = self._core.node.id
        return CoordinationRecord(
            coordinator=node,
            term=CoordinatorTerm(counter=self._claim_counter(), node=node),
            sweep_every_seconds=sweep_secs,
            retention=retention,
            room_epoch=epoch,
            elections=self._office is not None and self._is_genesis(),
            mandate=None if self._is_genesis() else self._mandate(),
        )

    def _claim_counter(self) -> int:
        if self._office is None:
            known = self._replica.current_room.effective.coordination
            return 1 if known is None else known.term.counter + 1
        office, signed = self._office(), self._replica.current_room.genesis_claim()
        if office is not None:
            return office.counter
        # Not elected, so this is the genesis, which keeps the term it had.
        own = None if signed is None else signed.data
        return own.term.counter if isinstance(own, CoordinationRecord) else 1
