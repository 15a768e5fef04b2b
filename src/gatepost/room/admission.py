"""Why a node belongs: a chain of admissions, each signed by the node before, from the genesis on.

Every record carries its writer's chain. So whether a record may stand in the room is a question
about that record alone: the answer is the same for every replica, in any order of arrival, and
does not change when somebody is revoked later. Whether it counts is the view's question.
"""

from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct

from gatepost.errors import RoomViolation
from gatepost.events import NodeId, NodeKey, fingerprint, frame, verify
from gatepost.events.envelope import EpochMs
from gatepost.room.records import Signature
from gatepost.wire import Tier

MAX_DEPTH = 6
_CACHED = 10_000

PublicKey = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Link(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One admission: the node before it in the chain says that this node has this key and tier."""

    node: NodeId
    tier: Tier
    issued_at: EpochMs
    key: PublicKey
    signature: Signature

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


Chain = Annotated[tuple[Link, ...], Meta(min_length=1, max_length=MAX_DEPTH)]


class Genesis(Struct, frozen=True):
    """The node everything is traced back to. It cannot be admitted, nor revoked, by others."""

    node: NodeId
    key: PublicKey


def statement(node: str, key: bytes, tier: str, issuer: str, issued_at: int) -> bytes:
    """What an issuer signs."""
    words = (node.encode(), tier.encode(), issuer.encode())
    return frame("gatepost/admission/1", *words, key, issued_at.to_bytes(8, "big"))


def admit(key: NodeKey, issuer: str, node: str, public: bytes, tier: Tier, now: int) -> Link:
    """The issuer's admission of a node; appended to the issuer's own chain it is the node's."""
    return Link(node, tier, now, public, key.sign(statement(node, public, tier, issuer, now)))


def found(key: NodeKey, node: str, now: int) -> tuple[Genesis, tuple[Link, ...]]:
    """A new room's genesis, which admits itself."""
    return Genesis(node, key.public), (admit(key, node, node, key.public, "backbone", now),)


def extend(genesis: Genesis, chain: tuple[Link, ...], link: Link) -> tuple[Link, ...]:
    """The chain of a node which the owner of `chain` admitted; the genesis itself goes unnamed."""
    return (link,) if chain[0].key == genesis.key else (*chain, link)


def issuer_of(genesis: Genesis, chain: tuple[Link, ...]) -> str:
    return chain[-2].node if len(chain) > 1 else genesis.node


class Chains:
    """Verifies chains to one genesis and remembers those that hold."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis = genesis
        self._holds = lru_cache(_CACHED)(self._check)

    def verify(self, chain: tuple[Link, ...]) -> None:
        """Raise RoomViolation unless every link is signed by a backbone node before it."""
        if not self._holds(chain):
            raise RoomViolation(
                f"node {chain[-1].node} with key {chain[-1].fingerprint} was never admitted",
                rule="not_admitted",
            )

    def _check(self, chain: tuple[Link, ...]) -> bool:
        *above, link = chain
        if link.node == self.genesis.node and (above or link.key != self.genesis.key):
            return False
        if not above:
            return self._signed(link, self.genesis.node, self.genesis.key)
        issuer = above[-1]
        may_issue = issuer.tier == "backbone" and issuer.key != self.genesis.key
        return may_issue and self._signed(link, issuer.node, issuer.key) and self._holds((*above,))

    def _signed(self, link: Link, issuer: str, key: bytes) -> bool:
        said = statement(link.node, link.key, link.tier, issuer, link.issued_at)
        return verify(key, said, link.signature)
