"""The rendezvous descriptor: where the mesh can be reached, for machines that are not in it yet.

Every node names its own address in the room, and to its peers. The publisher merges these intro
points into one record and signs it. The record carries the publisher's chain of admissions, so a
machine that knows the genesis can verify it without being a member. A descriptor has a version and
an end, and at most 32 points. Its content follows from the words of the nodes about themselves: a
publisher that publishes twice, or two publishers during a partition, say the same.
"""

import msgspec
from msgspec import Struct

from gatepost.errors import InvalidRequest, RoomViolation
from gatepost.events import fingerprint_key
from gatepost.events.encryption import KEY_SIZE
from gatepost.mesh.heard_addresses import HeardAddresses
from gatepost.room import (
    ChainVerifier,
    DescriptorPoint,
    DescriptorRecord,
    Genesis,
    RoomMember,
    SharedRoom,
    SignedRecord,
    claim_key,
)
from gatepost.room.records import MAX_DESCRIPTOR_POINTS
from gatepost.room.signed_record import open_signed_record

DESCRIPTOR_PATH = "/.well-known/gatepost/descriptor.json"
MAX_DOCUMENT_BYTES = 48 * 1024
DESCRIPTOR_MAP, NODES_MAP = "rendezvous", "nodes"
_DAY_MS = 86_400_000
LIFE_MS = 7 * _DAY_MS
# How often an unchanged descriptor is renewed.
REFRESH_MS = _DAY_MS
_SKEW_MS = 300_000


class DescriptorDocument(Struct, frozen=True, rename="camel"):
    """The descriptor as a file, and as every node serves it: a signed record, and its genesis."""

    genesis_node: str
    genesis_key: bytes
    record: str
    signature: str

    @classmethod
    def of_record(cls, genesis: Genesis, signed: SignedRecord) -> "DescriptorDocument":
        return cls(genesis.node, genesis.key, signed.text, signed.signature)


class VerifiedDescriptor(Struct, frozen=True):
    """A descriptor whose signature and end were checked."""

    genesis: Genesis
    publisher: str
    version: int
    data: DescriptorRecord


def merge_points(room: SharedRoom, heard: HeardAddresses) -> tuple[DescriptorPoint, ...]:
    """The addresses of all members that can be dialled; backbone nodes and senior ones first."""
    members = sorted(room.effective.nodes.values(), key=lambda member: member.rank)
    points = (_point_of(room, member, heard) for member in members)
    dialable = [point for point in points if point.endpoint_ws or point.onion]
    return tuple(dialable[:MAX_DESCRIPTOR_POINTS])


def _point_of(room: SharedRoom, member: RoomMember, heard: HeardAddresses) -> DescriptorPoint:
    transport = room.effective.transports.get(member.id)
    return DescriptorPoint(
        node=member.id,
        key=fingerprint_key(member.public_key),
        tier=member.tier,
        endpoint_ws=_latest_endpoint(room, member, heard),
        tls_pin=member.record.tls_pin,
        onion=None if transport is None else transport.onion,
    )


def _latest_endpoint(room: SharedRoom, member: RoomMember, heard: HeardAddresses) -> str | None:
    """The latest address of a node, from its record or from its datagrams."""
    said = heard.find_address(member.id, member.public_key)
    written = room.document.record_at((NODES_MAP, member.id, member.public_key))
    if said is None or (written is not None and written.at >= said.since):
        return member.record.endpoint_ws
    return said.endpoint


def renew_descriptor(
    room: SharedRoom, node: str, key: bytes, heard: HeardAddresses, now: int
) -> DescriptorRecord | None:
    """The descriptor that this publisher has to publish; None if the present one is still good."""
    points = merge_points(room, heard)
    known = room.document.record_at((DESCRIPTOR_MAP, claim_key("descriptor", node), key))
    current = known.data if known is not None else None
    if isinstance(current, DescriptorRecord) and _still_says(current, points, now):
        return None
    return DescriptorRecord(issued_at=now, expires_at=now + LIFE_MS, points=points)


def _still_says(current: DescriptorRecord, points: tuple[DescriptorPoint, ...], now: int) -> bool:
    is_fresh = current.issued_at <= now < current.issued_at + REFRESH_MS
    return is_fresh and current.points == points


def find_descriptor(room: SharedRoom, publisher: str | None, now: int) -> SignedRecord | None:
    """The publisher's descriptor; if it has none yet, the latest one of a backbone node."""
    found = [
        signed
        for member in room.effective.nodes.values()
        if member.is_backbone and (signed := _descriptor_of(room, member, now)) is not None
    ]
    return max(found, key=lambda signed: (signed.writer == publisher, signed.at), default=None)


def _descriptor_of(room: SharedRoom, member: RoomMember, now: int) -> SignedRecord | None:
    slot_key = (DESCRIPTOR_MAP, claim_key("descriptor", member.id), member.public_key)
    signed = room.document.record_at(slot_key)
    if signed is None or not isinstance(signed.data, DescriptorRecord):
        return None
    return signed if signed.data.issued_at - _SKEW_MS <= now < signed.data.expires_at else None


def verify_document(
    document: bytes, now: int, genesis_fingerprint: str | None = None
) -> VerifiedDescriptor:
    """Check a descriptor; raise InvalidRequest, with the reason, if it is not to be followed.

    Without the fingerprint of the genesis, the descriptor proves nothing.
    """
    try:
        if len(document) > MAX_DOCUMENT_BYTES:
            raise ValueError
        read = msgspec.json.decode(document, type=DescriptorDocument)
        genesis = Genesis(read.genesis_node, read.genesis_key)
        if len(genesis.key) != KEY_SIZE:
            raise ValueError
        signed = open_signed_record(read.record, read.signature, ChainVerifier(genesis))
    except (ValueError, RecursionError, RoomViolation):
        raise InvalidRequest("this is not a descriptor, or it was altered") from None
    if genesis_fingerprint not in {None, fingerprint_key(genesis.key)}:
        raise InvalidRequest("the descriptor is of another mesh than the join secret")
    if signed.map != DESCRIPTOR_MAP or not isinstance(signed.data, DescriptorRecord):
        raise InvalidRequest("this is not a descriptor, but another record")
    if not signed.data.issued_at - _SKEW_MS <= now < signed.data.expires_at:
        raise InvalidRequest("the descriptor is out of date; get a new one from any member")
    return VerifiedDescriptor(genesis, signed.writer, signed.version, signed.data)


def joinable_points(descriptor: DescriptorRecord) -> list[DescriptorPoint]:
    """The points through which a newcomer can join: backbone nodes, in the publisher's order."""
    return [point for point in descriptor.points if point.tier == "backbone"]
