"""Yjs updates (version 1): strict decoding, and encoding in the one form this room uses.

A Yjs update holds, per client, a run of structs with rising clocks, followed by a delete set. This
room writes each slot (see document.py) as one *block* of at most two structs: all clocks before the
latest version as deleted, then that version. A block stands alone: it applies to every document in
any state and never waits for missing structs.

The decoder reads blocks and nothing else, so a Yjs document that applies an accepted update shows
the records that were read from it. A struct of another kind, a gap, a reference to another struct
than the one before, a second block of a client, a nested type, an unknown root map or a number in a
longer form than needed raises RoomViolation.

An ordinary Yjs document that relays the room writes three things more, and they are read too: a
block that begins at the clock where the receiver's state vector ends, the delete set of all older
versions, and a block without its record if Yjs does not show that record (it shows one writer at
each key). They depend on clocks that the receiver has to know, so the document checks them
(`check_item`, `check_deletes`).
"""

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from gatepost.errors import RoomViolation
from gatepost.room import lib0
from gatepost.room.lib0 import Lib0Reader
from gatepost.room.records import MAPS, MAX_KEY_LENGTH, MAX_RECORD_BYTES

MAX_UPDATE_BYTES = 4 << 20
# An honest gateway sends updates of about 64 KiB, with some 200 records at most.
MAX_RECORDS = 512
MAX_DELETES = 200_000
# Including blocks without a record.
_MAX_BLOCKS = 100_000
MAX_STATE_VECTOR = 400_000
MAX_SIGNATURE = 128
_MAX_NAME = 64

_DELETED, _ANY = 1, 8
_KIND, _HAS_KEY, _HAS_LEFT = 0x1F, 0x20, 0x80
_OBJECT, _STRING = 118, 119

DeletedRange = tuple[int, int, int]  # client, first clock, length


class YjsItem(Struct, frozen=True):
    """A signed record in a Yjs document, and the first clock of its block.

    `map_key` is None if the block does not begin at clock 0: the struct before it implies the key.
    """

    client: int
    first: int
    clock: int
    map_key: tuple[str, str] | None
    record: str
    signature: str


class YjsUpdate(Struct, frozen=True):
    """`deletes` are the delete set, and the clocks of blocks without a record."""

    items: list[YjsItem]
    deletes: list[DeletedRange]


class RecordSlot(Struct, frozen=True):
    """A signed record to encode, with its own client id and version."""

    client: int
    version: int
    map: str
    key: str
    record: str
    signature: str


def decode_update(data: bytes) -> YjsUpdate:
    """Decode an update; anything unexpected raises RoomViolation."""
    if len(data) > MAX_UPDATE_BYTES:
        raise lib0.too_large_error("an update", len(data), MAX_UPDATE_BYTES)
    reader = Lib0Reader(data)
    blocks = [_read_block(reader) for _ in range(reader.read_count(_MAX_BLOCKS))]
    items = [block for block in blocks if isinstance(block, YjsItem)]
    if len(items) > MAX_RECORDS:
        raise RoomViolation(f"{len(items)} records in one update", rule="too_large")
    deletes = [block for block in blocks if not isinstance(block, YjsItem)]
    if len({*(item.client for item in items), *(held[0] for held in deletes)}) < len(blocks):
        raise _form_error("a client has two blocks")
    deletes += _read_deletes(reader)
    reader.expect_end()
    return YjsUpdate(items, deletes)


def encode_in_chunks(slots: Iterable[RecordSlot], size: int) -> Iterator[bytes]:
    """Encode the slots as one or more updates of about `size` bytes, without deletions."""
    blocks: list[bytes] = []
    left = size
    for slot in slots:
        blocks.append(_encode_block(slot))
        left -= len(blocks[-1])
        if left <= 0:
            yield _join_blocks(blocks)
            blocks, left = [], size
    yield _join_blocks(blocks)


def decode_state_vector(data: bytes) -> dict[int, int]:
    if len(data) > MAX_UPDATE_BYTES:
        raise lib0.too_large_error("a state vector", len(data), MAX_UPDATE_BYTES)
    reader = Lib0Reader(data)
    pairs = [
        (reader.read_uint(), reader.read_uint()) for _ in range(reader.read_count(MAX_STATE_VECTOR))
    ]
    reader.expect_end()
    return dict(pairs)


def select_clocks(state_vector: bytes, clients: Iterable[int]) -> dict[int, int]:
    """The clocks of some clients in a state vector.

    It may name hundreds of thousands of others. Those are not decoded.
    """
    if len(state_vector) > MAX_UPDATE_BYTES:
        raise lib0.too_large_error("a state vector", len(state_vector), MAX_UPDATE_BYTES)
    numbers = lib0.split_numbers(state_vector)
    count = Lib0Reader(numbers[0] if numbers else b"").read_count(MAX_STATE_VECTOR)
    if len(numbers) != 2 * count + 1:
        raise lib0.malformed_error(f"{len(numbers) - 1} numbers in place of {count} pairs")
    clocks = dict(zip(numbers[1::2], numbers[2::2], strict=True))
    found = ((client, clocks.get(lib0.encode_uint(client))) for client in clients)
    return {client: Lib0Reader(clock).read_uint() for client, clock in found if clock is not None}


def encode_state_vector(clocks: Collection[tuple[int, int]]) -> bytes:
    pairs = (lib0.encode_uint(client) + lib0.encode_uint(clock) for client, clock in clocks)
    return lib0.encode_uint(len(clocks)) + b"".join(pairs)


def _read_block(reader: Lib0Reader) -> YjsItem | DeletedRange:
    """Read the structs of one client: deleted clocks, and then one record, or one of the two."""
    count, client, first = reader.read_uint(), reader.read_uint(), reader.read_uint()
    kind, map_key = _read_struct(reader, client, first)
    clock = first
    if kind == _DELETED:
        clock += reader.read_uint()
        if clock == first:
            raise _form_error("deleted clocks that are none")
        if count == 1:
            return client, first, clock - first
        count -= 1
        kind, _ = _read_struct(reader, client, clock)
    if count != 1 or kind != _ANY or reader.read_uint() != 1:
        raise _form_error("more than one record")
    return YjsItem(client, first, clock, map_key, *_read_signed(reader))


def _read_struct(reader: Lib0Reader, client: int, clock: int) -> tuple[int, tuple[str, str] | None]:
    """Read the beginning of a struct: its kind, and map and key if it is the first of its slot."""
    info = reader.read_byte()
    kind, is_later = info & _KIND, clock > 0
    if kind not in (_DELETED, _ANY):
        raise RoomViolation(
            f"content of kind {kind}; a key of this room holds one plain value", rule="content"
        )
    if is_later and info == kind | _HAS_KEY | _HAS_LEFT:
        if (reader.read_uint(), reader.read_uint()) == (client, clock - 1):
            return kind, None
    elif not is_later and not info & ~(_KIND | _HAS_KEY):
        return kind, _read_map_key(reader, info)
    raise _form_error("a struct that does not follow the one before it")


def _read_map_key(reader: Lib0Reader, info: int) -> tuple[str, str]:
    if reader.read_uint() != 1:
        raise RoomViolation("this room has no nested types", rule="nested")
    name = reader.read_text(_MAX_NAME)
    if name not in MAPS:
        raise RoomViolation(f"{name!r} is not a map of this room", rule="unknown_map")
    if not info & _HAS_KEY:
        raise RoomViolation(f"{name} is a map, but the value has no key", rule="content")
    return name, reader.read_text(MAX_KEY_LENGTH)


def _read_signed(reader: Lib0Reader) -> tuple[str, str]:
    """Read exactly `{"record": text, "signature": text}`, in either order."""
    if reader.read_byte() != _OBJECT or reader.read_uint() != 2:
        raise _unsigned_error()
    fields = dict(_read_field(reader) for _ in range(2))
    if fields.keys() != {"record", "signature"} or len(fields["signature"]) > MAX_SIGNATURE:
        raise _unsigned_error()
    return fields["record"], fields["signature"]


def _read_field(reader: Lib0Reader) -> tuple[str, str]:
    name = reader.read_text(_MAX_NAME)
    if reader.read_byte() != _STRING:
        raise _unsigned_error()
    return name, reader.read_text(MAX_RECORD_BYTES)


def _form_error(what: str) -> RoomViolation:
    return RoomViolation(f"{what}; each slot is one block of its own", rule="form")


def _unsigned_error() -> RoomViolation:
    return RoomViolation("the value is not a signed record", rule="unsigned")


def _read_deletes(reader: Lib0Reader) -> list[DeletedRange]:
    deletes: list[DeletedRange] = []
    for _ in range(reader.read_count(MAX_DELETES)):
        client = reader.read_uint()
        count = reader.read_count(MAX_DELETES - len(deletes))
        deletes += [(client, reader.read_uint(), reader.read_uint()) for _ in range(count)]
    return deletes


def _join_blocks(blocks: list[bytes]) -> bytes:
    return lib0.encode_uint(len(blocks)) + b"".join(blocks) + b"\x00"


def _encode_block(slot: RecordSlot) -> bytes:
    map_key = b"\x01" + lib0.encode_text(slot.map) + lib0.encode_text(slot.key)
    content = _encode_content(slot)
    client = lib0.encode_uint(slot.client)
    if slot.version == 1:
        return b"\x01" + client + b"\x00" + bytes((_ANY | _HAS_KEY,)) + map_key + content
    deleted = bytes((_DELETED | _HAS_KEY,)) + map_key + lib0.encode_uint(slot.version - 1)
    left = client + lib0.encode_uint(slot.version - 2)
    latest = bytes((_ANY | _HAS_KEY | _HAS_LEFT,)) + left + content
    return b"\x02" + client + b"\x00" + deleted + latest


def _encode_content(slot: RecordSlot) -> bytes:
    fields = (("record", slot.record), ("signature", slot.signature))
    written = (
        lib0.encode_text(name) + bytes((_STRING,)) + lib0.encode_text(value)
        for name, value in fields
    )
    return b"\x01" + bytes((_OBJECT, 2)) + b"".join(written)
