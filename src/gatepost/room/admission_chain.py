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
from gatepost.events import (
    NodeId,
    NodeKey,
    PublicKey,
    Signature,
    fingerprint_key,
    frame_parts,
    verify_signature,
)
from gatepost.events.envelope import EpochMs
from gatepost.room.roles import Act, may_act, role_of_tier
from gatepost.wire.operations import Tier

MAX_CHAIN_LENGTH = 6
_CACHED_CHAINS = 10_000


class AdmissionLink(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One admission: the previous node in the chain states this node's key and tier."""

    node: NodeId
    tier: Tier
    issued_at: EpochMs
    key: PublicKey
    signature: Signature

    @property
    def fingerprint(self) -> str:
        return fingerprint_key(self.key)


AdmissionChain = Annotated[
    tuple[AdmissionLink, ...], Meta(min_length=1, max_length=MAX_CHAIN_LENGTH)
]


class Genesis(Struct, frozen=True):
    """The root of every admission chain. Other nodes can neither admit nor revoke it."""

    node: NodeId
    key: PublicKey


def admission_statement(node: str, key: bytes, tier: str, issuer: str, issued_at: int) -> bytes:
    """The bytes an issuer signs to admit a node."""
    names = (node.encode(), tier.encode(), issuer.encode())
    return frame_parts("gatepost/admission/1", *names, key, issued_at.to_bytes(8, "big"))


def sign_admission(
    key: NodeKey, issuer: str, node: str, public: bytes, tier: Tier, now: int
) -> AdmissionLink:
    """Sign the admission of a node. Appended to the issuer's chain, it gives the node's chain."""
    return AdmissionLink(
        node, tier, now, public, key.sign(admission_statement(node, public, tier, issuer, now))
    )


def found_room(key: NodeKey, node: str, now: int) -> tuple[Genesis, tuple[AdmissionLink, ...]]:
    """Create the genesis of a new room. The genesis node admits itself."""
    return Genesis(node, key.public), (
        sign_admission(key, node, node, key.public, "backbone", now),
    )


def append_admission(
    genesis: Genesis, chain: tuple[AdmissionLink, ...], link: AdmissionLink
) -> tuple[AdmissionLink, ...]:
    """Append an admission to its issuer's chain. The link of the genesis node is left out."""
    return (link,) if chain[0].key == genesis.key else (*chain, link)


def chain_issuer(genesis: Genesis, chain: tuple[AdmissionLink, ...]) -> str:
    return chain[-2].node if len(chain) > 1 else genesis.node


class ChainVerifier:
    """Verifies chains against one genesis and caches the results."""

    def __init__(self, genesis: Genesis) -> None:
        self.genesis = genesis
        self._is_valid_cached = lru_cache(_CACHED_CHAINS)(self._is_valid)

    def verify_chain(self, chain: tuple[AdmissionLink, ...]) -> None:
        """Raise RoomViolation unless each link is signed by the backbone node before it."""
        if not self._is_valid_cached(chain):
            raise RoomViolation(
                f"node {chain[-1].node} with key {chain[-1].fingerprint} was never admitted",
                rule="not_admitted",
            )

    def _is_valid(self, chain: tuple[AdmissionLink, ...]) -> bool:
        *before, link = chain
        if link.node == self.genesis.node and (before or link.key != self.genesis.key):
            return False
        if not before:
            return self._is_signed_by(link, self.genesis.node, self.genesis.key)
        issuer = before[-1]
        may_admit = may_act(role_of_tier(issuer.tier), Act.ADMIT_NODE)
        may_issue = may_admit and issuer.key != self.genesis.key
        return (
            may_issue
            and self._is_signed_by(link, issuer.node, issuer.key)
            and self._is_valid_cached((*before,))
        )

    def _is_signed_by(self, link: AdmissionLink, issuer: str, key: bytes) -> bool:
        signed = admission_statement(link.node, link.key, link.tier, issuer, link.issued_at)
        return verify_signature(key, signed, link.signature)
