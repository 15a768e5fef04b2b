"""Agent ownership: picks the owner among the nodes that claim an agent.

An agent starts with epoch 1 at the node that registers it. Its owner passes it on by signing a
transfer with the next epoch. A backbone node may sign the transfer of an agent whose owner is
revoked, or dead: silent for a long time. The new owner's claim carries all transfers since the last
one signed by a backbone node, or since epoch 1. A claim without a valid run of transfers does not
count, however high its epoch.

The first claim stands. Times in claims do not prove which one was first, because their writers
choose them. So a replica trusts the owner it already knows (known_owners.py). The owner changes if

- the owner signed a transfer,
- a backbone node signed one and the owner is revoked or dead,
- the coordinator signed one, which settles a race of two first claims, or
- the owner withdrew its claim. Then the agent is free.

A replica that knows no owner takes the claim that the coordinator signed, or else that of the
senior node.

Record versions do not decide. They grow with every heartbeat, and a node must not win an agent by
writing more often.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

from msgspec import Struct

from gatepost.events import NodeKey, frame_parts, verify_signature
from gatepost.room.membership import OUTSIDER_RANK, RoomMember, RoomMembership, SeniorityRank
from gatepost.room.records import AgentRecord, AgentTransfer, key_subject
from gatepost.room.roles import Act
from gatepost.room.signed_record import SignedRecord

# Whether a member was silent long enough for a backbone node to override it.
IsDead = Callable[[RoomMember], bool]

# A backbone node raises the epoch of an agent by at most this much, so that epochs do not run out.
_MAX_EPOCH_STEP = 1024
_MAX_FORMER = 16


class KnownOwner(Struct, frozen=True):
    """The owner of an agent that this replica trusts, and the epoch of its claim.

    `former` are the owners before it.
    """

    gateway: str
    epoch: int
    former: tuple[str, ...] = ()


class OwnedAgent(Struct, frozen=True):
    """An agent with its winning claim.

    `rivals` are gateways named by losing claims, and `claimants` the nodes that made these claims.
    A claim of a later epoch without a transfer cannot win; its writer is a claimant, and no rival.
    `former` are gateways that have owned the agent.
    """

    id: str
    record: AgentRecord
    standbys: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    claimants: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    @property
    def gateway(self) -> str | None:
        return self.record.gateway


def sign_transfer(key: NodeKey, giver: str, taker: str, agent: str, epoch: int) -> AgentTransfer:
    """Sign, as the owner or a backbone node, that the agent lives behind `taker` from now on."""
    return AgentTransfer(
        giver, taker, epoch, key.sign(_transfer_statement(agent, giver, taker, epoch))
    )


def transfer_claim(
    claim: AgentRecord, step: AgentTransfer, *, by_backbone: bool = False
) -> AgentRecord:
    """Return the claim after a transfer. Giver and taker both publish it."""
    before = () if by_backbone else claim.transfers
    return AgentRecord(
        gateway=step.taker,
        type=claim.type,
        role=claim.role,
        order=claim.order,
        last_seen_at=claim.last_seen_at,
        epoch=step.epoch,
        transfers=(*before, step),
    )


def choose_owner(
    agent: str,
    claims: Iterable[SignedRecord],
    membership: RoomMembership,
    known: KnownOwner | None = None,
    is_dead: IsDead = lambda member: False,
) -> OwnedAgent | None:
    """Pick the winning claim. The caller passes claims of room members only.

    None if the agent has no owner, or if its known owner has not shown its claim yet.
    """
    counting: list[_Claim] = []
    standbys: list[str] = []
    inventors: set[str] = set()
    for signed in claims:
        if isinstance(signed.data, AgentRecord) and signed.data.standby:
            standbys.append(signed.writer)
        elif isinstance(signed.data, AgentRecord):
            counting += _check_claim(signed, signed.data, membership)
            if signed.data.epoch > 1 and not signed.data.transfers:
                inventors.add(signed.writer)
    choice = _OwnerChoice(counting, membership, is_dead)
    winner = choice.choose_claim(known)
    if winner is None:
        return None
    owners = choice.owners | _owners_in_run(winner) | set(known.former if known else ())
    losers = [c for c in counting if c.gateway is not None and c.gateway not in owners]
    rivals = {claim.gateway for claim in losers if claim.gateway is not None}
    claimants = {claim.root if claim.override else claim.writer for claim in losers}
    claimants |= inventors - owners
    former = sorted(owners - {winner.gateway})[:_MAX_FORMER]
    names = (tuple(sorted(each)) for each in (standbys, rivals, claimants, former))
    return OwnedAgent(agent, winner.record, *names)


class _Claim(Struct, frozen=True):
    """A claim with a valid run of transfers.

    `root` is the first owner of the run, or the backbone node that signed its last override;
    `override` is the epoch of that override, 0 if there is none.
    """

    writer: str
    record: AgentRecord
    root: str
    override: int

    @property
    def gateway(self) -> str | None:
        return self.record.gateway

    @property
    def epoch(self) -> int:
        return self.record.epoch


class _OwnerChoice:
    def __init__(self, claims: list[_Claim], membership: RoomMembership, is_dead: IsDead) -> None:
        self._claims = claims
        self._members = membership.members
        self._is_dead = is_dead
        # The owners between the known one and the winner, inclusive.
        self.owners: set[str] = set()

    def choose_claim(self, known: KnownOwner | None) -> _Claim | None:
        found = None
        if known is None:
            found = self._choose_first()
            known = None if found is None or found.gateway is None else known_owner_of(found)
        # Each turn goes to a later epoch, so there are at most as many as claims.
        while known is not None and (later := self._find_successor(known)) is not None:
            self.owners.add(known.gateway)
            found = later
            known = None if later.gateway is None else known_owner_of(later)
        if known is None:
            return found
        self.owners.add(known.gateway)
        return self._claim_of_owner(known)

    def _choose_first(self) -> _Claim | None:
        """The claim of an agent without a known owner."""
        settled = [claim for claim in self._claims if self._is_settled(claim)]
        own = [claim for claim in self._claims if not claim.override]
        return min(settled or own or self._claims, key=self._order, default=None)

    def _find_successor(self, known: KnownOwner) -> _Claim | None:
        """The claim that follows the known owner's."""
        later = [claim for claim in self._claims if self._succeeds(claim, known)]
        return min(later, key=self._order, default=None)

    def _succeeds(self, claim: _Claim, known: KnownOwner) -> bool:
        if claim.epoch <= known.epoch:
            return False
        handed_on = any(
            step.giver == known.gateway and step.epoch > known.epoch
            for step in claim.record.transfers
        )
        if handed_on or self._is_settled(claim):
            return True
        near = known.epoch < claim.override <= known.epoch + _MAX_EPOCH_STEP
        return near and self._is_gone(known.gateway)

    def _is_settled(self, claim: _Claim) -> bool:
        """Whether the coordinator has signed the claim's last override."""
        signer = self._members.get(claim.root) if claim.override else None
        return signer is not None and signer.may(Act.SETTLE_OWNER)

    def _is_gone(self, gateway: str) -> bool:
        member = self._members.get(gateway)
        return member is None or self._is_dead(member)

    def _claim_of_owner(self, known: KnownOwner) -> _Claim | None:
        """The latest claim of an owner. A restored owner may show an earlier one."""
        owned = [c for c in self._claims if c.gateway == known.gateway]
        left = [c for c in self._claims if c.gateway is None and c.writer == known.gateway]
        valid = [c for c in owned if c.epoch == known.epoch or c.writer == known.gateway]
        return min(valid or left, key=self._order, default=None)

    def _order(self, claim: _Claim) -> tuple[int, SeniorityRank, int, bool, str]:
        """The smallest wins."""
        rank = self._rank_node(claim.root)
        return -claim.override, rank, -claim.epoch, claim.writer != claim.gateway, claim.writer

    def _rank_node(self, node: str) -> SeniorityRank:
        member = self._members.get(node)
        return OUTSIDER_RANK if member is None else member.rank


def known_owner_of(claim: "_Claim | OwnedAgent") -> KnownOwner:
    assert claim.gateway is not None
    former = claim.former if isinstance(claim, OwnedAgent) else ()
    return KnownOwner(claim.gateway, claim.record.epoch, former)


def _owners_in_run(claim: _Claim) -> set[str]:
    """The owners named in the transfers of a claim.

    A backbone node that overrode an owner counts too: it cannot be told from one that gave its own
    agent away.
    """
    names = {name for step in claim.record.transfers for name in (step.giver, step.taker)}
    return names | ({claim.gateway} if claim.gateway else set())


def _check_claim(
    signed: SignedRecord, claim: AgentRecord, membership: RoomMembership
) -> list[_Claim]:
    """The claim, if its transfers are valid and its gateway is a member."""
    if claim.gateway is not None and claim.gateway not in membership.members:
        return []
    if not claim.transfers:
        is_first = claim.epoch == 1 and claim.gateway in (signed.writer, None)
        return [_Claim(signed.writer, claim, signed.writer, 0)] if is_first else []
    if not _has_valid_transfers(signed, claim, membership):
        return []
    for step in reversed(claim.transfers):
        giver = membership.members.get(step.giver)
        if giver is not None and giver.may(Act.OVERRIDE_OWNER):
            return [_Claim(signed.writer, claim, step.giver, step.epoch)]
    first = claim.transfers[0]
    return [_Claim(signed.writer, claim, first.giver, 0)] if first.epoch == 2 else []


def _has_valid_transfers(
    signed: SignedRecord, claim: AgentRecord, membership: RoomMembership
) -> bool:
    steps, last = claim.transfers, claim.transfers[-1]
    joined = all(
        (after.giver, after.epoch) == (before.taker, before.epoch + 1)
        for before, after in pairwise(steps)
    )
    speaks = signed.writer in (last.giver, last.taker)
    names = claim.gateway == last.taker or (claim.gateway is None and signed.writer == last.taker)
    agent = key_subject(signed.key)
    ends_here = joined and speaks and names and last.epoch == claim.epoch
    return ends_here and all(_is_transfer_signed(agent, step, membership) for step in steps)


def _is_transfer_signed(agent: str, step: AgentTransfer, membership: RoomMembership) -> bool:
    """Whether the giver signed the transfer. A later revocation of the giver does not undo it."""
    statement = _transfer_statement(agent, step.giver, step.taker, step.epoch)
    keys = membership.keys.get(step.giver, ())
    return any(verify_signature(key, statement, step.signature) for key in keys)


def _transfer_statement(agent: str, giver: str, taker: str, epoch: int) -> bytes:
    names = (agent.encode(), giver.encode(), taker.encode())
    return frame_parts("gatepost/transfer/1", *names, epoch.to_bytes(8, "big"))
