"""Room records of other nodes that are not on disk yet.

They are passed on at once and saved soon after: their writer has them on disk, so if we lose one,
the next sync brings it back.
"""

import asyncio
import logging
from collections.abc import Iterable

from gatepost.errors import GatepostError
from gatepost.gateway.core import Core
from gatepost.room import SignedRecord, store
from gatepost.room.document import SlotKey

log = logging.getLogger(__name__)

_RETRY_SECS = 1.0


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
        while True:
            await self._has_unsaved.wait()
            try:
                await self.save_records()
            except GatepostError as error:
                log.warning("the room was not saved, and is retried: %s", error.message)
                await asyncio.sleep(_RETRY_SECS)
