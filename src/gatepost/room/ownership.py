"""Whose an agent is, when several nodes may say that it is theirs.

An agent starts with epoch 1 at the node that registers it. Its owner hands it on by signing a
transfer with the next epoch; a backbone node may sign one for an agent whose owner is dead. The
new owner's claim carries the transfers since the last one that a backbone node signed, or since
epoch 1. A claim that is not backed by them does not count, however high its epoch.

Among claims that count, first comes the later word of a backbone node. Then the line that starts
at the senior node, for anyone may say that an agent was theirs to begin with; in that line the
latest epoch. Versions do not decide: they grow with every sign of life, and who writes more often
does not own more.
"""

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from gatepost.events import NodeKey, frame, verify
from gatepost.room.records import Agent, Transfer, subject
from gatepost.room.signing import Signed
from gatepost.room.standing import OUTSIDE, Rank, Standing

# Smaller wins: minus the backbone's epoch, seniority of the line, minus epoch, seniority of the
# gateway, and at last whoever speaks for itself.
_Order = tuple[int, Rank, int, Rank, bool, str]


class Owned(Struct, frozen=True):
    """An agent as everybody sees it. `rivals` are nodes that claim it too, in vain."""

    id: str
    record: Agent
    standbys: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()

    @property
    def gateway(self) -> str | None:
        return self.record.gateway


def transfer(key: NodeKey, giver: str, taker: str, agent: str, epoch: int) -> Transfer:
    """The owner's word, or a backbone node's, that the agent lives behind `taker` from now on."""
    return Transfer(giver, taker, epoch, key.sign(_statement(agent, giver, taker, epoch)))


def handed_over(claim: Agent, step: Transfer, *, by_backbone: bool = False) -> Agent:
    """The claim after a transfer, for the giver to publish; the taker publishes the same."""
    before = () if by_backbone else claim.transfers
    return Agent(
        gateway=step.taker,
        type=claim.type,
        role=claim.role,
        last_seen_at=claim.last_seen_at,
        epoch=step.epoch,
        transfers=(*before, step),
    )


def owner(agent: str, claims: Iterable[Signed], standing: Standing) -> Owned | None:
    """The agent by its winning claim. All claims are by members."""
    ranked: list[tuple[_Order, Agent]] = []
    standbys: list[str] = []
    for signed in claims:
        if isinstance(signed.data, Agent) and signed.data.standby:
            standbys.append(signed.writer)
        elif isinstance(signed.data, Agent) and (order := _order(signed, signed.data, standing)):
            ranked.append((order, signed.data))
    if not ranked:
        return None
    winner = min(ranked, key=lambda pair: pair[0])[1]
    others = {c.gateway for _, c in ranked if c.gateway is not None} - {winner.gateway}
    rivals = sorted(others) if len({order[:2] for order, _ in ranked}) > 1 else []
    return Owned(agent, winner, tuple(sorted(standbys)), tuple(rivals))


def _order(signed: Signed, claim: Agent, standing: Standing) -> _Order | None:
    line = _line(signed, claim, standing)
    if line is None or (claim.gateway is not None and claim.gateway not in standing.members):
        return None
    gateway = _rank(claim.gateway, standing)
    return (*line, -claim.epoch, gateway, signed.writer != claim.gateway, signed.writer)


def _line(signed: Signed, claim: Agent, standing: Standing) -> tuple[int, Rank] | None:
    """Where the claim's line starts: a backbone node's epoch, or else the first owner."""
    if not claim.transfers:
        backed = claim.epoch == 1 and claim.gateway in (signed.writer, None)
        return (0, _rank(signed.writer, standing)) if backed else None
    if not _is_backed(signed, claim, standing):
        return None
    for step in reversed(claim.transfers):
        giver = standing.members.get(step.giver)
        if giver is not None and giver.is_backbone:
            return -step.epoch, giver.rank
    first = claim.transfers[0]
    return (0, _rank(first.giver, standing)) if first.epoch == 2 else None


def _is_backed(signed: Signed, claim: Agent, standing: Standing) -> bool:
    steps, last = claim.transfers, claim.transfers[-1]
    joined = all(
        (after.giver, after.epoch) == (before.taker, before.epoch + 1)
        for before, after in pairwise(steps)
    )
    speaks = signed.writer in (last.giver, last.taker)
    names = claim.gateway == last.taker or (claim.gateway is None and signed.writer == last.taker)
    agent = subject(signed.key)
    ends_here = joined and speaks and names and last.epoch == claim.epoch
    return ends_here and all(_is_signed(agent, step, standing) for step in steps)


def _is_signed(agent: str, step: Transfer, standing: Standing) -> bool:
    """Whether the giver signed it, also if it has been revoked since: it gave what it had."""
    said = _statement(agent, step.giver, step.taker, step.epoch)
    keys = standing.keys.get(step.giver, ())
    return any(verify(key, said, step.signature) for key in keys)


def _rank(node: str | None, standing: Standing) -> Rank:
    member = standing.members.get(node) if node is not None else None
    return OUTSIDE if member is None else member.rank


def _statement(agent: str, giver: str, taker: str, epoch: int) -> bytes:
    names = (agent.encode(), giver.encode(), taker.encode())
    return frame("gatepost/transfer/1", *names, epoch.to_bytes(8, "big"))
