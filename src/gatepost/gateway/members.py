"""The members of the room and their standing, as admission checks need them."""

from msgspec import Struct

from gatepost.access import Standing
from gatepost.events import fingerprint_key
from gatepost.journal import Tx
from gatepost.room import Genesis, Node, Room, Signed
from gatepost.room.admission import issuer_of


class _Picture(Struct, frozen=True):
    by_id: dict[str, Standing]
    by_key: dict[bytes, Standing]
    issued: dict[str, list[Standing]]


class RoomDirectory:
    """A snapshot of the members: built in the room's thread, read in the journal's threads."""

    def __init__(self) -> None:
        self._picture = _Picture({}, {}, {})

    def by_id(self, tx: Tx | None, node_id: str) -> Standing | None:
        return self._picture.by_id.get(node_id)

    def by_key(self, tx: Tx | None, public_key: bytes) -> Standing | None:
        return self._picture.by_key.get(public_key)

    def has_member(self, key_fingerprint: str) -> bool:
        members = (s for s in self._picture.by_key.values() if not s.revoked)
        return any(fingerprint_key(member.public_key) == key_fingerprint for member in members)

    def admitted_by(self, tx: Tx | None, node_id: str) -> list[Standing]:
        return self._picture.issued.get(node_id, [])

    def refresh(self, room: Room) -> None:
        standings = [_of_genesis(room.genesis), *_members(room), *_revoked(room)]
        by_id = {standing.node_id: standing for standing in standings}
        by_key = {standing.public_key: standing for standing in standings}
        self._picture = _Picture(by_id, by_key, _issued(room))

    def is_out_of_date(self, changed: Signed) -> bool:
        """Return whether a changed record may alter the snapshot: more than a mere heartbeat."""
        if changed.map != "nodes":
            return False
        known = self._picture.by_key.get(changed.public_key)
        same_tier = known is not None and known.tier == changed.chain[-1].tier
        return not (same_tier and isinstance(changed.data, Node))


def _of_genesis(genesis: Genesis) -> Standing:
    return Standing(genesis.node, genesis.key, "backbone", False)


def _members(room: Room) -> list[Standing]:
    members = room.view.nodes.values()
    return [Standing(member.id, member.public_key, member.tier, False) for member in members]


def _revoked(room: Room) -> list[Standing]:
    return [Standing(node, key, "edge", True) for node, key in room.view.standing.revoked]


def _issued(room: Room) -> dict[str, list[Standing]]:
    issued: dict[str, list[Standing]] = {}
    for member in room.view.nodes.values():
        if member.public_key != room.genesis.key:
            standing = Standing(member.id, member.public_key, member.tier, False)
            issued.setdefault(issuer_of(room.genesis, member.chain), []).append(standing)
    return issued
