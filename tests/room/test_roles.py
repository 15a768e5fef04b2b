"""Every role tries to write every kind of record, and to do every act."""

import itertools

import pytest
from msgspec.structs import replace

from gatepost.errors import RoomViolation
from gatepost.room import (
    MAPS,
    CoordinationRecord,
    CoordinatorTerm,
    InviteRecord,
    NodeRecord,
    RecordAuthor,
    RoomRecord,
)
from gatepost.room.admission_chain import ChainVerifier
from gatepost.room.roles import ACTORS, WRITERS, Act, Role, may_act, may_write, role_of
from gatepost.room.signed_record import SignedRecord, open_signed_record, sign_record
from tests.room.sample_records import GENESIS, NOW, ROOT, author, entry, node, room
from tests.room.test_signed_record import EVERY_KIND

NODES = {
    Role.EDGE: author("edge"),
    Role.BACKBONE: author("hub", "backbone"),
    Role.COORDINATOR: ROOT,
}
SAMPLES = {type(data): (map, key, data) for _, map, key, data in EVERY_KIND}
KINDS = [kind for schema in MAPS.values() for kind in (schema.own, schema.claim) if kind]


def written_by(who: RecordAuthor, kind: type[RoomRecord], *, tombstone: bool) -> SignedRecord:
    """A record of this kind that says nothing false about its writer."""
    map, key, data = SAMPLES[kind]
    key = f"{key.partition('@')[0]}@{who.node}" if "@" in key else who.node
    if isinstance(data, NodeRecord):
        data = node(who)
    elif isinstance(data, InviteRecord):
        data = replace(data, created_by=who.node)
    elif isinstance(data, CoordinationRecord):
        term = CoordinatorTerm(counter=1, node=who.node)
        data = replace(data, coordinator=who.node, term=term)
    return sign_record(who, map, key, 1, NOW, None if tombstone else data)


@pytest.mark.parametrize("tombstone", [False, True])
@pytest.mark.parametrize(
    ("role", "kind"),
    list(itertools.product(Role, KINDS)),
    ids=lambda each: each.name.lower() if isinstance(each, Role) else each.__name__,
)
def test_a_record_is_accepted_from_the_roles_of_the_table_alone(
    role: Role, kind: type[RoomRecord], tombstone: bool
) -> None:
    signed = written_by(NODES[role], kind, tombstone=tombstone)
    chains = ChainVerifier(GENESIS)
    if role >= WRITERS[kind]:
        assert open_signed_record(signed.text, signed.signature, chains) == signed
    else:
        with pytest.raises(RoomViolation) as refused:
            open_signed_record(signed.text, signed.signature, chains)
        assert refused.value.rule == "role"


def test_the_table_covers_every_record_and_every_act() -> None:
    assert set(WRITERS) == set(KINDS)
    assert set(ACTORS) == set(Act)


def test_the_table_says_this() -> None:
    def names(role: Role) -> set[str]:
        return {kind.__name__ for kind in KINDS if WRITERS[kind] == role}

    assert names(Role.COORDINATOR) == {"CoordinationRecord"}
    assert names(Role.BACKBONE) == {
        *("DescriptorRecord", "InviteRecord", "MeshSecretRecord"),
        *("RevocationRecord", "StandingRecord"),
    }
    assert {act for act in Act if may_act(Role.EDGE, act)} == set()
    assert {act for act in Act if not may_act(Role.BACKBONE, act)} == {
        Act.ROTATE_ROOM,
        Act.SETTLE_OWNER,
    }
    assert all(may_write(Role.COORDINATOR, kind) for kind in KINDS)


@pytest.mark.parametrize("role", Role, ids=lambda role: role.name.lower())
def test_a_member_has_the_role_of_its_admission(role: Role) -> None:
    who = NODES[role]
    link = who.chain[-1]
    assert role_of(link.key, link.tier, GENESIS.key) == role
    member = room(entry(ROOT), entry(who)).effective.nodes[who.node]
    assert member.role == role
    assert all(member.may(act) == may_act(role, act) for act in Act)
