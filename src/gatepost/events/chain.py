"""The hash chain over an outbox, and the signed heads that let any node serve it.

chain(n) = sha256(chain(n-1) || sha256(event n)), starting from the genesis of one journal
incarnation. A head vouches for all events up to `last`; `first` says where its group starts.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Struct

from gatepost.errors import ChainError
from gatepost.events.encryption import NodeKey, Signature, verify_signature
from gatepost.events.envelope import MAX_JSON_INT, Seq
from gatepost.events.framing import frame_parts
from gatepost.events.ids import NodeId

ChainHash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Incarnation = Annotated[str, Meta(min_length=1, max_length=64)]


class ChainHead(Struct, frozen=True):
    """A node's signed statement that events `first` to `last` of its outbox end in `chain`."""

    node: NodeId
    incarnation: Incarnation
    first: Seq
    last: Seq
    chain: ChainHash
    signature: Signature


def genesis_chain(node: str, incarnation: str) -> bytes:
    """Return the chain before the first event; it differs for every outbox."""
    return sha256(frame_parts("gatepost/genesis/1", node.encode(), incarnation.encode())).digest()


def event_digest(encoded: bytes) -> bytes:
    """Return the digest of an event's bytes as they travelled."""
    return sha256(encoded).digest()


def extend_chain(previous: bytes, digests: Iterable[bytes]) -> bytes:
    """Return the chain after the events with these digests."""
    for digest in digests:
        previous = sha256(previous + digest).digest()
    return previous


def sign_head(
    key: NodeKey, *, node: str, incarnation: str, first: int, last: int, chain: bytes
) -> ChainHead:
    signature = key.sign(_head_statement(node, incarnation, first, last, chain))
    return ChainHead(node, incarnation, first, last, chain, signature)


def verify_head(head: ChainHead, public_key: bytes) -> None:
    """Raise ChainError unless the node with this key signed exactly this head."""
    if not 1 <= head.first <= head.last <= MAX_JSON_INT:
        raise _chain_error(head, "the head's range is impossible")
    statement = _head_statement(head.node, head.incarnation, head.first, head.last, head.chain)
    if not verify_signature(public_key, statement, head.signature):
        raise _chain_error(head, "the head is not signed by this node's key")


def verify_group(
    previous_chain: bytes, digests: Sequence[bytes], head: ChainHead, public_key: bytes
) -> bytes:
    """Return the chain after a commit group; ChainError unless the head vouches for it."""
    verify_head(head, public_key)
    if len(digests) != head.last - head.first + 1:
        raise _chain_error(head, f"{len(digests)} digests do not cover the group")
    if extend_chain(previous_chain, digests) != head.chain:
        raise _chain_error(head, "the events are not those the head was signed for")
    return head.chain


def _head_statement(node: str, incarnation: str, first: int, last: int, chain: bytes) -> bytes:
    span = first.to_bytes(8, "big") + last.to_bytes(8, "big")
    return frame_parts("gatepost/head/1", node.encode(), incarnation.encode(), span, chain)


def _chain_error(head: ChainHead, why: str) -> ChainError:
    return ChainError(f"outbox of {head.node}, seq {head.first} to {head.last}: {why}")
