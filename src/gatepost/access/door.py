"""Node authentication: exchange an invite or a proof for a ticket, and a ticket for a connection.

The order of the checks is part of the protocol: a request with several faults is refused for the
first one. With an invite:

1. the token exists and is unused     401 invalid_token, 409 token_already_used, 403 revoked
2. it has not expired                 401 expired_token
3. it is for this node                403 node_mismatch, 403 revoked,
   and the node proves its key        401 proof_required, 401 invalid_proof
4. this exchange is no replay         409 replay_detected
5. a ticket is minted, for rooms open to other nodes (403 forbidden)
6. the invite is consumed only when a ticket first opens a connection: `redeem_ticket`

With a challenge, steps 1 to 3 are one: the node signs our challenge with the key we know it by.
An unknown node, a wrong key and an expired challenge get the same answer, 401 invalid_proof. Only
a node that proved its key learns that it was revoked.

`redeem_ticket` checks the ticket's signature (401 invalid_ticket), its expiry (401 expired_ticket),
that it is unused (409 ticket_already_used) and belongs to this node (403 node_mismatch, 403
revoked), then that its invite is still valid for this node (409 token_already_used, 403 revoked).
"""

from msgspec import Struct

from gatepost.access import invites, nodes, sessions, tickets
from gatepost.access.forms import Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.access.invites import Invite
from gatepost.access.issuer import Issuer
from gatepost.access.nodes import Admission, Directory, Standing, shut_out
from gatepost.access.policy import Policy
from gatepost.access.proof import Challenges, Statement, by_challenge, by_invite
from gatepost.access.tickets import AUDIENCE, Claims
from gatepost.access.tokens import new_id
from gatepost.errors import (
    Forbidden,
    InvalidProof,
    InvalidTicket,
    NodeMismatch,
    ProofRequired,
)
from gatepost.events import NodeKey
from gatepost.journal.transaction import Tx
from gatepost.wire import Tier


class Ground(Struct, frozen=True):
    """The basis for minting a ticket. Each `guard` gives one ticket; it is kept until `ends_at`."""

    guard: str
    ends_at: int
    ticket_ends_at: int
    invite_id: str | None


class Admitted(Struct, frozen=True):
    """A node that may connect to these rooms. `admission` is None if another gateway made it."""

    node_id: str
    public_key: bytes
    tier: Tier
    rooms: tuple[str, ...]
    session_id: str
    admission: Admission | None


class Door:
    """Authenticates nodes. Refusals are raised; a returned result is valid only once committed."""

    def __init__(self, issuer: Issuer, policy: Policy, directory: Directory) -> None:
        self._issuer = issuer
        self._policy = policy
        self._directory = directory
        self._challenges = Challenges(issuer, policy.challenge_life)
        # Used in place of an unknown node's key, so that refusing an unknown node takes as long.
        self._nobody = NodeKey(issuer.derive("nobody")).public

    def challenge(self, now: int) -> Challenge:
        text, expires_at = self._challenges.make(now)
        return Challenge(text, expires_at, self._issuer.id, self._issuer.key.public)

    def exchange(self, tx: Tx, request: ExchangeRequest) -> ExchangeAnswer:
        if request.invite_token is None:
            ground = self._by_proof(tx, request)
        else:
            ground = self._by_invite(tx, request, request.invite_token)
        return self._mint(tx, request, ground)

    def admit(self, tx: Tx, ticket: str, node_id: str | None = None) -> Admitted:
        """Admit the node of this ticket. `node_id` is the id the caller claims, if any."""
        claims = tickets.read(ticket, self._issuer.id, self._issuer.key.public)
        tickets.check_expiry(claims, tx.now)
        tickets.use(tx, claims.jti)
        if node_id not in {None, claims.sub}:
            raise NodeMismatch(f"this ticket is for {claims.sub}, not for {node_id}")
        known = self._identify(tx, claims.sub, claims.node_key)
        tier, admission = self._enter(tx, claims, known)
        sessions.open(tx, claims.sid, claims.sub)
        return Admitted(claims.sub, claims.node_key, tier, claims.rooms, claims.sid, admission)

    # -- issue_ticket

    def _by_invite(self, tx: Tx, request: ExchangeRequest, token: str) -> Ground:
        invite = invites.redeemable(tx, token, self._issuer)
        if invite.expected_node_id not in {None, request.node_id}:
            raise NodeMismatch("this invite is for another node; check `node.id`")
        self._identify(tx, request.node_id, request.node_key)
        self._check_invited_proof(invite, request)
        guard = f"{by_invite(invite.id)}:{request.nonce}"
        ticket_ends_at = min(tx.now + self._policy.ticket_life, invite.expires_at)
        return Ground(guard, invite.expires_at, ticket_ends_at, invite.id)

    def _check_invited_proof(self, invite: Invite, request: ExchangeRequest) -> None:
        if invite.expected_key not in {None, request.node_key}:
            raise InvalidProof("this invite is for another key")
        if request.node_proof is not None:
            statement = self._statement(request, by_invite(invite.id))
            if not statement.signed_by(request.node_key, request.node_proof):
                raise InvalidProof("`nodeProof` does not sign this exchange with `nodeKey`")
        elif self._policy.require_proof:
            raise _proof_required()

    def _by_proof(self, tx: Tx, request: ExchangeRequest) -> Ground:
        if request.node_proof is None or request.challenge is None:
            raise _proof_required()
        ends_at = self._challenges.end_of(request.challenge, tx.now)
        known = self._directory.by_id(tx, request.node_id)
        statement = self._statement(request, by_challenge(request.challenge))
        key = self._nobody if known is None else known.public_key
        proven = statement.signed_by(key, request.node_proof)
        if known is None or ends_at is None or not proven:
            raise InvalidProof("ask for a new challenge, and sign it with the key you joined with")
        if known.revoked:
            raise shut_out(known)
        guard = by_challenge(request.challenge)
        return Ground(guard, ends_at, tx.now + self._policy.ticket_life, None)

    def _statement(self, request: ExchangeRequest, ground: str) -> Statement:
        issuer = self._issuer.key.fingerprint
        return Statement(ground, request.nonce, issuer, request.node_id, request.node_key)

    def _mint(self, tx: Tx, request: ExchangeRequest, ground: Ground) -> ExchangeAnswer:
        claims = self._claims(request, ground, tx.now)
        expires_at = claims.exp * 1000
        tickets.remember(tx, claims.jti, max(ground.ends_at, expires_at), ground.guard)
        if not self._policy.rooms.issuperset(claims.rooms):
            raise Forbidden("a room among `requestedRooms` is not open to other nodes")
        ticket = tickets.sign(self._issuer, claims)
        issuer = (self._issuer.id, self._issuer.key.public)
        return ExchangeAnswer(ticket, expires_at, claims.rooms, claims.sid, *issuer)

    def _claims(self, request: ExchangeRequest, ground: Ground, now: int) -> Claims:
        return Claims(
            iss=self._issuer.id,
            sub=request.node_id,
            aud=AUDIENCE,
            rooms=tuple(dict.fromkeys(request.requested_rooms)),
            invite_id=ground.invite_id,
            jti=self._issuer.clock.random(16).hex(),
            iat=now // 1000,
            exp=ground.ticket_ends_at // 1000,
            sid=new_id(self._issuer.clock),
            nonce=request.nonce,
            cnf=tickets.bound_to(request.node_key),
        )

    # -- redeem_ticket

    def _enter(
        self, tx: Tx, claims: Claims, known: Standing | None
    ) -> tuple[Tier, Admission | None]:
        if claims.invite_id is not None:
            admission = self._admission(tx, claims, claims.invite_id)
            return admission.tier, admission
        if known is None:
            raise InvalidTicket(f"node {claims.sub} is no longer known here; join again")
        return known.tier, nodes.admission_of(tx, claims.sub)

    def _admission(self, tx: Tx, claims: Claims, invite_id: str) -> Admission:
        if invites.consume(tx, invite_id, claims.sub, claims.node_key):
            tier = invites.get(tx, invite_id).tier
            return nodes.admit(tx, self._issuer, claims.sub, claims.node_key, tier)
        found = nodes.admission_of(tx, claims.sub)
        assert found is not None, "an invite is consumed only where an admission is made"
        return found

    def _identify(self, tx: Tx, node_id: str, node_key: bytes) -> Standing | None:
        return nodes.check_identity(tx, self._directory, self._issuer, node_id, node_key)


def _proof_required() -> ProofRequired:
    return ProofRequired(
        "send `nodeProof`: with an invite a signature over its exchange,"
        " without one over a challenge from /ansible/auth/challenge"
    )
