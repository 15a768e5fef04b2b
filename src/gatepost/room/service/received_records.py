"""Room records of other nodes that are not on disk yet.

They have been judged already, by the `UpdateGuard` in room/room.py. They are passed on at once and
saved soon after. Their writer has them on disk, so the next sync restores a lost one.
"""

import asyncio
from collections.abc import Iterable

from gatepost.core.gateway_core import Core
from gatepost.room import SignedRecord, store
from gatepost.room.document import SlotKey

# One transaction saves the records that come within this pause.
_PAUSE_SECS = 0.1


class ReceivedRecords:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._unsaved: dict[SlotKey, SignedRecord] = {}
        self._has_unsaved = asyncio.Event()

    def add_records(self, records: Iterable[SignedRecord]) -> None:
        self._unsaved |= {signed.slot_key: signed for signed in records}
        self._has_unsaved.set()

    async def save_records(self) -> None:
        records = dict(self._unsaved)
        await self._core.commit(lambda tx: store.save_records(tx, records.values()))
        for key, signed in records.items():
            # A later version may have come during the commit; it is saved next time.
            if self._unsaved.get(key) is signed:
                del self._unsaved[key]
        if not self._unsaved:
            self._has_unsaved.clear()

    async def keep_saving(self) -> None:
        """Save received records until cancelled."""
        await self._core.background.repeat_forever(
            _PAUSE_SECS, self._wait_and_save, "the room was not saved"
        )

    async def _wait_and_save(self) -> None:
        await self._has_unsaved.wait()
        await self.save_records()
