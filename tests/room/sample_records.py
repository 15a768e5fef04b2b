"""Nodes and records for the tests of the room."""

from collections.abc import Iterable
from functools import cache
from random import Random

from msgspec.structs import replace

from gatepost.events import NodeKey
from gatepost.room import (
    AgentRecord,
    CoordinationRecord,
    CoordinatorTerm,
    DeliveryRecord,
    Genesis,
    NodeRecord,
    RecordAuthor,
    RevocationRecord,
    RoomRecord,
    SharedRoom,
    SignedRecord,
    append_admission,
    claim_key,
    found_room,
    sign_admission,
)
from gatepost.room.admission_chain import chain_issuer
from gatepost.room.document import RoomDocument, SlotKey
from gatepost.room.epoch_proof import EpochProof, make_epoch_proof
from gatepost.room.room import room_id
from gatepost.room.signed_record import sign_record
from gatepost.room.yjs_update import MAX_UPDATE_BYTES, RecordSlot, encode_in_chunks
from gatepost.wire.operations import Tier

NOW = 1_700_000_000_000


@cache
def key(node: str) -> NodeKey:
    return NodeKey(Random(node).randbytes(32))


GENESIS, ROOT_CHAIN = found_room(key("root"), "root", NOW)
ROOT = RecordAuthor(key("root"), ROOT_CHAIN)


@cache
def author(node: str, tier: Tier = "edge", by: RecordAuthor = ROOT, at: int = NOW) -> RecordAuthor:
    link = sign_admission(by.key, by.node, node, key(node).public, tier, at)
    return RecordAuthor(key(node), append_admission(GENESIS, by.chain, link))


def node(who: RecordAuthor, genesis: Genesis = GENESIS) -> NodeRecord:
    link = who.chain[-1]
    return NodeRecord(
        tier=link.tier,
        endpoint_ws=f"ws://{who.node}:8700",
        status="online",
        last_heartbeat_at=NOW,
        protocol_version="1.0",
        added_by=chain_issuer(genesis, who.chain),
        added_at=link.issued_at,
    )


def agent(gateway: str | None) -> AgentRecord:
    return AgentRecord(gateway=gateway, type="internal", role="worker", last_seen_at=NOW)


def delivery(cursor: int) -> DeliveryRecord:
    return DeliveryRecord(
        inbox_cursor_acked=cursor, inbox_cursor_seen=cursor, last_ack_at=NOW + cursor
    )


def entry(who: RecordAuthor, version: int = 1, **changes: object) -> SignedRecord:
    """The node's own record."""
    return sign_record(who, "nodes", who.node, version, NOW, replace(node(who), **changes))


def claim(
    who: RecordAuthor, map: str, id: str, data: RoomRecord | None, version: int = 1
) -> SignedRecord:
    return sign_record(who, map, claim_key(id, who.node), version, NOW, data)


def revocation(
    who: RecordAuthor, of: RecordAuthor, *standing: RecordAuthor, version: int = 1
) -> SignedRecord:
    data = RevocationRecord(
        key=of.key.fingerprint,
        standing=tuple(s.key.fingerprint for s in standing),
        last_seq=7,
        revoked_at=NOW,
    )
    return claim(who, "nodes", of.node, data, version)


def coordination(epoch: int, version: int = 1, by: RecordAuthor = ROOT) -> SignedRecord:
    """The claim to coordinate that names this epoch."""
    data = CoordinationRecord(
        coordinator=by.node,
        term=CoordinatorTerm(counter=version, node=by.node),
        sweep_every_seconds=60,
        room_epoch=epoch,
    )
    return claim(by, "coordination", "coordinator", data, version)


def proof_of(epoch: int, by: RecordAuthor = ROOT) -> EpochProof:
    return make_epoch_proof(coordination(epoch, by=by))


def update(*records: SignedRecord, epoch: int = 1) -> bytes:
    """These records as an honest node sends them: of each slot the latest."""
    slots: dict[SlotKey, SignedRecord] = {}
    for signed in records:
        known = slots.get(signed.slot_key, signed)
        slots[signed.slot_key] = max(known, signed, key=lambda each: each.version_order)
    (only,) = RoomDocument(room_id(epoch)).encode_updates(slots.values())
    return only


def encode_update(slots: Iterable[RecordSlot]) -> bytes:
    (only,) = encode_in_chunks(slots, MAX_UPDATE_BYTES)
    return only


def publish(
    into: SharedRoom, map: str, key: str, data: RoomRecord | None, now: int
) -> tuple[SignedRecord, ...]:
    """Draft and accept a record of the room's author; return the changed records."""
    draft = into.draft_record(map, key, data, now)
    return into.accept_drafts([draft] if draft else []).changed


def placed(signed: SignedRecord, **changes: object) -> bytes:
    """An update that is the honest one but for these changes to its Yjs structure."""
    client = RoomDocument(room_id(1)).yjs_client(signed.slot_key)
    slot = RecordSlot(client, signed.version, signed.map, signed.key, signed.text, signed.signature)
    return encode_update([replace(slot, **changes)])


def room(*records: SignedRecord, of: RecordAuthor | None = None) -> SharedRoom:
    return SharedRoom(GENESIS, author=of, records=records)


def contents(of: SharedRoom) -> set[str]:
    """Everything a replica holds."""
    return {signed.text for signed in of.document}


def shown(of: SharedRoom) -> dict[str, object]:
    """Everything a replica makes of it."""
    view = of.effective
    return {
        "nodes": dict(view.nodes),
        "revoked": {
            identity: {s.text for s in by} for identity, by in view.membership.revoked.items()
        },
        "agents": dict(view.agents),
        "routing": dict(view.routing),
        "catalog": dict(view.capability_catalog),
        "index": dict(view.capability_index),
        "invites": dict(view.invites),
        "delivery": dict(view.delivery),
        "reviews": dict(view.reviews),
        "coordination": view.coordination,
    }
