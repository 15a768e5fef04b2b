"""Tickets: EdDSA JWTs that open one WebSocket, once, within a minute.

Node keys also sign other data. That data starts with a length and a domain, a JWT with `eyJ`, so
neither can pass for the other. `typ` distinguishes a ticket from any other JWT of this key.
"""

from typing import Annotated, Any, Literal

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.types import Options
from msgspec import Meta, Struct

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import b64, unb64
from gatepost.errors import ExpiredTicket, InvalidTicket, ReplayDetected, TicketAlreadyUsed
from gatepost.events.ids import NodeId
from gatepost.journal.transaction import Tx

AUDIENCE = "ansible-yjs"
_ALGORITHM = "EdDSA"
_TYPE = "gatepost-ticket+jwt"
_MAX_SIZE = 4096
# PyJWT would read the system clock. Time is passed in here, so this module checks it.
_OPTIONS = Options(verify_exp=False, verify_iat=False, verify_nbf=False)
_INVALID = "this ticket is not one of this gateway's; exchange an invite or a proof for one"


class Jwk(Struct, frozen=True):
    x: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{43}\Z")]
    kty: Literal["OKP"] = "OKP"
    crv: Literal["Ed25519"] = "Ed25519"


class Confirmation(Struct, frozen=True):
    """RFC 7800: the key of the node that presents the ticket."""

    jwk: Jwk


class Claims(Struct, frozen=True, kw_only=True, rename={"invite_id": "inviteId"}):
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
    cnf: Confirmation

    @property
    def node_key(self) -> bytes:
        return unb64(self.cnf.jwk.x)


def bound_to(node_key: bytes) -> Confirmation:
    return Confirmation(Jwk(b64(node_key)))


def sign(issuer: Issuer, claims: Claims) -> str:
    key = Ed25519PrivateKey.from_private_bytes(issuer.key.secret)
    return jwt.encode(msgspec.to_builtins(claims), key, _ALGORITHM, headers={"typ": _TYPE})


def read(text: str, issuer_id: str, issuer_key: bytes) -> Claims:
    """Return the claims of a ticket signed by this issuer. Expiry and use are not checked."""
    try:
        decoded = _decode(text, issuer_id, issuer_key)
        return msgspec.convert(decoded["payload"], Claims)
    except (jwt.PyJWTError, msgspec.ValidationError, ValueError, RecursionError):
        raise InvalidTicket(_INVALID) from None


def check_expiry(claims: Claims, now: int) -> None:
    if now >= claims.exp * 1000:
        raise ExpiredTicket("this ticket has expired; exchange the invite or a proof for a new one")


def remember(tx: Tx, jti: str, keep_until: int, guard: str) -> None:
    """Store a ticket; refuse it if its `guard` has given a ticket before."""
    if tx.fetch_one("SELECT 1 FROM ticket WHERE guard = ?", (guard,)) is not None:
        raise ReplayDetected("this exchange was made before; make a new one with a fresh nonce")
    tx.execute("INSERT INTO ticket VALUES (?, ?, NULL, ?)", (jti, guard, keep_until))


def use(tx: Tx, jti: str) -> None:
    row = tx.fetch_one("SELECT used_at FROM ticket WHERE jti = ?", (jti,))
    if row is None:
        # We signed it but do not know it: the journal was restored from a backup since.
        raise InvalidTicket(_INVALID)
    if row[0] is not None:
        raise TicketAlreadyUsed("this ticket was used; a ticket opens one connection, once")
    tx.execute("UPDATE ticket SET used_at = ? WHERE jti = ?", (tx.now, jti))


def _decode(text: str, issuer_id: str, issuer_key: bytes) -> dict[str, Any]:
    if len(text) > _MAX_SIZE:
        raise InvalidTicket(_INVALID)
    decoded = jwt.decode_complete(
        text,
        Ed25519PublicKey.from_public_bytes(issuer_key),
        algorithms=[_ALGORITHM],
        options=_OPTIONS,
        audience=AUDIENCE,
        issuer=issuer_id,
    )
    if decoded["header"].get("typ") != _TYPE:
        raise InvalidTicket(_INVALID)
    return decoded
