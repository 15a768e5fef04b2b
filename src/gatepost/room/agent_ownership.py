"""Agent ownership: picks the owner among the nodes that claim an agent.

An agent starts with epoch 1 at the node that registers it. Its owner passes it on by signing a
transfer with the next epoch. A backbone node may sign the transfer of an agent whose owner is dead.
The new owner's claim carries all transfers since the last one signed by a backbone node, or since
epoch 1. A claim without a valid run of transfers does not count, however high its epoch.

Among the claims that count, these decide in order:

1. the latest epoch that a backbone node signed;
2. the seniority of the line's first owner, because any node can claim to have registered an agent;
3. the latest epoch within that line.

Record versions do not decide. They grow with every heartbeat, and a node must not win an agent by
writing more often.
"""

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from gatepost.events import NodeKey, frame_parts, verify_signature
from gatepost.room.membership import OUTSIDER_RANK, RoomMembership, SeniorityRank
from gatepost.room.records import AgentRecord, AgentTransfer, key_subject
from gatepost.room.signed_record import SignedRecord

# The smallest wins: minus the backbone's epoch, seniority of the line, minus epoch, seniority of
# the gateway, False if the writer claims the agent for itself, writer.
_ClaimOrder = tuple[int, SeniorityRank, int, SeniorityRank, bool, str]


class OwnedAgent(Struct, frozen=True):
    """An agent with its winning claim.

    `rivals` are gateways named by losing claims; `former` are gateways that have owned the agent.
    """

    id: str
    record: AgentRecord
    standbys: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
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
    agent: str, claims: Iterable[SignedRecord], membership: RoomMembership
) -> OwnedAgent | None:
    """Pick the winning claim. The caller passes claims of room members only."""
    ranked: list[tuple[_ClaimOrder, AgentRecord]] = []
    standbys: list[str] = []
    for signed in claims:
        if isinstance(signed.data, AgentRecord) and signed.data.standby:
            standbys.append(signed.writer)
        elif isinstance(signed.data, AgentRecord) and (
            order := _order_claim(signed, signed.data, membership)
        ):
            ranked.append((order, signed.data))
    if not ranked:
        return None
    winner = min(ranked, key=lambda pair: pair[0])[1]
    others = {c.gateway for _, c in ranked if c.gateway is not None} - {winner.gateway}
    rivals = sorted(others) if len({order[:2] for order, _ in ranked}) > 1 else []
    former = sorted(_find_owners(ranked) - {winner.gateway})
    return OwnedAgent(agent, winner, tuple(sorted(standbys)), tuple(rivals), tuple(former))


def _find_owners(ranked: list[tuple[_ClaimOrder, AgentRecord]]) -> set[str]:
    """Every node that has owned the agent, as far as claims tell.

    Of the lines that no backbone node began, only the senior one ever counted.
    """
    senior = min((order[:2] for order, _ in ranked if order[0] == 0), default=None)
    counted = [claim for order, claim in ranked if order[0] < 0 or order[:2] == senior]
    steps = [step for claim in counted for step in claim.transfers]
    owners = {claim.gateway for claim in counted if claim.gateway is not None}
    return owners.union(*((step.giver, step.taker) for step in steps))


def _order_claim(
    signed: SignedRecord, claim: AgentRecord, membership: RoomMembership
) -> _ClaimOrder | None:
    line = _find_line_start(signed, claim, membership)
    if line is None or (claim.gateway is not None and claim.gateway not in membership.members):
        return None
    gateway = _rank_node(claim.gateway, membership)
    return (*line, -claim.epoch, gateway, signed.writer != claim.gateway, signed.writer)


def _find_line_start(
    signed: SignedRecord, claim: AgentRecord, membership: RoomMembership
) -> tuple[int, SeniorityRank] | None:
    """The start of the claim's line: a backbone node's epoch, or else the first owner."""
    if not claim.transfers:
        backed = claim.epoch == 1 and claim.gateway in (signed.writer, None)
        return (0, _rank_node(signed.writer, membership)) if backed else None
    if not _has_valid_transfers(signed, claim, membership):
        return None
    for step in reversed(claim.transfers):
        giver = membership.members.get(step.giver)
        if giver is not None and giver.is_backbone:
            return -step.epoch, giver.rank
    first = claim.transfers[0]
    return (0, _rank_node(first.giver, membership)) if first.epoch == 2 else None


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


def _rank_node(node: str | None, membership: RoomMembership) -> SeniorityRank:
    member = membership.members.get(node) if node is not None else None
    return OUTSIDER_RANK if member is None else member.rank


def _transfer_statement(agent: str, giver: str, taker: str, epoch: int) -> bytes:
    names = (agent.encode(), giver.encode(), taker.encode())
    return frame_parts("gatepost/transfer/1", *names, epoch.to_bytes(8, "big"))
