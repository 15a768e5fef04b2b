"""`room/<id>.json`: one gateway's signed copy of room facts, used to verify the archive later."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.signed_json import bytes_to_sign, encode_canonical
from gatepost.errors import ArchiveError, ArchiveTooNew
from gatepost.events import NodeKey, verify_signature
from gatepost.events.envelope import MAX_JSON_INT

FACTS_VERSION: Final = 1

_DOMAIN = "gatepost/room-facts/1"
_FOLDER = "room"


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


class HeadFact(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far this gateway has read the outbox of another node, and when it got there.

    `chain` is the hash chain there, in hex; it is empty if this gateway read only its own events.
    """

    node: str
    incarnation: str
    seq: Annotated[int, Meta(ge=1, le=MAX_JSON_INT)]
    at: Annotated[int, Meta(ge=0, le=MAX_JSON_INT)]
    chain: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


class _FactsVersion(Struct):
    """The only field of which every version has the same meaning."""

    version: int = FACTS_VERSION


class RoomFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    version: int = FACTS_VERSION
    node: str
    at: int
    nodes: tuple[NodeFact, ...] = ()
    revocations: tuple[RevocationFact, ...] = ()
    terms: tuple[TermFact, ...] = ()
    heads: tuple[HeadFact, ...] = ()
    signature: bytes = b""

    def public_key_of(self, node: str) -> bytes | None:
        """The public key under which this gateway knows a node, revoked or not."""
        known = {fact.node: fact.public_key for fact in self.revocations}
        known |= {fact.id: fact.public_key for fact in self.nodes}
        return known.get(node)


def facts_path(node: str) -> str:
    return f"{_FOLDER}/{node}.json"


def sign_facts(facts: RoomFacts, key: NodeKey) -> RoomFacts:
    return replace(facts, signature=key.sign(bytes_to_sign(_DOMAIN, facts)))


def are_facts_signed(facts: RoomFacts, public_key: bytes) -> bool:
    return verify_signature(public_key, bytes_to_sign(_DOMAIN, facts), facts.signature)


def write_facts(store: ArchiveStore, facts: RoomFacts) -> None:
    store.write_file(facts_path(facts.node), encode_canonical(facts))


def read_facts(store: ArchiveStore, node: str) -> RoomFacts | None:
    data = store.read_file(facts_path(node))
    return None if data is None else decode_facts(data, store.full_path(facts_path(node)))


def read_all_facts(store: ArchiveStore) -> list[RoomFacts]:
    """Read the facts of all gateways, sorted by name."""
    names = [name for name in store.list_files(_FOLDER) if name.endswith(".json")]
    files = [(store.read_file(name), store.full_path(name)) for name in names]
    return [decode_facts(data, where) for data, where in files if data is not None]


def decode_facts(data: bytes, where: str) -> RoomFacts:
    try:
        # First, because a later version may have other fields.
        version = msgspec.json.decode(data, type=_FactsVersion).version
        if version > FACTS_VERSION:
            raise ArchiveTooNew(
                f"{where} has version {version}, this Gatepost reads {FACTS_VERSION}; upgrade it"
            )
        return msgspec.json.decode(data, type=RoomFacts)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{where} is not a file of room facts: {error}") from None
