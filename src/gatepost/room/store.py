"""The room in the journal: its genesis and epoch, and the latest version of each record.

A new version replaces the old row, so no log needs to be compacted.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct

from gatepost.errors import JournalCorrupt, RoomViolation
from gatepost.journal.transaction import Tx
from gatepost.room.admission_chain import ChainVerifier, Genesis
from gatepost.room.agent_ownership import KnownOwner
from gatepost.room.epoch_proof import EpochProof
from gatepost.room.evidence import SignedTwice
from gatepost.room.membership import NodeIdentity
from gatepost.room.signed_record import SignedRecord, open_signed_record, parse_record

_INSERT_ROOM = """
INSERT INTO room (one, genesis_node, genesis_key, epoch, epoch_proof) VALUES (1, ?, ?, ?, ?)
"""
_UPSERT_RECORD = """
INSERT INTO room_record (map, key, public_key, version, record, signature)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET version = excluded.version, record = excluded.record, signature = excluded.signature
WHERE (excluded.version, excluded.record) > (version, record)
"""
_SAVE_OWNER = """
INSERT OR REPLACE INTO room_agent_owner (agent, gateway, epoch, former) VALUES (?, ?, ?, ?)
"""
_INSERT_NODE_KEY = "INSERT OR IGNORE INTO room_node_key (node_id, public_key) VALUES (?, ?)"
_SELECT_EVIDENCE = """
SELECT record, signature, other_record, other_signature FROM room_evidence ORDER BY found_at
"""
_INSERT_EVIDENCE = """
INSERT INTO room_evidence (map, key, public_key, version, record, signature,
                                     other_record, other_signature, found_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELETE_ALL = (
    "DELETE FROM room_record",
    "DELETE FROM room_node_key",
    "DELETE FROM room_agent_owner",
    "DELETE FROM room_evidence",
    "DELETE FROM room",
)
_SELECT_RECORDS = "SELECT record, signature FROM room_record ORDER BY map, key, public_key"


class RoomIdentity(Struct, frozen=True):
    """Which room this gateway is in, and which of its documents. Epoch 1 has no proof."""

    genesis: Genesis
    epoch: int = 1
    epoch_proof: EpochProof | None = None


def create_room(tx: Tx, identity: RoomIdentity) -> None:
    """Store the identity of this gateway's room. A gateway stays in one room for ever."""
    genesis, proof = identity.genesis, _encode_proof(identity.epoch_proof)
    tx.execute(_INSERT_ROOM, (genesis.node, genesis.key, identity.epoch, proof))


def load_room_identity(tx: Tx) -> RoomIdentity | None:
    """Load the identity of the room; None if this gateway is in no room yet."""
    row = tx.fetch_one("SELECT genesis_node, genesis_key, epoch, epoch_proof FROM room")
    if row is None:
        return None
    proof = None if row[3] is None else msgspec.json.decode(row[3], type=EpochProof)
    return RoomIdentity(Genesis(row[0], row[1]), row[2], proof)


def delete_room(tx: Tx) -> None:
    """Forget a room that no other node has ever seen."""
    for sql in _DELETE_ALL:
        tx.execute(sql)


def save_records(tx: Tx, records: Iterable[SignedRecord]) -> None:
    """Store the records, except where a newer version is stored already."""
    records = list(records)
    tx.execute_many(
        _UPSERT_RECORD, [(*s.slot_key, s.version, s.text, s.signature) for s in records]
    )
    tx.execute_many(
        _INSERT_NODE_KEY,
        sorted({(link.node, link.key) for chain in {s.chain for s in records} for link in chain}),
    )


def load_node_keys(tx: Tx) -> list[NodeIdentity]:
    rows = tx.fetch_all("SELECT node_id, public_key FROM room_node_key")
    return [(node, key) for node, key in rows]


def load_owners(tx: Tx) -> dict[str, KnownOwner]:
    rows = tx.fetch_all("SELECT agent, gateway, epoch, former FROM room_agent_owner")
    return {
        agent: KnownOwner(gateway, epoch, msgspec.json.decode(former, type=tuple[str, ...]))
        for agent, gateway, epoch, former in rows
    }


def save_owners(tx: Tx, owners: Mapping[str, KnownOwner | None]) -> None:
    """Store the owners of these agents; None for an agent that is free."""
    kept = [
        (id, owner.gateway, owner.epoch, msgspec.json.encode(owner.former).decode())
        for id, owner in owners.items()
        if owner is not None
    ]
    free = [(id,) for id, owner in owners.items() if owner is None]
    tx.execute_many(_SAVE_OWNER, kept)
    tx.execute_many("DELETE FROM room_agent_owner WHERE agent = ?", free)


def save_evidence(tx: Tx, proof: SignedTwice) -> None:
    """Store the proof against a writer in place of the one that was kept before."""
    first, second = proof.first, proof.second
    tx.execute("DELETE FROM room_evidence WHERE public_key = ?", (first.public_key,))
    pair = (first.text, first.signature, second.text, second.signature)
    tx.execute(_INSERT_EVIDENCE, (*first.slot_key, first.version, *pair, tx.now))


def load_evidence(tx: Tx, genesis: Genesis) -> list[SignedTwice]:
    """Load the proof against each writer that signed a version twice."""
    return [
        SignedTwice(*(parse_record(row[at], row[at + 1], genesis) for at in (0, 2)))
        for row in tx.fetch_all(_SELECT_EVIDENCE)
    ]


def load_records(tx: Tx, genesis: Genesis) -> list[SignedRecord]:
    """Load every record. Signatures were checked before saving and are not checked again."""
    try:
        return [
            parse_record(text, signature, genesis)
            for text, signature in tx.iterate_rows(_SELECT_RECORDS)
        ]
    except RoomViolation as error:
        raise JournalCorrupt(f"the room in the journal is damaged: {error.message}") from None


def replace_records(
    tx: Tx, epoch: int, epoch_proof: EpochProof | None, records: Iterable[SignedRecord]
) -> None:
    """Replace the records by those of a later epoch."""
    tx.execute("UPDATE room SET epoch = ?, epoch_proof = ?", (epoch, _encode_proof(epoch_proof)))
    tx.execute("DELETE FROM room_record")
    save_records(tx, records)


def _encode_proof(proof: EpochProof | None) -> str | None:
    return None if proof is None else msgspec.json.encode(proof).decode()


def find_violations(tx: Tx, genesis: Genesis) -> Iterator[RoomViolation]:
    """Check the stored records, signatures included, and yield every violation."""
    chains = ChainVerifier(genesis)
    for text, signature in tx.iterate_rows(_SELECT_RECORDS):
        try:
            open_signed_record(text, signature, chains)
        except RoomViolation as error:
            yield error


def count_records(tx: Tx) -> int:
    ((count,),) = tx.fetch_all("SELECT count(*) FROM room_record")
    return int(count)
