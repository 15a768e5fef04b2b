"""Requests and answers of the authentication endpoints (JSON, camelCase).

Bytes are base64 on the wire. A value that carries a secret prints only the name of its type.
"""

from typing import Annotated

from msgspec import Meta, Struct

from gatepost.events import AgentId, NodeId, PublicKey, Signature
from gatepost.room import CONTROL_ROOM
from gatepost.room.records import MAX_RECORD_BYTES
from gatepost.wire.agent_tokens import Nonce, SecretValue, TokenText

RoomId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")]
ScopeName = Annotated[str, Meta(max_length=64)]
Scopes = Annotated[tuple[ScopeName, ...], Meta(min_length=1, max_length=32)]


class Challenge(SecretValue, frozen=True, rename="camel"):
    """A challenge that a known node signs instead of presenting an invite.

    `proof` signs it together with the nonce of the request, if that had one.
    """

    challenge: str
    expires_at: int
    issuer_id: str
    issuer_key: bytes
    proof: bytes = b""


class ExchangeRequest(SecretValue, frozen=True, rename="camel", kw_only=True):
    """A node's request for a ticket, with an invite or a signed challenge.

    `encrypted_invite` is the token of an invite, encrypted to the key of the gateway that issued
    it. A development gateway may admit nodes without `node_key`.
    """

    node_id: NodeId
    node_key: PublicKey | None = None
    nonce: Nonce
    invite_token: TokenText | None = None
    encrypted_invite: Annotated[bytes, Meta(max_length=512)] | None = None
    challenge: TokenText | None = None
    node_proof: Signature | None = None
    requested_rooms: Annotated[tuple[RoomId, ...], Meta(min_length=1, max_length=16)] = (
        CONTROL_ROOM,
    )


class ExchangeAnswer(SecretValue, frozen=True, rename="camel"):
    """`expires_at` is the expiry of the ticket in epoch milliseconds."""

    ws_ticket: str
    expires_at: int
    rooms: tuple[str, ...]
    session_id: str
    issuer_id: str
    issuer_key: bytes


class RevocationRecordProof(Struct, frozen=True):
    """A signed room record which says that a node is revoked."""

    record: Annotated[str, Meta(max_length=MAX_RECORD_BYTES)]
    signature: Annotated[str, Meta(max_length=128)]


class AgentInviteRequest(SecretValue, frozen=True, rename="camel"):
    agent_id: AgentId
    scopes: Scopes
    ttl_secs: Annotated[int, Meta(ge=1, le=30 * 86_400)] = 86_400


class ContextTokenRequest(SecretValue, frozen=True, rename="camel"):
    """`label` names the purpose of the token, such as a conversation or a task."""

    scopes: Scopes
    ttl_secs: Annotated[int, Meta(ge=1, le=900)] = 300
    label: Annotated[str, Meta(max_length=256)] = ""


class ContextToken(SecretValue, frozen=True, rename="camel"):
    context_token: str
    expires_at: int
    scopes: tuple[str, ...]
