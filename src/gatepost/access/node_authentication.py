"""Node authentication: exchange an invite or a proof for a ticket, and a ticket for a connection.

The order of the checks is part of the protocol: a request with several faults is refused for the
first one. With an invite:

1. the token exists and is unused     401 invalid_token, 409 token_already_used, 403 revoked
2. it has not expired                 401 expired_token
3. it is for this node                403 node_mismatch, 403 revoked,
   and the node proves its key        401 proof_required, 401 invalid_proof
4. this exchange is not a replay         409 replay_detected
5. a ticket is minted, for rooms open to other nodes (403 forbidden)
6. the invite is consumed only when a ticket first opens a connection: `redeem_ticket`

With a challenge, steps 1 to 3 are one: the node signs our challenge with the key we know it by.
An unknown node, a wrong key and an expired challenge get the same answer, 401 invalid_proof. Only
a node that proved its key learns that it was revoked.

In development a gateway may admit nodes that send no key. Such a node gets a key that nobody can
sign with, derived from its id, so it can read the room and write nothing. It cannot prove that it
is the node that used an invite before, so one invite opens one connection for it.

`redeem_ticket` checks the ticket's signature (401 invalid_ticket), its expiry (401 expired_ticket),
that it is unused (409 ticket_already_used) and belongs to this node (403 node_mismatch, 403
revoked), then that its invite is still valid for this node (409 token_already_used, 403 revoked).
"""

from msgspec import Struct
from msgspec.structs import replace

from gatepost.access import node_directory, node_invites, node_sessions, tickets
from gatepost.access.auth_messages import Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.access.host_proof import decrypt_invite, sign_host_proof
from gatepost.access.issuer import Issuer
from gatepost.access.node_directory import (
    KnownNode,
    NodeAdmission,
    NodeDirectory,
    revoked_node_error,
)
from gatepost.access.node_invites import NodeInvite
from gatepost.access.node_proof import (
    ChallengeIssuer,
    ProofStatement,
    challenge_ground,
    invite_ground,
)
from gatepost.access.policy import AccessPolicy
from gatepost.access.tickets import AUDIENCE, TicketClaims
from gatepost.access.tokens import new_public_id
from gatepost.errors import (
    Forbidden,
    InvalidProof,
    InvalidTicket,
    NodeMismatch,
    ProofRequired,
)
from gatepost.events import NodeKey
from gatepost.journal.transaction import Tx
from gatepost.wire.operations import Tier


class TicketGround(Struct, frozen=True):
    """The basis for minting a ticket. Each `guard` gives one ticket; it is kept until `ends_at`."""

    node_key: bytes
    guard: str
    ends_at: int
    ticket_ends_at: int
    invite_id: str | None


class AdmittedNode(Struct, frozen=True):
    """A node that may connect to these rooms. `admission` is None if another gateway made it."""

    node_id: str
    public_key: bytes
    tier: Tier
    rooms: tuple[str, ...]
    session_id: str
    admission: NodeAdmission | None


class NodeAuthenticator:
    """Authenticates nodes. Refusals are raised; a returned result is valid only once committed."""

    def __init__(self, issuer: Issuer, policy: AccessPolicy, directory: NodeDirectory) -> None:
        self._issuer = issuer
        self._policy = policy
        self._directory = directory
        self._challenges = ChallengeIssuer(issuer, policy.challenge_life)
        # Stands in for an unknown node's key, so that refusing it takes the same time.
        self._unknown_node_key = NodeKey(issuer.derive_key("nobody")).public

    def make_challenge(self, now: int, nonce: str | None = None) -> Challenge:
        """A new challenge; with the `nonce` of the node, a proof of our own key comes with it."""
        text, expires_at = self._challenges.make_challenge(now)
        made = Challenge(text, expires_at, self._issuer.id, self._issuer.key.public)
        if nonce is None:
            return made
        return replace(made, proof=sign_host_proof(self._issuer.key, made, nonce))

    def issue_ticket(self, tx: Tx, request: ExchangeRequest) -> ExchangeAnswer:
        token = request.invite_token
        if request.encrypted_invite is not None:
            token = decrypt_invite(request.encrypted_invite, self._issuer.key)
        if token is None:
            ground = self._ground_from_challenge(tx, request)
        else:
            ground = self._ground_from_invite(tx, request, token)
        return self._mint_ticket(tx, request, ground)

    def redeem_ticket(self, tx: Tx, ticket: str, node_id: str | None = None) -> AdmittedNode:
        """Admit the node of this ticket. `node_id` is the id the caller claims, if any."""
        claims = tickets.read_ticket(ticket, self._issuer.id, self._issuer.key.public)
        tickets.check_ticket_expiry(claims, tx.now)
        tickets.use_ticket(tx, claims.jti)
        if node_id not in {None, claims.sub}:
            raise NodeMismatch(f"this ticket is for {claims.sub}, not for {node_id}")
        known = self._check_identity(tx, claims.sub, claims.node_key)
        tier, admission = self._tier_and_admission(tx, claims, known)
        node_sessions.open_node_session(tx, claims.sid, claims.sub)
        return AdmittedNode(claims.sub, claims.node_key, tier, claims.rooms, claims.sid, admission)

    # -- issue_ticket

    def _ground_from_invite(self, tx: Tx, request: ExchangeRequest, token: str) -> TicketGround:
        invite = node_invites.find_redeemable_invite(tx, token, self._issuer)
        if invite.expected_node_id not in {None, request.node_id}:
            raise NodeMismatch(
                f"this invite is for node {invite.expected_node_id!r}, and this gateway is"
                f" {request.node_id!r}: invite it by that name"
                f" (`gatepost invite --node {request.node_id}`), or join under the other"
                f" (`gatepost join --node-id {invite.expected_node_id}`)"
            )
        key = self._key_of(request)
        self._check_identity(tx, request.node_id, key)
        self._check_invited_proof(invite, request, key)
        guard = f"{invite_ground(invite.id)}:{request.nonce}"
        ticket_ends_at = min(tx.now + self._policy.ticket_life, invite.expires_at)
        return TicketGround(key, guard, invite.expires_at, ticket_ends_at, invite.id)

    def _key_of(self, request: ExchangeRequest) -> bytes:
        if request.node_key is not None:
            return request.node_key
        if not self._policy.allow_keyless:
            raise _proof_required_error()
        return self._keyless_key(request.node_id)

    def _keyless_key(self, node_id: str) -> bytes:
        """The key of a node without a key: its private half does not exist."""
        return NodeKey(self._issuer.derive_key(f"keyless {node_id}")).public

    def _check_invited_proof(
        self, invite: NodeInvite, request: ExchangeRequest, key: bytes
    ) -> None:
        if invite.expected_key not in {None, key}:
            raise InvalidProof("this invite is for another key")
        if request.node_proof is not None:
            statement = self._proof_statement(request, invite_ground(invite.id), key)
            if not statement.is_signed_by(key, request.node_proof):
                raise InvalidProof("`nodeProof` does not sign this exchange with `nodeKey`")
        elif self._policy.require_proof and request.node_key is not None:
            raise _proof_required_error()

    def _ground_from_challenge(self, tx: Tx, request: ExchangeRequest) -> TicketGround:
        claimed = request.node_key
        if request.node_proof is None or request.challenge is None or claimed is None:
            raise _proof_required_error()
        ends_at = self._challenges.challenge_expiry(request.challenge, tx.now)
        known = self._directory.by_id(tx, request.node_id)
        statement = self._proof_statement(request, challenge_ground(request.challenge), claimed)
        key = self._unknown_node_key if known is None else known.public_key
        proven = statement.is_signed_by(key, request.node_proof)
        if known is None or ends_at is None or not proven:
            raise InvalidProof("ask for a new challenge, and sign it with the key you joined with")
        if known.revoked:
            raise revoked_node_error(known)
        guard = challenge_ground(request.challenge)
        return TicketGround(claimed, guard, ends_at, tx.now + self._policy.ticket_life, None)

    def _proof_statement(self, request: ExchangeRequest, ground: str, key: bytes) -> ProofStatement:
        issuer = self._issuer.key.fingerprint
        return ProofStatement(ground, request.nonce, issuer, request.node_id, key)

    def _mint_ticket(
        self, tx: Tx, request: ExchangeRequest, ground: TicketGround
    ) -> ExchangeAnswer:
        claims = self._ticket_claims(request, ground, tx.now)
        expires_at = claims.exp * 1000
        tickets.remember_ticket(tx, claims.jti, max(ground.ends_at, expires_at), ground.guard)
        if not self._policy.rooms.issuperset(claims.rooms):
            raise Forbidden("a room among `requestedRooms` is not open to other nodes")
        ticket = tickets.sign_ticket(self._issuer, claims)
        issuer = (self._issuer.id, self._issuer.key.public)
        return ExchangeAnswer(ticket, expires_at, claims.rooms, claims.sid, *issuer)

    def _ticket_claims(
        self, request: ExchangeRequest, ground: TicketGround, now: int
    ) -> TicketClaims:
        return TicketClaims(
            iss=self._issuer.id,
            sub=request.node_id,
            aud=AUDIENCE,
            rooms=tuple(dict.fromkeys(request.requested_rooms)),
            invite_id=ground.invite_id,
            jti=self._issuer.clock.random(16).hex(),
            iat=now // 1000,
            exp=ground.ticket_ends_at // 1000,
            sid=new_public_id(self._issuer.clock),
            nonce=request.nonce,
            cnf=tickets.confirm_key(ground.node_key),
        )

    # -- redeem_ticket

    def _tier_and_admission(
        self, tx: Tx, claims: TicketClaims, known: KnownNode | None
    ) -> tuple[Tier, NodeAdmission | None]:
        if claims.invite_id is not None:
            admission = self._admission_by_invite(tx, claims, claims.invite_id)
            return admission.tier, admission
        if known is None:
            raise InvalidTicket(f"node {claims.sub} is no longer known here; join again")
        return known.tier, node_directory.load_admission(tx, claims.sub)

    def _admission_by_invite(self, tx: Tx, claims: TicketClaims, invite_id: str) -> NodeAdmission:
        if node_invites.consume_node_invite(tx, invite_id, claims.sub, claims.node_key):
            tier = node_invites.load_node_invite(tx, invite_id).tier
            return node_directory.admit_node(tx, self._issuer, claims.sub, claims.node_key, tier)
        if claims.node_key == self._keyless_key(claims.sub):
            # The node proved nothing: any holder of the token could have got this second ticket.
            raise node_invites.already_used_error()
        found = node_directory.load_admission(tx, claims.sub)
        assert found is not None, "an invite is consumed only where an admission is made"
        return found

    def _check_identity(self, tx: Tx, node_id: str, node_key: bytes) -> KnownNode | None:
        return node_directory.check_node_identity(
            tx, self._directory, self._issuer, node_id, node_key
        )


def _proof_required_error() -> ProofRequired:
    return ProofRequired(
        "send `nodeKey` and `nodeProof`: with an invite a signature over its exchange,"
        " without one over a challenge from /ansible/auth/challenge"
    )
