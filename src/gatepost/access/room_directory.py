"""The members of the room and their standing, as admission checks need them."""

from msgspec import Struct

from gatepost.access import KnownNode
from gatepost.events import fingerprint_key
from gatepost.journal import Tx
from gatepost.room import Genesis, NodeRecord, SharedRoom, SignedRecord
from gatepost.room.admission_chain import chain_issuer


class _MemberSnapshot(Struct, frozen=True):
    by_id: dict[str, KnownNode]
    by_key: dict[bytes, KnownNode]
    issued: dict[str, list[KnownNode]]


class RoomDirectory:
    """A snapshot of the members: built in the room's thread, read in the journal's threads."""

    def __init__(self) -> None:
        self._snapshot = _MemberSnapshot({}, {}, {})

    def by_id(self, tx: Tx | None, node_id: str) -> KnownNode | None:
        return self._snapshot.by_id.get(node_id)

    def by_key(self, tx: Tx | None, public_key: bytes) -> KnownNode | None:
        return self._snapshot.by_key.get(public_key)

    def has_member(self, key_fingerprint: str) -> bool:
        members = (s for s in self._snapshot.by_key.values() if not s.revoked)
        return any(fingerprint_key(member.public_key) == key_fingerprint for member in members)

    def admitted_by(self, tx: Tx | None, node_id: str) -> list[KnownNode]:
        return self._snapshot.issued.get(node_id, [])

    def refresh_from(self, room: SharedRoom) -> None:
        standings = [
            _genesis_standing(room.genesis),
            *_member_standings(room),
            *_revoked_standings(room),
        ]
        by_id = {standing.node_id: standing for standing in standings}
        by_key = {standing.public_key: standing for standing in standings}
        self._snapshot = _MemberSnapshot(by_id, by_key, _admissions_by_issuer(room))

    def is_affected_by(self, changed: SignedRecord) -> bool:
        """Return whether a changed record may alter the snapshot: more than a mere heartbeat."""
        if changed.map == "standing":
            return True
        if changed.map != "nodes":
            return False
        known = self._snapshot.by_key.get(changed.public_key)
        same_tier = known is not None and known.tier == changed.chain[-1].tier
        return not (same_tier and isinstance(changed.data, NodeRecord))


def _genesis_standing(genesis: Genesis) -> KnownNode:
    return KnownNode(genesis.node, genesis.key, "backbone", False)


def _member_standings(room: SharedRoom) -> list[KnownNode]:
    members = room.effective.nodes.values()
    return [KnownNode(member.id, member.public_key, member.tier, False) for member in members]


def _revoked_standings(room: SharedRoom) -> list[KnownNode]:
    return [KnownNode(node, key, "edge", True) for node, key in room.effective.membership.revoked]


def _admissions_by_issuer(room: SharedRoom) -> dict[str, list[KnownNode]]:
    issued: dict[str, list[KnownNode]] = {}
    for member in room.effective.nodes.values():
        if member.public_key != room.genesis.key:
            standing = KnownNode(member.id, member.public_key, member.tier, False)
            issued.setdefault(chain_issuer(room.genesis, member.chain), []).append(standing)
    return issued
