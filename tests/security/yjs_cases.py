"""Yjs updates made of genuine signed records, in every structure but the right one.

Mutated bytes mostly break a signature. Here the records stay as they were signed; the structs,
clocks, references, counts, numbers and delete sets around them vary.
"""

from random import Random
from typing import Any

from pycrdt import Doc, Map

from gatepost.errors import RoomViolation
from gatepost.room import RecordAuthor, SharedRoom, SignedRecord, lib0, sign_admission
from gatepost.room.document import RoomDocument
from gatepost.room.records import MAPS
from gatepost.room.room import room_id
from gatepost.room.signed_record import sign_record
from gatepost.room.yjs_update import decode_state_vector
from tests.room.sample_records import (
    NOW,
    ROOT,
    agent,
    author,
    claim,
    entry,
    key,
    revocation,
    room,
    update,
)
from tests.security.mutations import mutate_bytes

Shown = dict[str, dict[str, Any]]

_ALICE, _MALLORY, _BOB = author("alice"), author("mallory"), author("bob")
# Yjs shows one of the two slots that bob's keys have.
_TWIN = RecordAuthor(
    key("twin"), (sign_admission(ROOT.key, "root", "bob", key("twin").public, "edge", NOW + 1),)
)
_AUTHORS = [ROOT, _ALICE, _MALLORY, _BOB, _TWIN, author("other"), author("later")]
_BY_KEY = {each.key.public: each for each in _AUTHORS}
HELD = [
    *(entry(ROOT, 2), entry(_ALICE, 5), entry(_MALLORY, 1), entry(_BOB, 4)),
    *(revocation(ROOT, _BOB), entry(_TWIN, 3)),
    claim(_MALLORY, "agents", "spy", agent("mallory"), 3),
]
NEW = [
    *(entry(_ALICE, version) for version in (1, 4, 6, 9)),
    *(entry(_MALLORY, 2), entry(author("other"), 1), entry(author("later"), 7)),
    claim(_MALLORY, "agents", "spy", None, 4),
    claim(_MALLORY, "agents", "spy2", agent("mallory"), 2),
    entry(_TWIN, 8),
]
_SLOTS = list({signed.slot_key: signed for signed in (*HELD, *NEW)}.values())
# The next versions: what an accepted update hides or holds back shows when they arrive.
NEXT = [
    sign_record(_BY_KEY[s.public_key], s.map, s.key, 20, NOW, s.data)
    for s in _SLOTS
    if s.public_key in _BY_KEY
]
_CLIENT = RoomDocument(room_id(1)).yjs_client
CLIENTS = [_CLIENT(signed.slot_key) for signed in _SLOTS]


def new_room() -> SharedRoom:
    return room(*HELD, of=ROOT)


def served_updates(of: SharedRoom) -> list[bytes]:
    """What a Yjs client gets that has nothing yet."""
    return list(of.missing_updates(b"\x00"))


def held_values(of: SharedRoom) -> Shown:
    """What a Yjs client has to show: of each key the record of the greatest client."""
    found: dict[tuple[str, str], tuple[int, SignedRecord]] = {}
    for signed in of.document:
        where, client = (signed.map, signed.key), of.document.yjs_client(signed.slot_key)
        found[where] = max(
            found.get(where, (0, signed)), (client, signed), key=lambda both: both[0]
        )
    shown: Shown = {map: {} for map in MAPS}
    for (map, name), (_, signed) in found.items():
        shown[map][name] = {"record": signed.text, "signature": signed.signature}
    return shown


class YjsReader:
    """An ordinary Yjs document."""

    def __init__(self, updates: list[bytes]) -> None:
        self.doc: Doc[Any] = Doc()
        self.maps: dict[str, Map[Any]] = {map: self.doc.get(map, type=Map) for map in MAPS}
        self.apply(updates)

    def apply(self, updates: list[bytes]) -> None:
        for each in updates:
            self.doc.apply_update(each)

    def shown(self) -> Shown:
        return {name: map.to_py() or {} for name, map in self.maps.items()}

    def clocks(self) -> dict[int, int]:
        return decode_state_vector(self.doc.get_state())


def accepted_case(random: Random) -> tuple[bytes, SharedRoom] | None:
    """A random update and the room that accepted it; None if the room refused it."""
    holder, made = new_room(), make_update(random)
    try:
        holder.apply_update(made)
    except RoomViolation:
        return None
    return made, holder


def make_update(random: Random) -> bytes:
    """An update that is valid, nearly valid, or valid and then mutated."""
    if random.random() < 0.25:
        return mutate_bytes(random.choice(_SAMPLES), random, _SAMPLES)
    blocks = [_block(random) for _ in range(random.choice((0, 1, 1, 1, 2, 3)))]
    count = _odd(random, len(blocks), 0.03)
    deletes = b"\x00" if random.random() < 0.6 else _delete_set(random)
    return _uint(random, count) + b"".join(blocks) + deletes + random.choice(_ENDS)


_ENDS = (*([b""] * 40), b"\x00")


def _samples() -> list[bytes]:
    made = [update(signed) for signed in NEW]
    ahead = YjsReader([*served_updates(new_room()), *made])
    state = YjsReader(served_updates(new_room())).doc.get_state()
    return [
        *made,
        update(*{signed.slot_key: signed for signed in NEW}.values()),
        *(ahead.doc.get_update(), ahead.doc.get_update(state)),
        YjsReader(served_updates(new_room())).doc.get_update(),
    ]


_SAMPLES = _samples()


def _uint(random: Random, number: int) -> bytes:
    encoded = lib0.encode_uint(number)
    if random.random() < 0.01:
        return encoded[:-1] + bytes((encoded[-1] | 0x80, 0))
    return encoded


def _odd(random: Random, number: int, chance: float) -> int:
    """The number, or sometimes another one."""
    if random.random() >= chance:
        return number
    return random.choice((0, 1, 2, 3, number + 1, max(0, number - 1), number + 2**31, 2**53 - 1))


def _block(random: Random) -> bytes:
    signed = random.choice((*NEW, *NEW, *HELD))
    client = _CLIENT(signed.slot_key)
    if random.random() < 0.04:
        client = random.choice((*CLIENTS, 77))
    start = random.choice((0, 0, 0, 0, 1, 3, 5, signed.version - 1, signed.version))
    start = min(start, random.choice((start, signed.version - 1)))
    structs = []
    clock = start
    while clock < signed.version - 1:
        whole = signed.version - 1 - clock
        length = whole if random.random() < 0.9 else random.randint(0, whole + 1)
        structs.append(_filler(random, signed, client, clock, length))
        clock += max(1, length)
    if random.random() < 0.95:
        structs.append(_struct(random, 8, signed, client, clock) + _content(random, signed))
    if random.random() < 0.03:
        structs.append(random.choice((b"\x00\x01", b"\x0a\x02", *structs)))
    count = _uint(random, _odd(random, len(structs), 0.03))
    return (
        count + _uint(random, client) + _uint(random, _odd(random, start, 0.03)) + b"".join(structs)
    )


def _filler(random: Random, signed: SignedRecord, client: int, clock: int, length: int) -> bytes:
    """A struct for clocks before the record: deleted, collected or skipped."""
    if random.random() < 0.05:
        return random.choice((b"\x00", b"\x0a")) + _uint(random, length)
    return _struct(random, 1, signed, client, clock) + _uint(random, _odd(random, length, 0.03))


def _struct(random: Random, kind: int, signed: SignedRecord, client: int, clock: int) -> bytes:
    info = kind | 0x20 | (0x80 if clock else 0)
    if random.random() < 0.04:
        info ^= random.choice((0x80, 0x40, 0x20, 0xC0, 9, 1, 3))
    head = bytes((info,))
    for bit in (0x80, 0x40):
        if info & bit:
            left = client if random.random() < 0.97 else random.choice(CLIENTS)
            head += _uint(random, left) + _uint(random, _odd(random, max(0, clock - 1), 0.03))
    if info & 0xC0:
        return head
    where = (signed.map, signed.key)
    if random.random() < 0.05:
        other = random.choice(_SLOTS)
        where = random.choice(((other.map, other.key), (signed.map, other.key), ("nodes", "x")))
    named = lib0.encode_text(where[0]) + (lib0.encode_text(where[1]) if info & 0x20 else b"")
    return head + _uint(random, 1) + named


def _content(random: Random, signed: SignedRecord) -> bytes:
    fields = [("record", signed.text), ("signature", signed.signature)]
    if random.random() < 0.3:
        fields.reverse()
    if random.random() < 0.03:
        fields.append(random.choice((*fields, ("record", "x"), ("__proto__", "x"))))
    if random.random() < 0.02:
        fields[0] = (fields[0][0], "\ufeff" + fields[0][1])
    value = b"".join(lib0.encode_text(name) + b"\x77" + lib0.encode_text(v) for name, v in fields)
    one = bytes((0x76,)) + _uint(random, len(fields)) + value
    times = 1 if random.random() < 0.97 else random.choice((0, 2))
    return _uint(random, _odd(random, times, 0.01)) + one * times


def _delete_set(random: Random) -> bytes:
    chosen = random.sample(_SLOTS, random.randint(0, 4))
    made = _uint(random, _odd(random, len(chosen), 0.02))
    for signed in chosen:
        ranges = [_delete_range(random, signed) for _ in range(random.choice((1, 1, 1, 2)))]
        client = _CLIENT(signed.slot_key) if random.random() < 0.97 else 77
        made += _uint(random, client) + _uint(random, len(ranges)) + b"".join(ranges)
    return made


def _delete_range(random: Random, signed: SignedRecord) -> bytes:
    clock = random.choice((0, 0, 0, 1, signed.version - 1))
    length = random.choice((signed.version - 1, signed.version - 2, signed.version, 0, 1, 30))
    return _uint(random, clock) + _uint(random, max(0, length - clock))
