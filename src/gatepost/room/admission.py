"""Admission chains: each link is signed by the node before it, the first by the genesis node.

Every record carries its writer's chain. Whether a record may be stored in the room therefore
depends on that record alone: the answer is the same on every replica, in any order of arrival,
and a later revocation does not change it. Whether the record counts is decided separately, in
effective_records.py.
"""

from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct

from gatepost.errors import RoomViolation
from gatepost.events import NodeId, NodeKey, fingerprint_key, frame_parts, verify_signature
from gatepost.events.envelope import EpochMs
from gatepost.room.records import Signature
from gatepost.wire import Tier

MAX_DEPTH = 6
_CACHED = 10_000

PublicKey = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Link(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One admission: the previous node in the chain states this node's key and tier."""

    node: NodeId
    tier: Tier
    issued_at: EpochMs
    key: PublicKey
    signature: Signature

    @property
    def fingerprint(self) -> str:
        return fingerprint_key(self.key)


Chain = Annotated[tuple[Link, ...], Meta(min_length=1, max_length=MAX_DEPTH)]


class Genesis(Struct, frozen=True):
    """The root of every admission chain. Other nodes can neither admit nor revoke it."""

    node: NodeId
    key: PublicKey


def statement(node: str, key: bytes, tier: str, issuer: str, issued_at: int) -> bytes:
    """The bytes an issuer signs to admit a node."""
    names = (node.encode(), tier.encode(), issuer.encode())
    return frame_parts("gatepost/admission/1", *names, key, issued_at.to_bytes(8, "big"))


def admit(key: NodeKey, issuer: str, node: str, public: bytes, tier: Tier, now: int) -> Link:
    """Sign the admission of a node. Appended to the issuer's chain, it gives the node's chain."""
    return Link(node, tier, now, public, key.sign(statement(node, public, tier, issuer, now)))


def found(key: NodeKey, node: str, now: int) -> tuple[Genesis, tuple[Link, ...]]:
    """Create the genesis of a new room. The genesis node admits itself."""
    return Genesis(node, key.public), (admit(key, node, node, key.public, "backbone", now),)


def extend(genesis: Genesis, chain: tuple[Link, ...], link: Link) -> tuple[Link, ...]:
    """Append an admission to its issuer's chain. The link of the genesis node is left out."""
    return (link,) if chain[0].key == genesis.key else (*chain, link)


def issuer_of(genesis: Genesis, chain: tuple[Link, ...]) -> str:
    return chain[-2].node if len(chain) > 1 else genesis.node


class Chains:
    """Verifies chains against one genesis and caches the results."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis = genesis
        self._holds = lru_cache(_CACHED)(self._check)

    def verify(self, chain: tuple[Link, ...]) -> None:
        """Raise RoomViolation unless each link is signed by the backbone node before it."""
        if not self._holds(chain):
            raise RoomViolation(
                f"node {chain[-1].node} with key {chain[-1].fingerprint} was never admitted",
                rule="not_admitted",
            )

    def _check(self, chain: tuple[Link, ...]) -> bool:
        *before, link = chain
        if link.node == self.genesis.node and (before or link.key != self.genesis.key):
            return False
        if not before:
            return self._signed(link, self.genesis.node, self.genesis.key)
        issuer = before[-1]
        may_issue = issuer.tier == "backbone" and issuer.key != self.genesis.key
        return may_issue and self._signed(link, issuer.node, issuer.key) and self._holds((*before,))

    def _signed(self, link: Link, issuer: str, key: bytes) -> bool:
        signed = statement(link.node, link.key, link.tier, issuer, link.issued_at)
        return verify_signature(key, signed, link.signature)
