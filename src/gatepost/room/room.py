"""One replica of the room.

Updates from peers come in through `apply_update`. This node's own records come in through
`publish_record`, or through `draft_record` and `accept_drafts` where the draft has to be durable
in between. Listeners registered with `on_change` receive the changes. The replica reads no clock
and does no I/O; use it from one thread at a time.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from gatepost.errors import Forbidden
from gatepost.room.admission import Genesis
from gatepost.room.document import Document
from gatepost.room.guard import Guard
from gatepost.room.publishing import Publisher
from gatepost.room.records import Record
from gatepost.room.signing import Author, Signed
from gatepost.room.update import decode_state_vector, encode_state_vector
from gatepost.room.view import View

NAME = "ansible-control"

Listener = Callable[["Applied"], None]


class Applied(Struct, frozen=True):
    """The records that changed, and the origin of the change."""

    changed: tuple[Signed, ...]
    origin: object = None


def room_id(epoch: int) -> str:
    """The name of the document of an epoch; see retention.py."""
    return NAME if epoch == 1 else f"{NAME}.{epoch}"


class Room:
    """One replica of the room. `effective` holds the records that count."""

    def __init__(
        self,
        genesis: Genesis,
        *,
        author: Author | None = None,
        epoch: int = 1,
        records: Iterable[Signed] = (),
        leap: int = 0,
    ) -> None:
        self.genesis = genesis
        self.epoch = epoch
        self.document = Document(room_id(epoch))
        self.view = View(genesis)
        self._guard = Guard(genesis)
        self._listeners: list[Listener] = []
        self._publisher: Publisher | None = None
        # Number of records dropped because their writer has reached its limit of keys.
        self.ignored = 0
        self._merge(records)
        if author is not None:
            self.enter(author, leap)

    @property
    def id(self) -> str:
        return self.document.room_id

    @property
    def publisher(self) -> Publisher:
        if self._publisher is None:
            raise Forbidden("this node is not admitted to the room yet")
        return self._publisher

    def enter(self, author: Author, leap: int = 0) -> None:
        """Set the key and admission chain that this node writes with from now on."""
        if self._publisher is None:
            self._publisher = Publisher(self.document, self.genesis, author, leap)
        self._publisher.author = author

    def apply(self, update: bytes, origin: object = None) -> Applied:
        """Apply an update as a whole; a RoomViolation leaves the room unchanged."""
        return self._take(self._guard.inspect(update, self.document), origin)

    def draft(self, map: str, key: str, data: Record | None, now: int) -> Signed | None:
        """Draft an own record, to be made durable and then accepted; None if nothing changed."""
        return self.publisher.draft(map, key, data, now)

    def accept(self, drafts: Iterable[Signed]) -> Applied:
        """Put drafts of own records into effect."""
        return self._take(list(drafts), None)

    def put(self, map: str, key: str, data: Record, now: int) -> Applied:
        """Draft and accept an own record in one step, where it need not be durable."""
        draft = self.draft(map, key, data, now)
        return self.accept([draft] if draft else [])

    def tombstone(self, map: str, key: str, now: int) -> Applied:
        """Withdraw an own record."""
        draft = self.draft(map, key, None, now)
        return self.accept([draft] if draft else [])

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after every change. The returned function unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def state_vector(self) -> bytes:
        return encode_state_vector(self.document.clocks())

    def missing(self, state_vector: bytes) -> Iterator[bytes]:
        """Updates that bring a document with this state vector up to date; at least one."""
        newer = self.document.newer_than(decode_state_vector(state_vector))
        return self.document.chunks(newer)

    def _take(self, records: list[Signed], origin: object) -> Applied:
        applied = Applied(self._merge(records), origin)
        if applied.changed:
            for listener in list(self._listeners):
                listener(applied)
        return applied

    def _merge(self, records: Iterable[Signed]) -> tuple[Signed, ...]:
        changed = {}
        for signed in records:
            if not self.document.is_news(signed):
                continue
            if self.document.has_room_for(signed):
                self.document.put(signed)
                changed[signed.place] = signed
            else:
                self.ignored += 1
        self.view.update(changed.values())
        return tuple(changed.values())
