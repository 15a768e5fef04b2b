"""Signed records, the values of the room: signing, parsing, and checks of signatures and roles.

A key holds `{"record": <canonical JSON text>, "signature": <base64>}`. The signature covers the
text, not the value, so nothing depends on the number format of Yjs, and a JavaScript reader needs
only `JSON.parse(value.record)`. The text includes map, key, writer and version, so a record cannot
be moved or pass for another one. The text must equal its own canonical encoding, so it cannot hide
extra bytes.
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gatepost.errors import RoomViolation
from gatepost.events import NodeId, NodeKey, frame_parts, verify_signature
from gatepost.events.envelope import EpochMs
from gatepost.room import records
from gatepost.room.admission_chain import (
    AdmissionChain,
    AdmissionLink,
    ChainVerifier,
    Genesis,
    chain_issuer,
)
from gatepost.room.records import (
    MAPS,
    MAX_KEY_LENGTH,
    CoordinationRecord,
    InviteRecord,
    NodeRecord,
    RevocationRecord,
    RoomRecord,
)
from gatepost.room.roles import Role, may_write, role_of

# A version is also a Yjs clock (document.py), and yrs stores clocks in 32 bits.
MAX_VERSION = 2**31 - 1

Version = Annotated[int, Meta(ge=1, le=MAX_VERSION)]

_KEY_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_is_key = re.compile(rf"{_KEY_PART}(@{_KEY_PART})?").fullmatch


class RecordStatement(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The signed content of a record. It has either `data` or `tombstone`."""

    map: Annotated[str, Meta(max_length=32)]
    key: Annotated[str, Meta(max_length=MAX_KEY_LENGTH)]
    writer: NodeId
    version: Version
    at: EpochMs
    chain: AdmissionChain
    data: Raw | UnsetType = UNSET
    tombstone: bool = False


class RecordAuthor(Struct, frozen=True):
    """The key and the admission chain that a node writes with."""

    key: NodeKey
    chain: tuple[AdmissionLink, ...]

    @property
    def node(self) -> str:
        return self.chain[-1].node


class SignedRecord(Struct, frozen=True):
    """A checked record and the exact text that was signed. A tombstone has `data` None."""

    map: str
    key: str
    version: int
    at: int
    chain: tuple[AdmissionLink, ...]
    data: RoomRecord | None
    text: str
    signature: str

    @property
    def writer(self) -> str:
        return self.chain[-1].node

    @property
    def public_key(self) -> bytes:
        return self.chain[-1].key

    @property
    def slot_key(self) -> tuple[str, str, bytes]:
        """The key of its slot. The public key separates two writers that use one node id."""
        return self.map, self.key, self.chain[-1].key

    @property
    def version_order(self) -> tuple[int, str]:
        """Sort key within one slot: the greater record supersedes the lesser.

        A writer that signs one version twice is broken or hostile. The text is part of the key so
        that all replicas that see both pick the same one.
        """
        return self.version, self.text


_encode_json = msgspec.json.Encoder().encode
_decode_statement = msgspec.json.Decoder(RecordStatement).decode
_data_decoders: dict[type[RoomRecord], Callable[[Raw], RoomRecord]] = {
    type: msgspec.json.Decoder(type).decode
    for kind in MAPS.values()
    for type in (kind.own, kind.claim)
    if type is not None
}
# ValueError covers msgspec's own errors and invalid UTF-8; RecursionError covers deep nesting.
_UNREADABLE = (ValueError, RecursionError)


def sign_record(
    author: RecordAuthor, map: str, key: str, version: int, at: int, data: RoomRecord | None
) -> SignedRecord:
    """Sign a record, or a tombstone if `data` is None."""
    statement = RecordStatement(
        map=map,
        key=key,
        writer=author.node,
        version=version,
        at=at,
        chain=author.chain,
        data=UNSET if data is None else Raw(_encode_json(data)),
        tombstone=data is None,
    )
    text = _encode_json(statement)
    signature = b64encode(author.key.sign(_signed_bytes(text))).decode()
    return SignedRecord(map, key, version, at, author.chain, data, text.decode(), signature)


def open_signed_record(text: str, signature: str, chains: ChainVerifier) -> SignedRecord:
    """Parse a record and check chain and signature; raise RoomViolation if anything is wrong."""
    signed = parse_record(text, signature, chains.genesis)
    chains.verify_chain(signed.chain)
    _verify_mandate(signed, chains)
    if not verify_signature(
        signed.public_key, _signed_bytes(text.encode()), _decode_signature(signature)
    ):
        raise RoomViolation(
            f"{_record_name(signed)} is not signed by {signed.writer}", rule="signature"
        )
    return signed


def parse_record(text: str, signature: str, genesis: Genesis) -> SignedRecord:
    """Parse a record without checking signatures, for records that were checked before storing."""
    statement = _parse_statement(text)
    type = _check_key(statement, len(text))
    _check_role(statement, type, genesis)
    data = _parse_data(statement, type)
    fields = (statement.map, statement.key, statement.version, statement.at, statement.chain)
    signed = SignedRecord(*fields, data, text, signature)
    _check_mandate(signed, genesis)
    if data is not None and (wrong := _find_inconsistency(signed, data, genesis)):
        raise RoomViolation(f"{_record_name(signed)}: {wrong}", rule="inconsistent")
    return signed


def _parse_statement(text: str) -> RecordStatement:
    try:
        statement = _decode_statement(text)
    except _UNREADABLE as error:
        raise RoomViolation(f"not a record: {error}", rule="record") from None
    if _encode_json(statement) != text.encode():
        raise RoomViolation("the record is not in canonical form", rule="record")
    return statement


def _check_key(statement: RecordStatement, size: int) -> type[RoomRecord]:
    map, key = statement.map, statement.key
    if map not in MAPS:
        raise RoomViolation(f"{map!r} is not a map of this room", rule="unknown_map")
    type = records.record_type(map, key) if _is_key(key) else None
    if type is None:
        raise RoomViolation(f"{map} has no such key", rule="unknown_key")
    if not records.key_writer(key) == statement.writer == statement.chain[-1].node:
        raise RoomViolation(
            f"{map} {key} is for {records.key_writer(key)} to write,"
            f" not {statement.chain[-1].node}",
            rule="not_writer",
        )
    if size > MAPS[map].limit:
        raise RoomViolation(
            f"{map} {key} has {size} bytes, at most {MAPS[map].limit} are allowed", rule="too_large"
        )
    return type


def _check_role(statement: RecordStatement, type: type[RoomRecord], genesis: Genesis) -> None:
    link = statement.chain[-1]
    role = role_of(link.key, link.tier, genesis.key)
    if type is CoordinationRecord and role is Role.BACKBONE and not statement.tombstone:
        # Allowed with a mandate, which `_check_mandate` requires.
        return
    if not may_write(role, type):
        raise RoomViolation(
            f"{statement.map} {statement.key} is not for a node with the role"
            f" {role.name.lower()} to write",
            rule="role",
        )


def _check_mandate(signed: SignedRecord, genesis: Genesis) -> None:
    """Raise RoomViolation if a node other than the genesis coordinates without a mandate."""
    data = signed.data
    if not isinstance(data, CoordinationRecord) or signed.public_key == genesis.key:
        return
    given = None
    if data.mandate is not None and not _is_nested(data.mandate.record):
        given = parse_record(data.mandate.record, data.mandate.signature, genesis)
    claim = None if given is None or given.public_key != genesis.key else given.data
    if not (isinstance(claim, CoordinationRecord) and claim.elections):
        raise RoomViolation(f"{_record_name(signed)} shows no mandate of the genesis", rule="role")


def _is_nested(mandate: str) -> bool:
    return '"mandate"' in mandate


def _verify_mandate(signed: SignedRecord, chains: ChainVerifier) -> None:
    data = signed.data
    if isinstance(data, CoordinationRecord) and data.mandate is not None:
        open_signed_record(data.mandate.record, data.mandate.signature, chains)


def _parse_data(statement: RecordStatement, type: type[RoomRecord]) -> RoomRecord | None:
    if isinstance(statement.data, UnsetType) != statement.tombstone:
        raise RoomViolation("a record has either data or a tombstone", rule="record")
    if isinstance(statement.data, UnsetType):
        return None
    try:
        data = _data_decoders[type](statement.data)
    except _UNREADABLE as error:
        raise RoomViolation(f"{statement.map} {statement.key}: {error}", rule="type") from None
    if _encode_json(data) != bytes(statement.data):
        raise RoomViolation(f"{statement.key} is not in canonical form", rule="type")
    return data


def _find_inconsistency(signed: SignedRecord, data: RoomRecord, genesis: Genesis) -> str | None:
    """Compare the record's statements about its writer with its key and its chain."""
    link = signed.chain[-1]
    expected: tuple[object, ...] = ()
    found: tuple[object, ...] = ()
    if isinstance(data, NodeRecord):
        expected = (link.tier, chain_issuer(genesis, signed.chain), link.issued_at)
        found = (data.tier, data.added_by, data.added_at)
    elif isinstance(data, InviteRecord):
        expected, found = (link.node,), (data.created_by,)
    elif isinstance(data, CoordinationRecord):
        expected = ("coordinator", link.node, link.node)
        found = (records.key_subject(signed.key), data.coordinator, data.term.node)
    elif isinstance(data, RevocationRecord):
        untouchable = records.key_subject(signed.key) in (link.node, genesis.node)
        expected, found = (False,), (untouchable,)
    return None if expected == found else f"it says {found} where {expected} is true"


def _decode_signature(text: str) -> bytes:
    try:
        signature = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        signature = b""
    if len(signature) != 64 or b64encode(signature).decode() != text:
        raise RoomViolation("a signature is 64 bytes in base64", rule="signature")
    return signature


def _signed_bytes(text: bytes) -> bytes:
    return frame_parts("gatepost/record/1", text)


def _record_name(signed: SignedRecord) -> str:
    return f"{signed.map} {signed.key}"
