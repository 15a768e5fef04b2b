"""The known nodes of the mesh: admissions, and the directories to look nodes up."""

from typing import Protocol

from msgspec import Struct
from msgspec.structs import astuple

from gatepost.access.issuer import Issuer
from gatepost.errors import NodeMismatch, Revoked
from gatepost.events import fingerprint_key
from gatepost.journal.transaction import Tx
from gatepost.room.admission_chain import sign_admission
from gatepost.wire.operations import Tier

# The columns of an admission row, in the order of the fields of `NodeAdmission`.
_COLUMNS = "node_id, public_key, tier, issuer, issued_at, signature"
_UPSERT_ADMISSION = f"""
INSERT INTO admission ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (node_id) DO UPDATE
SET tier = excluded.tier, issuer = excluded.issuer,
    issued_at = excluded.issued_at, signature = excluded.signature
"""
_SELECT_ADMISSION = f"SELECT {_COLUMNS} FROM admission WHERE node_id = ?"
_SELECT_ADMITTED = "SELECT node_id, public_key, tier, 0 FROM admission"
_SELECT_REVOKED = "SELECT node_id, public_key, tier, 1 FROM revocation"


class NodeAdmission(Struct, frozen=True):
    """The issuer's signed statement that a node with this key belongs to the mesh."""

    node_id: str
    public_key: bytes
    tier: Tier
    issuer: str
    issued_at: int
    signature: bytes


class KnownNode(Struct, frozen=True):
    node_id: str
    public_key: bytes
    tier: Tier
    revoked: bool


class NodeDirectory(Protocol):
    """The known nodes, under any issuer. An id has one key for ever, and a key one id."""

    def by_id(self, tx: Tx, node_id: str) -> KnownNode | None: ...

    def by_key(self, tx: Tx, public_key: bytes) -> KnownNode | None: ...

    def admitted_by(self, tx: Tx, node_id: str) -> list[KnownNode]:
        """The nodes that this node admitted."""


class JournalNodeDirectory:
    """The admissions and revocations made by this gateway."""

    def by_id(self, tx: Tx, node_id: str) -> KnownNode | None:
        return _find_known_node(tx, "node_id", node_id)

    def by_key(self, tx: Tx, public_key: bytes) -> KnownNode | None:
        return _find_known_node(tx, "public_key", public_key)

    def admitted_by(self, tx: Tx, node_id: str) -> list[KnownNode]:
        sql = "SELECT node_id FROM admission WHERE issuer = ? ORDER BY node_id"
        found = [self.by_id(tx, row[0]) for row in tx.fetch_all(sql, (node_id,))]
        return [standing for standing in found if standing is not None]


class CombinedNodeDirectory:
    """Several directories as one. A revocation in any counts; otherwise the first entry does."""

    def __init__(self, *members: NodeDirectory) -> None:
        self._directories = members

    def by_id(self, tx: Tx, node_id: str) -> KnownNode | None:
        return _revoked_or_first([member.by_id(tx, node_id) for member in self._directories])

    def by_key(self, tx: Tx, public_key: bytes) -> KnownNode | None:
        return _revoked_or_first([member.by_key(tx, public_key) for member in self._directories])

    def admitted_by(self, tx: Tx, node_id: str) -> list[KnownNode]:
        found = [s for member in self._directories for s in member.admitted_by(tx, node_id)]
        return list({standing.public_key: standing for standing in found}.values())


def admit_node(
    tx: Tx, issuer: Issuer, node_id: str, public_key: bytes, tier: Tier
) -> NodeAdmission:
    """Store a signed admission. Admitting a node again may change its tier."""
    link = sign_admission(issuer.key, issuer.id, node_id, public_key, tier, tx.now)
    admission = NodeAdmission(node_id, public_key, tier, issuer.id, tx.now, link.signature)
    tx.execute(_UPSERT_ADMISSION, astuple(admission))
    return admission


def load_admission(tx: Tx, node_id: str) -> NodeAdmission | None:
    row = tx.fetch_one(_SELECT_ADMISSION, (node_id,))
    return None if row is None else NodeAdmission(*row)


def check_node_identity(
    tx: Tx, directory: NodeDirectory, issuer: Issuer, node_id: str, public_key: bytes
) -> KnownNode | None:
    """Look the node up; refuse a revoked node, and one that uses another node's id or key."""
    if node_id == issuer.id or public_key == issuer.key.public:
        raise NodeMismatch(f"{issuer.id} is this gateway itself; give the new node its own id")
    by_id, by_key = directory.by_id(tx, node_id), directory.by_key(tx, public_key)
    for known in (by_id, by_key):
        if known is not None and known.revoked:
            raise revoked_node_error(known)
    for known in (by_id, by_key):
        if known is not None and (known.node_id, known.public_key) != (node_id, public_key):
            raise NodeMismatch(
                f"node {known.node_id} is known by key {fingerprint_key(known.public_key)};"
                " an id has one key for ever, and a key one id"
            )
    return by_id


def revoked_node_error(known: KnownNode) -> Revoked:
    return Revoked(f"node {known.node_id} was revoked; join with a new id and a new key")


def _find_known_node(tx: Tx, column: str, value: str | bytes) -> KnownNode | None:
    for known in (_SELECT_REVOKED, _SELECT_ADMITTED):
        if (row := tx.fetch_one(f"{known} WHERE {column} = ?", (value,))) is not None:
            node_id, public_key, tier, revoked = row
            return KnownNode(node_id, public_key, tier, bool(revoked))
    return None


def _revoked_or_first(found: list[KnownNode | None]) -> KnownNode | None:
    known = [standing for standing in found if standing is not None]
    return next((s for s in known if s.revoked), known[0] if known else None)


def has_admissions(tx: Tx) -> bool:
    """Whether this gateway has admitted another node."""
    return tx.fetch_one("SELECT 1 FROM admission") is not None
