"""API bodies for the room and external agents; the command line decodes the same types."""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from gatepost.events import NodeId
from gatepost.events.envelope import NonNegativeInt, Priority
from gatepost.events.ids import CapabilityIds, NodeIds
from gatepost.wire.agent_tokens import SecretValue
from gatepost.wire.gateway_views import PeerStatus
from gatepost.wire.operations import Reason, Tier

SEED_PATTERN = r"\Ahttps?://[A-Za-z0-9._\[\]:-]{1,260}\Z"
_MAX_TTL_SECS = 30 * 86_400
_MAX_CA_CHARS = 256 * 1024


class NewInvite(Struct, forbid_unknown_fields=True):
    tier: Tier = "edge"
    node: NodeId | None = None
    ttl_secs: Annotated[int, Meta(ge=1, le=_MAX_TTL_SECS)] = 3600


class InviteView(Struct):
    id: str
    tier: str
    node: str | None
    state: str
    created_at: int
    expires_at: int
    used_by: str | None


class InviteResult(Struct):
    """An issued invite. `token` is shown this once."""

    token: str
    seed: str | None
    invite: InviteView


class JoinRequest(Struct, forbid_unknown_fields=True):
    """`ca` is a PEM text of certificates to trust for this gateway, now and later."""

    seed: Annotated[str, Meta(pattern=SEED_PATTERN, max_length=300)]
    token: Annotated[str, Meta(max_length=256)]
    ca: Annotated[str, Meta(max_length=_MAX_CA_CHARS)] = ""


class JoinMeshRequest(SecretValue, frozen=True, forbid_unknown_fields=True):
    """Join with the join secret: by an address (`via`), or by the text of a descriptor."""

    secret: Annotated[str, Meta(max_length=256)]
    via: Annotated[str, Meta(pattern=rf"{SEED_PATTERN}|\A\Z", max_length=300)] = ""
    descriptor: Annotated[str, Meta(max_length=48 * 1024)] = ""
    ca: Annotated[str, Meta(max_length=_MAX_CA_CHARS)] = ""


class NodeIdentity(Struct, forbid_unknown_fields=True):
    """The id of this gateway."""

    id: str


class JoinResult(Struct):
    host: str
    genesis: str
    tier: str


class NodeView(Struct):
    """A member of the room. `connected` is the number of sockets from here to it.

    `state` says how it stands, in words. `peer` says how this gateway stands with it; None for this
    gateway itself.
    """

    id: str
    tier: str
    status: str
    fingerprint: str
    endpoint: str | None
    added_by: str
    last_heartbeat_at: int
    connected: int
    is_self: bool
    peer: PeerStatus | None = None
    state: str = ""


class RevokedView(Struct):
    id: str
    fingerprint: str


class NodeList(Struct):
    """All nodes of the room. `problems`: address → why it is not connected.

    `mesh_problems`: the actions that the mesh needs from an operator, a sentence each.
    """

    nodes: list[NodeView]
    revoked: list[RevokedView]
    problems: dict[str, str]
    mesh_problems: list[str] = []


class PeerReach(Struct, frozen=True):
    """A linked gateway's report: whether it reaches this one at its address in the room.

    `ahead_ms`: how far its clock is ahead of ours. `is_silent`: it did not answer in time;
    `is_busy`: it was asked too often.
    """

    node: str
    version: str = ""
    ahead_ms: int = 0
    has_address: bool = False
    problem: str = ""
    is_busy: bool = False
    is_silent: bool = False


class RevokeRequest(Struct, forbid_unknown_fields=True):
    """`last_seq` is the last event of the node that counts; by default the last one known here.

    `standing` are the nodes it admitted that stay members; by default all that are known here.
    """

    reason: Reason = ""
    last_seq: NonNegativeInt | None = None
    standing: Annotated[tuple[NodeId, ...], Meta(max_length=10_000)] | None = None


class RevocationView(Struct):
    node: str
    revoked_at: int
    connections_ended: int
    last_seq: int


class RoomAgentView(Struct):
    """An agent of the room. The claims of `rivals` do not count. `asked` is the owner we asked."""

    id: str
    owner: str | None
    epoch: int
    standbys: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    asked: str | None = None


class GiveRequest(Struct, forbid_unknown_fields=True):
    """Give an agent of this gateway to `node`."""

    node: NodeId


class ClaimRequest(Struct, forbid_unknown_fields=True):
    """A claim to an agent. With `override` its owner is not asked, and `node` may be any node."""

    override: bool = False
    node: NodeId | None = None


class NewRoute(Struct, forbid_unknown_fields=True):
    """A route to an agent, or to any agent of a node. `owner` defaults to its gateway."""

    owner: NodeId | None = None
    fallbacks: NodeIds = ()
    requires: CapabilityIds = ()
    priority: Priority = 0


class RouteView(Struct):
    """A route. `set_by` is the node whose claim counts."""

    target: str
    owner: str
    fallbacks: tuple[str, ...]
    requires: tuple[str, ...]
    priority: int
    epoch: int
    set_by: str


class RecordView(Struct):
    """A record of the room. `record` is exactly the text its writer signed."""

    map: str
    key: str
    version: int
    writer: str
    state: Literal["live", "tombstone"]
    record: Raw


class RoomView(Struct):
    """All records. Pass `changes` as `seen` in the next request to wait for a change."""

    room: str
    genesis: str
    genesis_key: str
    epoch: int
    changes: int
    records: list[RecordView]
    incidents: dict[str, int]


class VerifyResult(Struct):
    records: int
    problems: list[str]


class RotateResult(Struct):
    """The document the room is in now, and how many records were kept."""

    room: str
    epoch: int
    records: int


class AgentInviteView(Struct):
    id: str
    agent_id: str
    scopes: tuple[str, ...]
    created_by: str
    created_at: int
    expires_at: int
    used_at: int | None
    revoked_at: int | None
    granted_by: str | None


class AgentSessionView(Struct):
    id: str
    agent_id: str
    scopes: tuple[str, ...]
    created_at: int
    seen_at: int
    expires_at: int | None
    revoked_at: int | None
    revoked_by: str | None
    granted_by: str | None


class ExternalAgentList(Struct):
    """External agents: their invites, and their sessions, live or ended.

    `granted_by` is the session that granted the invite; null for the operator.
    """

    invites: list[AgentInviteView]
    sessions: list[AgentSessionView]


class AgentInviteResult(Struct, rename="camel"):
    """An issued agent invite. `inviteToken` is shown this once."""

    invite_token: str
    invite_id: str
    agent_id: str
    scopes: tuple[str, ...]
    expires_at: int


class EndedSessions(Struct):
    agent: str
    sessions: int
