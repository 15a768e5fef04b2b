"""The six messages of the mesh, and their JSON.

A message is an envelope with a payload. The fields without a default are always written, in this
order; the others are extensions, which a reader may ignore. Unknown fields are ignored too.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, ValidationError

from gatepost.events import AgentId, NodeId
from gatepost.wire.mesh_views import MAX_COUNTER, Term

MAX_KNOWN_PEERS = 16
MAX_INTRO_POINTS = 8
# All announcements have this size, so that an answer is as long as its question.
ANNOUNCE_BYTES = 900

UnixSeconds = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Priority = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Address = Annotated[str, Meta(max_length=128, pattern=r"\A[\x21-\x7e]*\Z")]
ShortText = Annotated[str, Meta(max_length=128, pattern=r"\A[\x21-\x7e]*\Z")]

Cookie = Annotated[str, Meta(max_length=32, pattern=r"\A[\x21-\x7e]*\Z")]


class MessageType(StrEnum):
    HEARTBEAT = "heartbeat"
    PEER_ANNOUNCE = "peer_announce"
    INTRO_POINTS = "intro_points"
    LEASE_CLAIM = "lease_claim"
    LEASE_RELEASE = "lease_release"
    BACKEND_UNHEALTHY = "backend_unhealthy"


class MeshRole(StrEnum):
    PUBLISHER = "publisher"
    STANDBY = "standby"


class KnownPeer(Struct, frozen=True):
    """Another node as gossip names it. Over plain UDP `wg_endpoint` is its address."""

    node_id: NodeId
    wg_pubkey: ShortText
    wg_endpoint: Address
    tunnel_ip: ShortText


class Heartbeat(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A sign of life. `term` is the highest term that its sender knows.

    `is_barred`: its sender does not claim the lease now, whatever its rank. `last_publish_ts` is
    always written, and may be missing in what others write.
    """

    role: MeshRole
    last_publish_ts: UnixSeconds | UnsetType | None = UNSET
    known_peers: Annotated[tuple[KnownPeer, ...], Meta(max_length=MAX_KNOWN_PEERS)]
    intro_point_count: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    priority: Priority | None = None
    term: Term | None = None
    is_barred: bool = False


class PeerAnnounce(Struct, frozen=True, omit_defaults=True):
    """The first message to a node. Outside of a tunnel `hmac` stands for `cluster_token`.

    `padding` makes all announcements equally long: an answer is no longer than its question.
    """

    cluster_token: Annotated[str, Meta(max_length=256)]
    wg_pubkey: ShortText
    wg_endpoint: Address
    tunnel_ip: ShortText
    priority: Priority | None = None
    hmac: Annotated[str, Meta(max_length=64)] = ""
    padding: Annotated[str, Meta(max_length=1200)] = ""


class IntroPoint(Struct, frozen=True):
    """One base64 text that its readers interpret."""

    data: Annotated[str, Meta(max_length=512)]


class IntroPoints(Struct, frozen=True):
    intro_points: Annotated[tuple[IntroPoint, ...], Meta(max_length=MAX_INTRO_POINTS)]
    fetched_at: UnixSeconds


class LeaseClaim(Struct, frozen=True, omit_defaults=True):
    priority: Priority
    term: Term | None = None


class LeaseRelease(Struct, frozen=True, omit_defaults=True):
    term: Term | None = None


class BackendUnhealthy(Struct, frozen=True):
    backend: AgentId


Payload = Heartbeat | PeerAnnounce | IntroPoints | LeaseClaim | LeaseRelease | BackendUnhealthy

PAYLOADS: dict[MessageType, type[Payload]] = {
    MessageType.HEARTBEAT: Heartbeat,
    MessageType.PEER_ANNOUNCE: PeerAnnounce,
    MessageType.INTRO_POINTS: IntroPoints,
    MessageType.LEASE_CLAIM: LeaseClaim,
    MessageType.LEASE_RELEASE: LeaseRelease,
    MessageType.BACKEND_UNHEALTHY: BackendUnhealthy,
}
TYPES: dict[type[Payload], MessageType] = {payload: type for type, payload in PAYLOADS.items()}


class DatagramEnvelope(Struct, frozen=True, omit_defaults=True):
    """The payload stays undecoded until the sender and the time are known to be right.

    Names are compared with those of members, so they need no form here. `to` names the receiver.
    `cookie` is to be returned as `echo` in messages to this sender. `seq` makes two equal messages
    of one second different datagrams. `skew` tells the receiver that its datagrams are refused: its
    clock is this many seconds ahead of the sender's.
    """

    node_id: str
    timestamp: UnixSeconds
    type: Annotated[str, Meta(max_length=64)]
    payload: Raw
    to: str | None = None
    cookie: Cookie = ""
    echo: str = ""
    seq: Annotated[int, Meta(ge=0, le=MAX_COUNTER)] = 0
    skew: Annotated[int, Meta(ge=-MAX_COUNTER, le=MAX_COUNTER)] = 0


class MeshMessage(Struct, frozen=True):
    """A whole message, decoded."""

    sender: str
    payload: Payload
    to: str | None = None
    cookie: str = ""
    echo: str = ""
    skew: int = 0


_encode = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(DatagramEnvelope).decode
_DECODE_PAYLOAD = {
    type.value: msgspec.json.Decoder(payload).decode for type, payload in PAYLOADS.items()
}


def encode_message(message: MeshMessage, timestamp: int, seq: int = 0) -> bytes:
    return _encode(
        DatagramEnvelope(
            message.sender,
            timestamp,
            TYPES[type(message.payload)].value,
            Raw(_encode(message.payload)),
            message.to,
            message.cookie,
            message.echo,
            seq,
            message.skew,
        )
    )


def decode_envelope(text: bytes) -> DatagramEnvelope | None:
    """None if this is not a message."""
    try:
        return _decode_envelope(text)
    except (msgspec.DecodeError, ValidationError, UnicodeDecodeError, RecursionError):
        return None


def decode_payload(envelope: DatagramEnvelope) -> Payload | None:
    """None if the type is unknown, or the payload does not fit it."""
    decode = _DECODE_PAYLOAD.get(envelope.type)
    if decode is None:
        return None
    try:
        return decode(envelope.payload)
    except (msgspec.DecodeError, ValidationError, UnicodeDecodeError, RecursionError):
        return None
