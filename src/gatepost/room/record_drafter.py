"""Drafts this node's own records: next version, signature, and limited heartbeat frequency."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gatepost.errors import Forbidden, PayloadTooLarge, RoomFull, RoomViolation
from gatepost.room.admission_chain import Genesis
from gatepost.room.document import RoomDocument, SlotKey
from gatepost.room.records import AgentRecord, DeliveryRecord, NodeRecord, RoomRecord
from gatepost.room.signed_record import RecordAuthor, SignedRecord, parse_record, sign_record

HEARTBEAT_INTERVAL_MS = 60_000


class VersionLeap(Struct, frozen=True):
    """The jump of each record's first version after a restore at `restored_at`.

    A node with a restored journal cannot know the versions it signed since the backup, so it
    continues `size` versions above the last one it knows. A record signed after the restore has
    jumped already; versions are finite, and a restart must not use them up.
    """

    size: int = 0
    restored_at: int = 0


NO_LEAP = VersionLeap()


class RecordDrafter:
    """Drafts this node's records. A draft takes effect when the room accepts it.

    The caller makes the draft durable before the room accepts it. No version is ever signed twice:
    a drafted version is not drafted again, accepted or not.
    """

    def __init__(
        self, document: RoomDocument, genesis: Genesis, author: RecordAuthor, leap: VersionLeap
    ) -> None:
        self._document = document
        self._genesis = genesis
        self.author = author
        self.leap = leap
        self._drafts: dict[SlotKey, SignedRecord] = {}

    def draft_record(
        self, map: str, key: str, data: RoomRecord | None, now: int
    ) -> SignedRecord | None:
        """Draft a record, or a tombstone if `data` is None; return None if nothing changed.

        A mere heartbeat within HEARTBEAT_INTERVAL_MS of the last version counts as no change.
        """
        slot_key = (map, key, self.author.key.public)
        known = self._latest_version(slot_key)
        if (data is None and known is None) or (known is not None and known.data == data):
            return None
        if (
            known
            and data
            and _is_only_heartbeat(known, data)
            and known.at <= now < known.at + HEARTBEAT_INTERVAL_MS
        ):
            return None
        return self._sign_draft(slot_key, known, data, now)

    def _latest_version(self, slot_key: SlotKey) -> SignedRecord | None:
        known, draft = self._document.record_at(slot_key), self._drafts.get(slot_key)
        return max((s for s in (known, draft) if s), key=lambda s: s.version_order, default=None)

    def _sign_draft(
        self, slot_key: SlotKey, known: SignedRecord | None, data: RoomRecord | None, now: int
    ) -> SignedRecord:
        base = known.version if known else 0
        has_leapt = slot_key in self._drafts or (known and known.at >= self.leap.restored_at)
        leap = 0 if has_leapt else self.leap.size
        signed = sign_record(self.author, *slot_key[:2], base + 1 + leap, now, data)
        self._check_draft(signed)
        self._drafts[slot_key] = signed
        return signed

    def _check_draft(self, signed: SignedRecord) -> None:
        """Raise the caller's error for a draft that every replica would refuse."""
        if not self._document.has_capacity_for(signed):
            raise RoomFull(f"{signed.writer} has reached its maximum number of keys in the room")
        try:
            parse_record(signed.text, signed.signature, self._genesis)
        except RoomViolation as error:
            refusal = PayloadTooLarge if error.rule == "too_large" else Forbidden
            raise refusal(f"the room does not accept this record: {error.message}") from None


_WITHOUT_HEARTBEAT: dict[type[RoomRecord], Callable[[Any], RoomRecord]] = {
    NodeRecord: lambda data: replace(data, last_heartbeat_at=0),
    AgentRecord: lambda data: replace(data, last_seen_at=0),
    DeliveryRecord: lambda data: DeliveryRecord(inbox_cursor_acked=0),
}


def _is_only_heartbeat(known: SignedRecord, data: RoomRecord) -> bool:
    """Whether only a heartbeat time or a cursor changed."""
    if type(known.data) is not type(data):
        return False
    strip = _WITHOUT_HEARTBEAT.get(type(data))
    return strip is not None and strip(known.data) == strip(data)
