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
from gatepost.room.records import Agent, Transfer, subject
from gatepost.room.signing import Signed
from gatepost.room.standing import OUTSIDE, Rank, Standing

# The smallest wins: minus the backbone's epoch, seniority of the line, minus epoch, seniority of
# the gateway, False if the writer claims the agent for itself, writer.
_Order = tuple[int, Rank, int, Rank, bool, str]


class Owned(Struct, frozen=True):
    """An agent with its winning claim. `rivals` are gateways named by losing claims."""

    id: str
    record: Agent
    standbys: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()

    @property
    def gateway(self) -> str | None:
        return self.record.gateway


def transfer(key: NodeKey, giver: str, taker: str, agent: str, epoch: int) -> Transfer:
    """Sign, as the owner or a backbone node, that the agent lives behind `taker` from now on."""
    return Transfer(giver, taker, epoch, key.sign(_statement(agent, giver, taker, epoch)))


def handed_over(claim: Agent, step: Transfer, *, by_backbone: bool = False) -> Agent:
    """Return the claim after a transfer. Giver and taker both publish it."""
    before = () if by_backbone else claim.transfers
    return Agent(
        gateway=step.taker,
        type=claim.type,
        role=claim.role,
        last_seen_at=claim.last_seen_at,
        epoch=step.epoch,
        transfers=(*before, step),
    )


def owner(agent: str, claims: Iterable[Signed], membership: Standing) -> Owned | None:
    """Pick the winning claim. The caller passes claims of room members only."""
    ranked: list[tuple[_Order, Agent]] = []
    standbys: list[str] = []
    for signed in claims:
        if isinstance(signed.data, Agent) and signed.data.standby:
            standbys.append(signed.writer)
        elif isinstance(signed.data, Agent) and (order := _order(signed, signed.data, membership)):
            ranked.append((order, signed.data))
    if not ranked:
        return None
    winner = min(ranked, key=lambda pair: pair[0])[1]
    others = {c.gateway for _, c in ranked if c.gateway is not None} - {winner.gateway}
    rivals = sorted(others) if len({order[:2] for order, _ in ranked}) > 1 else []
    return Owned(agent, winner, tuple(sorted(standbys)), tuple(rivals))


def _order(signed: Signed, claim: Agent, membership: Standing) -> _Order | None:
    line = _line(signed, claim, membership)
    if line is None or (claim.gateway is not None and claim.gateway not in membership.members):
        return None
    gateway = _rank(claim.gateway, membership)
    return (*line, -claim.epoch, gateway, signed.writer != claim.gateway, signed.writer)


def _line(signed: Signed, claim: Agent, membership: Standing) -> tuple[int, Rank] | None:
    """The start of the claim's line: a backbone node's epoch, or else the first owner."""
    if not claim.transfers:
        backed = claim.epoch == 1 and claim.gateway in (signed.writer, None)
        return (0, _rank(signed.writer, membership)) if backed else None
    if not _is_backed(signed, claim, membership):
        return None
    for step in reversed(claim.transfers):
        giver = membership.members.get(step.giver)
        if giver is not None and giver.is_backbone:
            return -step.epoch, giver.rank
    first = claim.transfers[0]
    return (0, _rank(first.giver, membership)) if first.epoch == 2 else None


def _is_backed(signed: Signed, claim: Agent, membership: Standing) -> bool:
    steps, last = claim.transfers, claim.transfers[-1]
    joined = all(
        (after.giver, after.epoch) == (before.taker, before.epoch + 1)
        for before, after in pairwise(steps)
    )
    speaks = signed.writer in (last.giver, last.taker)
    names = claim.gateway == last.taker or (claim.gateway is None and signed.writer == last.taker)
    agent = subject(signed.key)
    ends_here = joined and speaks and names and last.epoch == claim.epoch
    return ends_here and all(_is_signed(agent, step, membership) for step in steps)


def _is_signed(agent: str, step: Transfer, membership: Standing) -> bool:
    """Whether the giver signed the transfer. A later revocation of the giver does not undo it."""
    statement = _statement(agent, step.giver, step.taker, step.epoch)
    keys = membership.keys.get(step.giver, ())
    return any(verify_signature(key, statement, step.signature) for key in keys)


def _rank(node: str | None, membership: Standing) -> Rank:
    member = membership.members.get(node) if node is not None else None
    return OUTSIDE if member is None else member.rank


def _statement(agent: str, giver: str, taker: str, epoch: int) -> bytes:
    names = (agent.encode(), giver.encode(), taker.encode())
    return frame_parts("gatepost/transfer/1", *names, epoch.to_bytes(8, "big"))
