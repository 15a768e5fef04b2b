"""The migration ledger: an append-only file with one line per step of each item.

The gateway forgets an idempotency key some time after its message is settled, but a migration may
last for months. The ledger therefore keeps its own record. An item is `intent` before it is sent
and `sent` after, each on disk before the next step. An item left as `intent` by a crash is sent
again under the same key. The gateway accepts it once, as long as it remembers the key.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct

from gatepost.clock import Clock
from gatepost.errors import ConfigError, DeadlineExceeded
from gatepost.files import lock_file, sync_folder
from gatepost.migration.legacy_records import LegacyItem, LegacyKind

# A `refused` item may be sent again. A `conflict` means the gateway has another message under the
# item's key.
LedgerState = Literal["intent", "sent", "settled", "refused", "conflict"]
LedgerOrigin = Literal["import", "mirror"]

_POLL_SECS = 0.02
_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class LedgerEntry(Struct, frozen=True, omit_defaults=True):
    """The latest step of one item."""

    key: str
    state: LedgerState
    at: int
    kind: LegacyKind
    id: str
    to: str
    sender: str
    digest: str
    origin: LedgerOrigin = "import"
    event_id: str = ""

    @classmethod
    def from_item(
        cls, item: LegacyItem, state: LedgerState, at: int, origin: LedgerOrigin, event_id: str = ""
    ) -> "LedgerEntry":
        end = (item.sender, item.digest, origin, event_id)
        return cls(item.key, state, at, item.kind, item.id, item.to, *end)

    @property
    def is_sent(self) -> bool:
        return self.state in ("sent", "settled")


_decoder = msgspec.json.Decoder(LedgerEntry)


class MigrationLedger:
    """Entries by key. A writer must take a turn; turns of several processes do not overlap."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.entries: dict[str, LedgerEntry] = {}
        self._path = path
        self._clock = clock
        self._read_to = 0
        self.read_new_lines()

    def read_new_lines(self) -> int:
        """Read lines added since the last read; return the end offset of the last whole line."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            whole, newline, _ = file.read().rpartition(b"\n")
        for line in whole.splitlines():
            self._load_line(line)
        self._read_to += len(whole) + len(newline)
        return self._read_to

    def now(self) -> int:
        return self._clock.now()

    def is_intended(self, key: str) -> bool:
        """Whether the last send of this item has no known result."""
        entry = self.entries.get(key)
        return entry is not None and entry.state == "intent"

    def is_refused(self, key: str) -> bool:
        """Whether the gateway refused this item at the last attempt."""
        entry = self.entries.get(key)
        return entry is not None and entry.state == "refused"

    @asynccontextmanager
    async def take_turn(self, timeout: float = 60.0) -> AsyncIterator[None]:
        """Hold the file lock on an up-to-date ledger. Call `write_step` only inside."""
        with await _lock_ledger(self._path, timeout) as file:
            # A crashed writer may have left a partial line.
            file.truncate(self.read_new_lines())
            yield

    def write_step(
        self,
        items: Iterable[tuple[LegacyItem, str]],
        state: LedgerState,
        origin: LedgerOrigin = "import",
    ) -> None:
        """Append one step per (item, event id); the event id may be empty. On disk on return."""
        now = self._clock.now()
        self._append_entries(
            [LedgerEntry.from_item(item, state, now, origin, event) for item, event in items]
        )

    def mark_settled(self, keys: Iterable[str]) -> None:
        """Record that the gateway reported these items as settled, before it forgets them."""
        now = self._clock.now()
        entries = [self.entries[key] for key in keys]
        self._append_entries([msgspec.structs.replace(e, state="settled", at=now) for e in entries])

    def _append_entries(self, entries: list[LedgerEntry]) -> None:
        if not entries:
            return
        with os.fdopen(os.open(self._path, _APPEND_FLAGS, 0o600), "ab") as file:
            file.write(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
            file.flush()
            os.fsync(file.fileno())
            self._read_to = file.tell()
        sync_folder(self._path.parent)
        self.entries.update((entry.key, entry) for entry in entries)

    def _load_line(self, line: bytes) -> None:
        try:
            entry = _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self._path} is damaged: {error}; restore it") from None
        self.entries[entry.key] = entry


async def _lock_ledger(path: Path, timeout: float) -> IO[bytes]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            return lock_file(path)
        except BlockingIOError:
            if loop.time() > deadline:
                raise DeadlineExceeded(f"another migration command holds {path}") from None
            await asyncio.sleep(_POLL_SECS)
