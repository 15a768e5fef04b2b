"""Publishing records of this gateway in the room.

Our own records are on disk before they are sent, so that no version is ever signed twice.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from gatepost.journal import Tx
from gatepost.room import RoomRecord, SharedRoom, SignedRecord, store
from gatepost.room.document import SlotKey
from gatepost.room.service.room_replica import RoomReplica

T = TypeVar("T")
RecordChanges = Mapping[tuple[str, str], RoomRecord | None]


class RecordAnnouncer:
    """`may_publish` is set after the first sync, so that we do not publish outdated claims."""

    def __init__(self, replica: RoomReplica) -> None:
        self.replica = replica
        self._core = replica.core
        self.may_publish = asyncio.Event()
        # Held while claims to agents are derived from the room and published.
        self.claims_lock = asyncio.Lock()
        self._pending_drafts: dict[SlotKey, SignedRecord] = {}
        self._drafted_in: SharedRoom | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether there is a room and we may publish in it."""
        return self.replica.room is not None and self.may_publish.is_set()

    async def publish_records(self, changes: RecordChanges) -> None:
        """Sign and save these records, then send them. None deletes a record."""
        room, now = self.replica.current_room, self._core.clock.now()
        if room is not self._drafted_in:
            # A draft for another document is meaningless in this one.
            self._pending_drafts.clear()
            self._drafted_in = room
        for (map, key), data in changes.items():
            draft = room.draft_record(map, key, data, now)
            if draft is not None:
                self._pending_drafts[draft.slot_key] = draft
        await self._save_drafts()

    async def commit_with(self, map: str, key: str, data: RoomRecord, also: Callable[[Tx], T]) -> T:
        """Publish a record in one transaction with `also`: both happen, or neither."""
        draft = self.replica.current_room.draft_record(map, key, data, self._core.clock.now())
        drafts = [draft] if draft else []

        def save_both(tx: Tx) -> T:
            result = also(tx)
            store.save_records(tx, drafts)
            return result

        result = await self._core.commit(save_both)
        self.replica.current_room.accept_drafts(drafts)
        return result

    async def _save_drafts(self) -> None:
        """Save and send pending drafts. A failed one stays pending: it is never drafted again."""
        drafts = list(self._pending_drafts.values())
        if drafts:
            await self._core.commit(lambda tx: store.save_records(tx, drafts))
            for draft in drafts:
                if self._pending_drafts.get(draft.slot_key) is draft:
                    del self._pending_drafts[draft.slot_key]
            self.replica.current_room.accept_drafts(drafts)
