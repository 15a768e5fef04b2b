"""The room in the journal: its genesis and epoch, and the latest version of each record.

A new version replaces the old row, so there is no log to compact.
"""

from collections.abc import Iterable, Iterator

from gatepost.errors import JournalCorrupt, RoomViolation
from gatepost.journal.transaction import Tx
from gatepost.room.admission import Chains, Genesis
from gatepost.room.signing import Signed, open_signed, read

_SAVE = """
INSERT INTO room_record VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET version = excluded.version, record = excluded.record, signature = excluded.signature
WHERE (excluded.version, excluded.record) > (version, record)
"""
_ALL = "SELECT record, signature FROM room_record ORDER BY map, key, public_key"


def create(tx: Tx, genesis: Genesis, epoch: int = 1) -> None:
    """Store the genesis of this gateway's room. A gateway stays in one room for ever."""
    tx.execute("INSERT INTO room VALUES (1, ?, ?, ?)", (genesis.node, genesis.key, epoch))


def which(tx: Tx) -> tuple[Genesis, int] | None:
    """Load genesis and epoch of the room; None if this gateway is in no room yet."""
    row = tx.fetch_one("SELECT genesis_node, genesis_key, epoch FROM room")
    return None if row is None else (Genesis(row[0], row[1]), row[2])


def save(tx: Tx, records: Iterable[Signed]) -> None:
    """Store the records, except where a newer version is stored already."""
    tx.execute_many(_SAVE, [(*s.place, s.version, s.text, s.signature) for s in records])


def load(tx: Tx, genesis: Genesis) -> list[Signed]:
    """Load every record. Signatures were checked before saving and are not checked again."""
    try:
        return [read(text, signature, genesis) for text, signature in tx.iterate_rows(_ALL)]
    except RoomViolation as error:
        raise JournalCorrupt(f"the room in the journal is damaged: {error.message}") from None


def rotate(tx: Tx, epoch: int, records: Iterable[Signed]) -> None:
    """Replace the records by those of a later epoch."""
    tx.execute("UPDATE room SET epoch = ?", (epoch,))
    tx.execute("DELETE FROM room_record")
    save(tx, records)


def verify(tx: Tx, genesis: Genesis) -> Iterator[RoomViolation]:
    """Check the stored records, signatures included, and yield every violation."""
    chains = Chains(genesis)
    for text, signature in tx.iterate_rows(_ALL):
        try:
            open_signed(text, signature, chains)
        except RoomViolation as error:
            yield error
