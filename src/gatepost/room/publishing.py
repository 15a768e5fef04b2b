"""What this node says itself: next version, its signature, and no more often than it matters."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gatepost.errors import Forbidden, PayloadTooLarge, RoomFull, RoomViolation
from gatepost.room.admission import Genesis
from gatepost.room.document import Document, Place
from gatepost.room.records import Agent, Delivery, Node, Record
from gatepost.room.signing import Author, Signed, read, sign

QUIET_MS = 60_000


class Publisher:
    """Drafts this node's records. A draft takes effect when the room accepts it.

    Between the two the caller makes it durable, so that no version is ever signed twice: what was
    drafted is never drafted again, whether or not it was accepted yet. A node whose journal was
    restored cannot know what it signed since the backup; it passes `leap`, a random number, to
    start well above all of that.
    """

    def __init__(self, document: Document, genesis: Genesis, author: Author, leap: int = 0) -> None:
        self._document = document
        self._genesis = genesis
        self.author = author
        self._leap = leap
        self._drafts: dict[Place, Signed] = {}
        self._waiting: dict[Place, tuple[int, Record]] = {}

    def draft(self, map: str, key: str, data: Record | None, now: int) -> Signed | None:
        """The record to publish (None as data: its tombstone), or None if nothing needs saying.

        Signs of life wait until a minute has passed since the last record; then `due` has them.
        """
        place = (map, key, self.author.key.public)
        known = self._latest(place)
        self._waiting.pop(place, None)
        if (data is None and known is None) or (known is not None and known.data == data):
            return None
        if known and data and _is_quiet(known, data) and known.at <= now < known.at + QUIET_MS:
            self._waiting[place] = (known.at + QUIET_MS, data)
            return None
        return self._sign(place, known, data, now)

    def due(self, now: int) -> list[Signed]:
        """What waited long enough."""
        ready = [(place, w[1]) for place, w in self._waiting.items() if w[0] <= now]
        drafts = (self.draft(*place[:2], data, now) for place, data in ready)
        return [signed for signed in drafts if signed is not None]

    def next_due(self) -> int | None:
        return min((at for at, _ in self._waiting.values()), default=None)

    def _latest(self, place: Place) -> Signed | None:
        known, draft = self._document.get(place), self._drafts.get(place)
        return max((s for s in (known, draft) if s), key=lambda s: s.order, default=None)

    def _sign(self, place: Place, known: Signed | None, data: Record | None, now: int) -> Signed:
        base = known.version if known else 0
        leap = 0 if place in self._drafts else self._leap
        signed = sign(self.author, *place[:2], base + 1 + leap, now, data)
        self._check(signed)
        self._drafts[place] = signed
        return signed

    def _check(self, signed: Signed) -> None:
        """Nobody else would take what breaks a rule, so neither do we."""
        if not self._document.has_room_for(signed):
            raise RoomFull(f"{signed.writer} has as many keys in the room as a node may have")
        try:
            read(signed.text, signed.signature, self._genesis)
        except RoomViolation as error:
            refusal = PayloadTooLarge if error.rule == "too_large" else Forbidden
            raise refusal(f"not a record for the room: {error.message}") from None


_ALIVE: dict[type[Record], Callable[[Any], Record]] = {
    Node: lambda data: replace(data, last_heartbeat_at=0),
    Agent: lambda data: replace(data, last_seen_at=0),
    Delivery: lambda data: Delivery(inbox_cursor_acked=0),
}


def _is_quiet(known: Signed, data: Record) -> bool:
    """Whether nothing changed but a sign of life or a cursor."""
    if type(known.data) is not type(data):
        return False
    still = _ALIVE.get(type(data))
    return still is not None and still(known.data) == still(data)
