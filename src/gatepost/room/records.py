"""The record types of the room: one strict type per map, and no field that could hold a payload.

A key is `<nodeId>` for a node's record about itself, or `<id>@<nodeId>` for a record about a
subject that other nodes may describe too. The second kind is that node's claim, and
record_tables.py picks one among the claims. Either way the key names its only writer.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gatepost.events import AgentId, EventId, MsgId, NodeId, Signature
from gatepost.events.envelope import MAX_JSON_INT, EpochMs, NonNegativeInt, Priority
from gatepost.events.ids import CapabilityId, CapabilityIds, NodeIds
from gatepost.wire.operations import AgentRole, Tier

MAX_KEY_LENGTH = 257
MAX_RECORD_BYTES = 16 * 1024
_DEFAULT_RECORD_BYTES = 4 * 1024

_FINGERPRINT = r"\A[0-9a-f]{32}\Z"
_TLS_PIN = r"\A[0-9a-f]{64}\Z"
_VERSION = r"\A[0-9A-Za-z][0-9A-Za-z.+-]{0,31}\Z"
REFERENCE_PATTERN = r"\A[A-Za-z0-9][A-Za-z0-9._:/@#+-]{0,199}\Z"
_TITLE = r"\A[A-Za-z0-9][A-Za-z0-9 ._:/()&+-]{0,63}\Z"
_INCIDENT_ID = r"\A[A-Za-z0-9][A-Za-z0-9._:/@-]{0,219}\Z"
_CLASS = r"\A[a-z][a-z0-9_]{0,63}\Z"
_URL = r"\Awss?://[A-Za-z0-9.\[\]:_-]{1,253}(/[A-Za-z0-9._~/-]{0,100})?\Z"

_HOST_PORT = r"\A[A-Za-z0-9.\[\]:-]{1,253}:[0-9]{1,5}\Z"
_IP = r"\A[0-9a-fA-F.:]{2,45}\Z"
_WIREGUARD_KEY = r"\A[A-Za-z0-9+/]{43}=\Z"
_WIREGUARD_PROOF = r"\A[A-Za-z0-9+/]{128}\Z"
_ONION = r"\A[a-z2-7]{56}\.onion\Z"

HostPort = Annotated[str, Meta(pattern=_HOST_PORT, max_length=260)]
IpText = Annotated[str, Meta(pattern=_IP, max_length=45)]
WireGuardKey = Annotated[str, Meta(pattern=_WIREGUARD_KEY, max_length=44)]
WireGuardProof = Annotated[str, Meta(pattern=_WIREGUARD_PROOF, max_length=128)]
OnionHost = Annotated[str, Meta(pattern=_ONION, max_length=62)]
_PACKED_POINT = r"\A[A-Za-z0-9+/=]{180,512}\Z"
MasterPoints = Annotated[
    tuple[Annotated[str, Meta(pattern=_PACKED_POINT, max_length=512)], ...], Meta(max_length=4)
]
Fingerprint = Annotated[str, Meta(pattern=_FINGERPRINT, max_length=32)]
TlsPin = Annotated[str, Meta(pattern=_TLS_PIN, max_length=64)]
ProtocolVersion = Annotated[str, Meta(pattern=_VERSION, max_length=32)]
SkillVersion = ProtocolVersion
Reference = Annotated[str, Meta(pattern=REFERENCE_PATTERN, max_length=200)]
Title = Annotated[str, Meta(pattern=_TITLE, max_length=64)]
WebSocketUrl = Annotated[str, Meta(pattern=_URL, max_length=360)]
Seconds = Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)]
Millis = Annotated[int, Meta(ge=1, le=10 * 365 * 86_400_000)]
MAX_EPOCH = 2**31 - 1
Epoch = Annotated[int, Meta(ge=1, le=MAX_EPOCH)]
# A takeover uses the highest counter seen plus one, so the limit leaves headroom above any of them.
Counter = Annotated[int, Meta(ge=1, le=MAX_JSON_INT // 4096)]

# (class, count) pairs in the order of the classes, rather than a dict: records are hashable.
IncidentCounts = Annotated[
    tuple[tuple[Annotated[str, Meta(pattern=_CLASS, max_length=64)], NonNegativeInt], ...],
    Meta(max_length=48),
]
# The most keys that fit into a record with the longest chain of admissions.
MAX_STANDING = 50
MAX_STANDING_PARTS = 200
MAX_SECRET_REVOKED = 32
MAX_DESCRIPTOR_POINTS = 32
Fingerprints = Annotated[tuple[Fingerprint, ...], Meta(max_length=MAX_STANDING)]


class RoomRecord(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Base of all room records: immutable, camelCase, no unknown fields."""


NodeStatus = Literal["online", "degraded", "offline"]


class NodeRecord(RoomRecord, frozen=True, kw_only=True):
    """`nodes.<nodeId>`: a gateway. Tier, addedBy and addedAt repeat its admission.

    `tls_pin` is the pin of its TLS key, if no authority signed its certificate.
    """

    tier: Tier
    endpoint_ws: WebSocketUrl | None = None
    tls_pin: TlsPin | None = None
    capabilities: CapabilityIds = ()
    status: NodeStatus
    last_heartbeat_at: EpochMs
    protocol_version: ProtocolVersion
    added_by: NodeId
    added_at: EpochMs


class RevocationRecord(RoomRecord, frozen=True, kw_only=True):
    """`nodes.<nodeId>@<revoker>`: this node is revoked, under all of its admissions.

    `standing` lists the keys the node admitted that stay admitted. They are listed and not limited
    by date, because a revoked node can backdate admissions. If they are too many for one record,
    `standing_parts` further records hold the others. Events of its outbox count up to and including
    `last_seq`.
    """

    key: Fingerprint
    standing: Fingerprints = ()
    standing_parts: Annotated[int, Meta(ge=0, le=MAX_STANDING_PARTS)] = 0
    last_seq: NonNegativeInt = 0
    revoked_at: EpochMs


class StandingRecord(RoomRecord, frozen=True, kw_only=True):
    """`standing.<key>.<part>@<revoker>`: one part of the keys that a revoked node admitted.

    They stay admitted. The first part of a key is the fingerprint of the revoked node.
    """

    standing: Fingerprints


class AgentTransfer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Signed by `giver`: from `epoch` on the agent lives behind the gateway `taker`."""

    giver: NodeId
    taker: NodeId
    epoch: Epoch
    signature: Signature


AgentTransfers = Annotated[tuple[AgentTransfer, ...], Meta(max_length=8)]


class AgentRecord(RoomRecord, frozen=True, kw_only=True):
    """`agents.<agentId>@<nodeId>`: one node's claim about an agent; see agent_ownership.py.

    `gateway` is None for an agent that has left. A standby hosts the agent but does not own it.
    Messages for an agent with the `order` none have no order unless they ask for it.
    """

    gateway: NodeId | None
    type: Literal["internal", "external"]
    role: AgentRole | None = None
    order: Literal["none"] | None = None
    last_seen_at: EpochMs
    standby: bool = False
    epoch: Epoch = 1
    transfers: AgentTransfers = ()


class RoutingRecord(RoomRecord, frozen=True, kw_only=True):
    """`routing.<agentId or nodeId>@<nodeId>`: how to reach a target."""

    owner_node_id: NodeId
    fallback_node_ids: NodeIds = ()
    requires_capabilities: CapabilityIds = ()
    priority_default: Priority = 0
    epoch: Epoch = 1


class SkillRef(RoomRecord, frozen=True, kw_only=True):
    """A skill by id or path, and its version."""

    ref: Reference
    version: SkillVersion


Attempts = Annotated[int, Meta(ge=1, le=10)]
CapabilityStatus = Literal["active", "deprecated", "disabled"]


class EscalationPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the requester's gateway does about a task of a capability that is late or has failed.

    `notify` is the agent that is told, `after_seconds` after the ETA, when the task fails, or when
    its executor reports no progress.
    A task that is `cancel_after_seconds` later than its ETA is cancelled.
    """

    notify: AgentId | None = None
    after_seconds: Annotated[int, Meta(ge=0, le=10 * 365 * 86_400)] = 0
    cancel_after_seconds: Seconds | None = None


class CapabilityRecord(RoomRecord, frozen=True, kw_only=True):
    """`capabilities.catalog.<capabilityId>@<nodeId>`: a task an agent can do for others."""

    name: Title
    version: SkillVersion
    owner_agent_id: AgentId
    delegation_skill_ref: SkillRef
    executor_skill_ref: SkillRef
    default_eta_seconds: Seconds
    progress_seconds: Seconds | None = None
    contract_schema_ref: Reference
    status: CapabilityStatus
    max_attempts: Attempts = 1
    escalation: EscalationPolicy | None = None
    epoch: Epoch = 1


class EligibilityRecord(RoomRecord, frozen=True, kw_only=True):
    """`capabilities.index.<capabilityId>@<nodeId>`: the agents that offer it now."""

    eligible_agent_ids: Annotated[tuple[AgentId, ...], Meta(max_length=1000)]
    updated_at: EpochMs
    policy_version: NonNegativeInt
    epoch: Epoch = 1


class InviteRecord(RoomRecord, frozen=True, kw_only=True):
    """`invites.<inviteId>@<nodeId>`: an invite of a node, never with its secret."""

    tier: Tier
    expected_node_id: NodeId | None = None
    expires_at: EpochMs
    created_by: NodeId
    used_at: EpochMs | None = None
    revoked_at: EpochMs | None = None


class DeliveryRecord(RoomRecord, frozen=True, kw_only=True):
    """`delivery.<nodeId>`: a gateway's delivery progress, summed over all its sources.

    `incident_counts` are the unresolved incidents of the last 30 days, by class.
    """

    inbox_cursor_acked: NonNegativeInt
    inbox_cursor_seen: NonNegativeInt | None = None
    dead_letter_count: NonNegativeInt = 0
    last_ack_at: EpochMs | None = None
    incident_counts: IncidentCounts = ()


class CoordinatorTerm(RoomRecord, frozen=True, kw_only=True, order=True):
    """A coordinator's term. It includes the node id, so two nodes never share one."""

    counter: Counter
    node: NodeId


class RecordRetention(RoomRecord, frozen=True, kw_only=True):
    """How long control records are kept after they ended."""

    tombstone_ms: Millis = 30 * 86_400_000
    invite_ms: Millis = 7 * 86_400_000
    review_ms: Millis = 30 * 86_400_000


class CoordinatorMandate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The text and signature of a claim by which the genesis permits elections."""

    record: Annotated[str, Meta(max_length=1024)]
    signature: Annotated[str, Meta(max_length=88)]


class CoordinationRecord(RoomRecord, frozen=True, kw_only=True):
    """`coordination.coordinator@<nodeId>`: a node's claim to coordinate, and its settings.

    With `elections` in its own claim, the genesis lets the mesh elect a backbone node to
    coordinate. The claim of an elected node shows that claim of the genesis as its `mandate`.
    """

    coordinator: NodeId
    term: CoordinatorTerm
    sweep_every_seconds: Seconds
    retention: RecordRetention = RecordRetention()
    room_epoch: Epoch = 1
    elections: bool = False
    mandate: CoordinatorMandate | None = None


class ReviewRecord(RoomRecord, frozen=True, kw_only=True):
    """`reviews.<reviewId>@<nodeId>`: a failed delegation that a person has to review."""

    capability_id: CapabilityId
    delegation_skill_version: SkillVersion
    executor_skill_version: SkillVersion
    failure_class: Literal[
        "eta_breach", "sla_breach", "terminal_error", "contract_mismatch", "routing_miss"
    ]
    corr_ids: Annotated[tuple[MsgId, ...], Meta(max_length=8)] = ()
    event_ids: Annotated[tuple[EventId, ...], Meta(max_length=8)] = ()
    raised_at: EpochMs
    count: NonNegativeInt = 1
    status: Literal["open", "resolved", "dismissed"] = "open"
    settled_at: EpochMs | None = None
    settled_by: NodeId | None = None


class IncidentRecord(RoomRecord, frozen=True, kw_only=True):
    """`incidents.<digest of its id>@<nodeId>`: an incident that was posted to a gateway.

    Its detail stays in the journal of that gateway. So does a subject that is not a reference. Of
    an open incident that is over, `settled_at` is when it ended. Gateways that know no ends read
    such a record; they would refuse one with another field.
    """

    id: Annotated[str, Meta(pattern=_INCIDENT_ID, max_length=220)]
    incident_class: Annotated[str, Meta(pattern=_CLASS, max_length=64)]
    subject: Reference | None = None
    corr_ids: Annotated[tuple[MsgId, ...], Meta(max_length=8)] = ()
    raised_at: EpochMs
    status: Literal["open", "resolved", "dismissed"] = "open"
    settled_at: EpochMs | None = None
    settled_by: NodeId | None = None


class EtaAdviceRecord(RoomRecord, frozen=True, kw_only=True):
    """`eta.<capabilityId>@<nodeId>`: the durations of a capability's tasks, as of `at`."""

    p50_ms: NonNegativeInt
    p95_ms: NonNegativeInt
    recommended_eta_seconds: Seconds
    samples: NonNegativeInt
    at: EpochMs


class MeshSecretRecord(RoomRecord, frozen=True, kw_only=True):
    """`secrets.<fingerprint>@<nodeId>`: the mesh secrets, encrypted for the node with this key.

    `revoked` lists the keys that were revoked last when this version was made. A node that does not
    know these revocations yet does not pass the version on.
    """

    version: Counter
    rotated_by: NodeId
    revoked: Annotated[tuple[Fingerprint, ...], Meta(max_length=MAX_SECRET_REVOKED)] = ()
    encrypted: Annotated[bytes, Meta(min_length=1, max_length=400)]


class TransportRecord(RoomRecord, frozen=True, kw_only=True):
    """`transports.<nodeId>`: the addresses at which a node takes datagrams of the mesh.

    `udp` is HOST:PORT. The fields of WireGuard are its public key, the proof that this key is the
    node's, the HOST:PORT of its interface, and its address in the tunnel. `onion` is the host name
    of its onion service. `master_points` are its intro points for the onion service `master_onion`,
    which all nodes share.
    """

    udp: HostPort | None = None
    wg_public_key: WireGuardKey | None = None
    wg_proof: WireGuardProof | None = None
    wg_endpoint: HostPort | None = None
    tunnel_ip: IpText | None = None
    onion: OnionHost | None = None
    master_onion: OnionHost | None = None
    master_points: MasterPoints = ()


class DescriptorPoint(RoomRecord, frozen=True, kw_only=True):
    """A gateway that a newcomer can dial, and the keys by which it recognises the gateway."""

    node: NodeId
    key: Fingerprint
    tier: Tier
    endpoint_ws: WebSocketUrl | None = None
    tls_pin: TlsPin | None = None
    onion: OnionHost | None = None


class DescriptorRecord(RoomRecord, frozen=True, kw_only=True):
    """`rendezvous.descriptor@<nodeId>`: where the mesh can be reached, as its publisher says."""

    issued_at: EpochMs
    expires_at: EpochMs
    points: Annotated[tuple[DescriptorPoint, ...], Meta(max_length=MAX_DESCRIPTOR_POINTS)]


class MapSchema(Struct, frozen=True):
    """Record types of a map, under `<nodeId>` (`own`) and `<id>@<nodeId>` (`claim`); size limit."""

    own: type[RoomRecord] | None = None
    claim: type[RoomRecord] | None = None
    limit: int = _DEFAULT_RECORD_BYTES


MAPS: dict[str, MapSchema] = {
    "nodes": MapSchema(NodeRecord, RevocationRecord),
    "standing": MapSchema(claim=StandingRecord),
    "agents": MapSchema(claim=AgentRecord),
    "routing": MapSchema(claim=RoutingRecord),
    "capabilities.catalog": MapSchema(claim=CapabilityRecord),
    "capabilities.index": MapSchema(claim=EligibilityRecord, limit=MAX_RECORD_BYTES),
    "invites": MapSchema(claim=InviteRecord),
    "delivery": MapSchema(own=DeliveryRecord),
    "coordination": MapSchema(claim=CoordinationRecord),
    "reviews": MapSchema(claim=ReviewRecord),
    "incidents": MapSchema(claim=IncidentRecord),
    "eta": MapSchema(claim=EtaAdviceRecord),
    "secrets": MapSchema(claim=MeshSecretRecord),
    "transports": MapSchema(own=TransportRecord),
    "rendezvous": MapSchema(claim=DescriptorRecord, limit=MAX_RECORD_BYTES),
}


def claim_key(id: str, node_id: str) -> str:
    """The key of a node's claim about `id`."""
    return f"{id}@{node_id}"


def key_subject(key: str) -> str:
    """The id a key describes."""
    return key.partition("@")[0]


def standing_key(fingerprint: str, part: int, node_id: str) -> str:
    """The key of one part of the keys that stay admitted after a revocation."""
    return claim_key(f"{fingerprint}.{part}", node_id)


def key_writer(key: str) -> str:
    """The only node that may write a key."""
    return key.rpartition("@")[2]


def record_type(map: str, key: str) -> type[RoomRecord] | None:
    """The record type at a key of a map; None if the map has no keys of that form."""
    return MAPS[map].claim if "@" in key else MAPS[map].own
