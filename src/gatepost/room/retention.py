"""What may be forgotten, and the move to a document in which it is.

A record's latest version stays as long as its document, for whoever was away may bring an older
one back. So a writer marks what is over as a tombstone, and from time to time the coordinator
names a later epoch in its claim: a new document, for which every replica takes over what is still
worth keeping, records and signatures as they are. Replicas need not agree on what that is; they
join the new document's records like any others'.

A node that hears of the epoch only after it was away takes over its own records alone: of all
others it cannot know what was taken back meanwhile.
"""

from collections.abc import Iterable

from gatepost.room.records import Invite, Record, Retention, Review
from gatepost.room.room import Room
from gatepost.room.signing import Signed

# Moving costs everyone a sync, so it has to save something.
_WORTH_BYTES = 64 * 1024


def finished(room: Room, now: int, retention: Retention) -> list[tuple[str, str]]:
    """Map and key of own records that are over and can be tombstoned."""
    own = room.publisher.author.key.public
    return [
        (signed.map, signed.key)
        for signed in room.document
        if signed.public_key == own and signed.data and _is_over(signed.data, now, retention)
    ]


def is_due(room: Room, now: int, retention: Retention) -> bool:
    """Whether most of the document can be forgotten, and it is enough to be worth a move."""
    kept = sum(len(signed.text) for signed in _kept(room.document, now, retention))
    dropped = sum(len(signed.text) for signed in room.document) - kept
    return dropped > max(_WORTH_BYTES, kept)


def rotated(room: Room, epoch: int, now: int, retention: Retention) -> Room:
    """The room in a later epoch, as seen by a node that was there when it was called."""
    return _moved(room, epoch, _kept(room.document, now, retention))


def rejoined(room: Room, epoch: int) -> Room:
    """The room in a later epoch, for a node that was away: its own records, then a sync."""
    own = room.publisher.author.key.public
    return _moved(room, epoch, (s for s in room.document if s.public_key == own and s.data))


def _moved(room: Room, epoch: int, records: Iterable[Signed]) -> Room:
    return Room(room.genesis, author=room.publisher.author, epoch=epoch, records=records)


def _kept(records: Iterable[Signed], now: int, retention: Retention) -> Iterable[Signed]:
    for signed in records:
        if signed.data is None:
            over = signed.at + retention.tombstone_ms <= now and not _is_node(signed)
        else:
            over = _is_over(signed.data, now, retention)
        if not over:
            yield signed


def _is_node(signed: Signed) -> bool:
    """A node that left may have handed on an agent, and its key still vouches for that."""
    return signed.map == "nodes" and signed.key == signed.writer


def _is_over(data: Record, now: int, retention: Retention) -> bool:
    if isinstance(data, Invite):
        ended = min(t for t in (data.expires_at, data.used_at, data.revoked_at) if t is not None)
        return ended + retention.invite_ms <= now
    if isinstance(data, Review) and data.settled_at is not None:
        return data.settled_at + retention.review_ms <= now
    return False
