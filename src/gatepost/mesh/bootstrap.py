"""Joining with the join secret: the request `POST /.rb/<join_secret>`, its judgement, its answer.

The judgement is one value: granted or not. All conditions are evaluated for every request, and
secrets are compared in constant time, so neither the answer nor its time tells which one failed.
"""

from hashlib import sha256
from hmac import compare_digest
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gatepost.access import MeshSecrets
from gatepost.events import NodeId, PublicKey
from gatepost.room import SharedRoom, TransportRecord
from gatepost.wire.agent_tokens import SecretValue

BOOTSTRAP_PREFIX = "/.rb"
MAX_BODY_BYTES = 8 * 1024
MAX_AGE_SECS = 300
# A request from the future comes from a wrong clock, or is meant to be replayed later.
MAX_SKEW_SECS = 5
_MAX_KNOWN_PEERS = 64

ShortField = Annotated[str, Meta(max_length=260)]


class BootstrapRequest(SecretValue, frozen=True):
    """`node_id` and `node_key` name the machine that joins: the invite it gets is for it alone.

    Without both, as in requests of other implementations, any machine can use the invite.
    """

    cluster_token: Annotated[str, Meta(max_length=256)]
    request_time: Annotated[int, Meta(ge=0, le=2**53)]
    node_id: NodeId | None = None
    node_key: PublicKey | None = None
    wg_pubkey: ShortField = ""
    wg_endpoint: ShortField = ""
    tunnel_ip: ShortField = ""

    @property
    def is_keyless(self) -> bool:
        return self.node_id is None and self.node_key is None


class BootstrapPeer(Struct, frozen=True):
    """A member that the joining machine can reach. The WireGuard fields can be empty."""

    node_id: str
    wg_pubkey: str
    wg_endpoint: str
    tunnel_ip: str


class BootstrapAnswer(SecretValue, frozen=True):
    """`invite` is for `POST /ansible/auth/exchange`, which alone decides on admission."""

    success: bool
    responder_node_id: str
    responder_wg_pubkey: str
    responder_wg_endpoint: str
    responder_tunnel_ip: str
    known_peers: tuple[BootstrapPeer, ...]
    invite: str


_NO_SECRETS = MeshSecrets(0, "", "no cluster token", "no join secret")
_NO_REQUEST = BootstrapRequest("", 0)


def decode_request(body: bytes) -> BootstrapRequest | None:
    """The request in a body; None if it is too long or malformed."""
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        return msgspec.json.decode(body, type=BootstrapRequest)
    except (ValueError, RecursionError):
        return None


def is_granted(
    secrets: MeshSecrets | None, path_secret: str, request: BootstrapRequest | None, now: int
) -> bool:
    """Whether the request carries both secrets and is recent. `now` is in milliseconds."""
    known, asked = secrets or _NO_SECRETS, request or _NO_REQUEST
    age = now // 1000 - asked.request_time
    conditions = [
        secrets is not None,
        request is not None,
        _is_same(path_secret, known.join_secret),
        _is_same(asked.cluster_token, known.cluster_token),
        -MAX_SKEW_SECS <= age <= MAX_AGE_SECS,
    ]
    return all(conditions)


def _is_same(given: str, known: str) -> bool:
    """Compare in constant time. The hashes make texts of any length equally long."""
    return compare_digest(sha256(given.encode()).digest(), sha256(known.encode()).digest())


def list_known_peers(room: SharedRoom, *without: str) -> tuple[BootstrapPeer, ...]:
    """The members of the room, senior ones first."""
    members = sorted(room.effective.nodes.values(), key=lambda member: member.rank)
    return tuple(describe_peer(room, m.id) for m in members if m.id not in without)[
        :_MAX_KNOWN_PEERS
    ]


def describe_peer(room: SharedRoom, node: str) -> BootstrapPeer:
    found = room.effective.transports.get(node, TransportRecord())
    endpoint = found.wg_endpoint or found.udp or ""
    return BootstrapPeer(node, found.wg_public_key or "", endpoint, found.tunnel_ip or "")
