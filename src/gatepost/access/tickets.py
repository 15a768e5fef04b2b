"""Tickets: EdDSA JWTs that open one WebSocket, once, within a minute.

Node keys also sign other data. That data starts with a length and a domain, a JWT with `eyJ`, so
neither can pass for the other. `typ` distinguishes a ticket from any other JWT of this key.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import decode_b64, encode_b64
from gatepost.errors import ExpiredTicket, InvalidTicket, ReplayDetected, TicketAlreadyUsed
from gatepost.events.ids import NodeId
from gatepost.journal.transaction import Tx

AUDIENCE = "ansible-yjs"
_ALGORITHM = "EdDSA"
_TICKET_TYPE = "gatepost-ticket+jwt"
_MAX_TICKET_CHARS = 4096
_INVALID_MESSAGE = "this ticket is not one of this gateway's; exchange an invite or a proof for one"


class NodeKeyJwk(Struct, frozen=True):
    x: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{43}\Z")]
    kty: Literal["OKP"] = "OKP"
    crv: Literal["Ed25519"] = "Ed25519"


class TicketConfirmation(Struct, frozen=True):
    """RFC 7800: the key of the node that presents the ticket."""

    jwk: NodeKeyJwk


class TicketClaims(Struct, frozen=True, kw_only=True, rename={"invite_id": "inviteId"}):
    """`sub` is the node to admit, `nonce` the node's own from the exchange; times are seconds."""

    iss: str
    sub: NodeId
    aud: str
    rooms: tuple[str, ...]
    invite_id: str | None
    jti: str
    iat: int
    exp: int
    sid: str
    nonce: str
    cnf: TicketConfirmation

    @property
    def node_key(self) -> bytes:
        return decode_b64(self.cnf.jwk.x)


def confirm_key(node_key: bytes) -> TicketConfirmation:
    return TicketConfirmation(NodeKeyJwk(encode_b64(node_key)))


def sign_ticket(issuer: Issuer, claims: TicketClaims) -> str:
    # PyJWT and cryptography take 8 MB, which a gateway without joining nodes saves.
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(issuer.key.secret)
    return jwt.encode(msgspec.to_builtins(claims), key, _ALGORITHM, headers={"typ": _TICKET_TYPE})


def read_ticket(text: str, issuer_id: str, issuer_key: bytes) -> TicketClaims:
    """Return the claims of a ticket signed by this issuer. Expiry and use are not checked."""
    import jwt

    try:
        decoded = _decode_ticket(text, issuer_id, issuer_key)
        return msgspec.convert(decoded["payload"], TicketClaims)
    except (jwt.PyJWTError, msgspec.ValidationError, ValueError, RecursionError):
        raise InvalidTicket(_INVALID_MESSAGE) from None


def check_ticket_expiry(claims: TicketClaims, now: int) -> None:
    if now >= claims.exp * 1000:
        raise ExpiredTicket("this ticket has expired; exchange the invite or a proof for a new one")


def remember_ticket(tx: Tx, jti: str, keep_until: int, guard: str) -> None:
    """Store a ticket; refuse it if its `guard` has given a ticket before."""
    if tx.fetch_one("SELECT 1 FROM ticket WHERE guard = ?", (guard,)) is not None:
        raise ReplayDetected("this exchange was made before; make a new one with a fresh nonce")
    tx.execute(
        "INSERT INTO ticket (jti, guard, keep_until) VALUES (?, ?, ?)", (jti, guard, keep_until)
    )


def use_ticket(tx: Tx, jti: str) -> None:
    row = tx.fetch_one("SELECT used_at FROM ticket WHERE jti = ?", (jti,))
    if row is None:
        # Our signature on an unknown ticket means that the journal was restored from a backup.
        raise InvalidTicket(_INVALID_MESSAGE)
    if row[0] is not None:
        raise TicketAlreadyUsed("this ticket was used; a ticket opens one connection, once")
    tx.execute("UPDATE ticket SET used_at = ? WHERE jti = ?", (tx.now, jti))


def _decode_ticket(text: str, issuer_id: str, issuer_key: bytes) -> dict[str, Any]:
    if len(text) > _MAX_TICKET_CHARS:
        raise InvalidTicket(_INVALID_MESSAGE)
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    decoded = jwt.decode_complete(
        text,
        Ed25519PublicKey.from_public_bytes(issuer_key),
        algorithms=[_ALGORITHM],
        # PyJWT would read the system clock. Time is passed in here, so this module checks it.
        options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
        audience=AUDIENCE,
        issuer=issuer_id,
    )
    if decoded["header"].get("typ") != _TICKET_TYPE:
        raise InvalidTicket(_INVALID_MESSAGE)
    return decoded
