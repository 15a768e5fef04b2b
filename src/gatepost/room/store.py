"""The room in the journal: its genesis and epoch, and the latest version of each record.

A new version replaces the old row, so there is no log to compact.
"""

from collections.abc import Iterable, Iterator

from gatepost.errors import JournalCorrupt, RoomViolation
from gatepost.journal.transaction import Tx
from gatepost.room.admission_chain import ChainVerifier, Genesis
from gatepost.room.signed_record import SignedRecord, open_signed_record, parse_record

_UPSERT_RECORD = """
INSERT INTO room_record (map, key, public_key, version, record, signature)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET version = excluded.version, record = excluded.record, signature = excluded.signature
WHERE (excluded.version, excluded.record) > (version, record)
"""
_SELECT_RECORDS = "SELECT record, signature FROM room_record ORDER BY map, key, public_key"


def create_room(tx: Tx, genesis: Genesis, epoch: int = 1) -> None:
    """Store the genesis of this gateway's room. A gateway stays in one room for ever."""
    tx.execute(
        "INSERT INTO room (one, genesis_node, genesis_key, epoch) VALUES (1, ?, ?, ?)",
        (genesis.node, genesis.key, epoch),
    )


def load_room_identity(tx: Tx) -> tuple[Genesis, int] | None:
    """Load genesis and epoch of the room; None if this gateway is in no room yet."""
    row = tx.fetch_one("SELECT genesis_node, genesis_key, epoch FROM room")
    return None if row is None else (Genesis(row[0], row[1]), row[2])


def save_records(tx: Tx, records: Iterable[SignedRecord]) -> None:
    """Store the records, except where a newer version is stored already."""
    tx.execute_many(
        _UPSERT_RECORD, [(*s.slot_key, s.version, s.text, s.signature) for s in records]
    )


def load_records(tx: Tx, genesis: Genesis) -> list[SignedRecord]:
    """Load every record. Signatures were checked before saving and are not checked again."""
    try:
        return [
            parse_record(text, signature, genesis)
            for text, signature in tx.iterate_rows(_SELECT_RECORDS)
        ]
    except RoomViolation as error:
        raise JournalCorrupt(f"the room in the journal is damaged: {error.message}") from None


def replace_records(tx: Tx, epoch: int, records: Iterable[SignedRecord]) -> None:
    """Replace the records by those of a later epoch."""
    tx.execute("UPDATE room SET epoch = ?", (epoch,))
    tx.execute("DELETE FROM room_record")
    save_records(tx, records)


def find_violations(tx: Tx, genesis: Genesis) -> Iterator[RoomViolation]:
    """Check the stored records, signatures included, and yield every violation."""
    chains = ChainVerifier(genesis)
    for text, signature in tx.iterate_rows(_SELECT_RECORDS):
        try:
            open_signed_record(text, signature, chains)
        except RoomViolation as error:
            yield error
