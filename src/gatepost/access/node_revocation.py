"""Revocation of nodes: permanent and immediate."""

from collections.abc import Collection

import msgspec
from msgspec import Struct

from gatepost.access import node_sessions
from gatepost.access.issuer import Issuer
from gatepost.access.mesh_secrets import MeshSecrets, MeshSecretStore
from gatepost.access.node_directory import KnownNode, NodeDirectory
from gatepost.errors import Forbidden, InvalidRequest, UnknownNode
from gatepost.events import fingerprint_key
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Tx
from gatepost.room.records import MAX_SECRET_REVOKED
from gatepost.room.roles import Act, may_act, role_of_tier
from gatepost.wire.agent_tokens import SecretValue
from gatepost.wire.operations import Tier

# The columns of a revocation row, in the order of the fields of `NodeRevocation`.
_COLUMNS = "node_id, public_key, tier, issuer, revoked_at, last_seq, standing, reason"
_INSERT_REVOCATION = f"INSERT INTO revocation ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT_REVOCATION = f"SELECT {_COLUMNS} FROM revocation WHERE node_id = ?"


class NodeRevocation(Struct, frozen=True):
    """A revocation as its issuer keeps it. In the room it is a signed record.

    The node's events up to `last_seq` still count. `standing` lists the key fingerprints of the
    nodes it admitted that stay admitted. They are listed by fingerprint and not limited by date,
    because a revoked node can backdate admissions.
    """

    node_id: str
    public_key: bytes
    tier: Tier
    issuer: str
    revoked_at: int
    last_seq: int
    standing: tuple[str, ...]
    reason: str


class RevocationResult(SecretValue, frozen=True):
    """The effects of a revocation: sessions to disconnect, and secrets to send to other nodes."""

    revocation: NodeRevocation
    sessions: list[str]
    secrets: MeshSecrets


class NodeRevoker:
    def __init__(self, issuer: Issuer, directory: NodeDirectory, secrets: MeshSecretStore) -> None:
        self._issuer = issuer
        self._directory = directory
        self._secrets = secrets

    def revoke_node(
        self,
        tx: Tx,
        node_id: str,
        *,
        actor: str,
        last_seq: int,
        standing: Collection[str] | None = None,
        reason: str = "",
    ) -> RevocationResult:
        """Revoke a node. Of the nodes it admitted, those in `standing` stay; None keeps all.

        Repeating it changes nothing; the first revocation counts.
        """
        known = self._find_revocable(tx, node_id)
        before = load_revocation(tx, node_id)
        if before is not None:
            return RevocationResult(
                before, node_sessions.end_node_sessions(tx, node_id), self._current_secrets(tx)
            )
        kept = self._fingerprints_to_keep(tx, node_id, standing)
        parties = (known.node_id, known.public_key, known.tier, self._issuer.id)
        revocation = NodeRevocation(*parties, tx.now, last_seq, kept, reason)
        _store_revocation(tx, revocation)
        record_audit_entry(tx, actor, "node.revoke", node_id, reason)
        return RevocationResult(
            revocation,
            node_sessions.end_node_sessions(tx, node_id),
            self._rotate_secrets(tx, known),
        )

    def _find_revocable(self, tx: Tx, node_id: str) -> KnownNode:
        if not may_act(role_of_tier(self._issuer.tier), Act.REVOKE_NODE):
            raise Forbidden(f"{self._issuer.id} is an edge node; revoke from a backbone node")
        if node_id == self._issuer.id:
            raise InvalidRequest("a node cannot revoke itself; do it from another one")
        known = self._directory.by_id(tx, node_id)
        if known is None:
            raise UnknownNode(f"no node {node_id!r} is known here; `gatepost nodes` shows all")
        return known

    def _fingerprints_to_keep(
        self, tx: Tx, node_id: str, chosen: Collection[str] | None
    ) -> tuple[str, ...]:
        admitted = self._directory.admitted_by(tx, node_id)
        if others := sorted(set(chosen or ()) - {each.node_id for each in admitted}):
            raise InvalidRequest(f"{node_id} did not admit {', '.join(others)}")
        kept = [each for each in admitted if chosen is None or each.node_id in chosen]
        return tuple(sorted(fingerprint_key(each.public_key) for each in kept))

    def _rotate_secrets(self, tx: Tx, revoked: KnownNode) -> MeshSecrets:
        """Make secrets that neither this node nor those revoked before it will get."""
        old = self._secrets.current_secrets(tx)
        earlier = () if old is None else old.revoked
        keys = (*earlier, fingerprint_key(revoked.public_key))
        return self._secrets.rotate_secrets(tx, keys[-MAX_SECRET_REVOKED:])

    def _current_secrets(self, tx: Tx) -> MeshSecrets:
        return self._secrets.current_secrets(tx) or self._secrets.rotate_secrets(tx)


def load_revocation(tx: Tx, node_id: str) -> NodeRevocation | None:
    row = tx.fetch_one(_SELECT_REVOCATION, (node_id,))
    return None if row is None else _revocation_from_row(row)


def _store_revocation(tx: Tx, revocation: NodeRevocation) -> None:
    fields = msgspec.structs.asdict(revocation)
    fields["standing"] = msgspec.json.encode(revocation.standing).decode()
    tx.execute(_INSERT_REVOCATION, tuple(fields.values()))


def _revocation_from_row(row: tuple[object, ...]) -> NodeRevocation:
    fields = dict(zip(NodeRevocation.__struct_fields__, row, strict=True))
    fields["standing"] = msgspec.json.decode(str(fields["standing"]))
    return msgspec.convert(fields, NodeRevocation)
