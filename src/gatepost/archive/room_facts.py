"""`room/<id>.json`: one gateway's signed copy of room facts, used to verify the archive later."""

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gatepost.archive.store import Store
from gatepost.errors import ArchiveError
from gatepost.events import NodeKey, frame_parts, verify_signature

VERSION: Final = 1

_DOMAIN = "gatepost/room-facts/1"
_FOLDER = "room"

_encoder = msgspec.json.Encoder(order="sorted")


class NodeFact(Struct, frozen=True, kw_only=True, rename="camel"):
    """A node and its admission."""

    id: str
    public_key: bytes
    tier: str
    added_by: str
    added_at: int


class RevocationFact(Struct, frozen=True, kw_only=True, rename="camel"):
    """A revoked node. Its events after `last_seq` do not count."""

    node: str
    public_key: bytes
    by: str
    at: int
    last_seq: int


class TermFact(Struct, frozen=True, kw_only=True, rename="camel"):
    """A node's claim to be the publisher of a term."""

    counter: int
    node: str
    at: int


class RoomFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    version: int = VERSION
    node: str
    at: int
    nodes: tuple[NodeFact, ...] = ()
    revocations: tuple[RevocationFact, ...] = ()
    terms: tuple[TermFact, ...] = ()
    signature: bytes = b""

    def key_of(self, node: str) -> bytes | None:
        """The public key under which this gateway knows a node, revoked or not."""
        known = {fact.node: fact.public_key for fact in self.revocations}
        known |= {fact.id: fact.public_key for fact in self.nodes}
        return known.get(node)


def name_of(node: str) -> str:
    return f"{_FOLDER}/{node}.json"


def sign(facts: RoomFacts, key: NodeKey) -> RoomFacts:
    return replace(facts, signature=key.sign(_statement(facts)))


def is_signed(facts: RoomFacts, public_key: bytes) -> bool:
    return verify_signature(public_key, _statement(facts), facts.signature)


def write(store: Store, facts: RoomFacts) -> None:
    store.write(name_of(facts.node), _encoder.encode(facts))


def read(store: Store, node: str) -> RoomFacts | None:
    data = store.read(name_of(node))
    return None if data is None else _decode(data, store.path(name_of(node)))


def read_all(store: Store) -> list[RoomFacts]:
    """Read the facts of all gateways, sorted by name."""
    names = [name for name in store.files(_FOLDER) if name.endswith(".json")]
    files = [(store.read(name), store.path(name)) for name in names]
    return [_decode(data, where) for data, where in files if data is not None]


def _decode(data: bytes, where: str) -> RoomFacts:
    try:
        facts = msgspec.json.decode(data, type=RoomFacts)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{where} is not a file of room facts: {error}") from None
    if facts.version != VERSION:
        raise ArchiveError(
            f"{where} has version {facts.version}, this Gatepost reads {VERSION}; upgrade it"
        )
    return facts


def _statement(facts: RoomFacts) -> bytes:
    fields = msgspec.to_builtins(facts)
    del fields["signature"]
    return frame_parts(_DOMAIN, _encoder.encode(fields))
