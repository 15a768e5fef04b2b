"""A hostile peer changes nothing, and an honest one is never taken for hostile."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from pycrdt import Doc, Map

from gatepost.errors import RoomViolation
from gatepost.room import RecordAuthor, SharedRoom, SignedRecord, lib0, sign_admission
from gatepost.room.document import RoomDocument
from gatepost.room.room import room_id
from gatepost.room.signed_record import sign_record
from gatepost.room.writer_quota import MAX_KEYS_PER_WRITER
from gatepost.room.yjs_update import (
    MAX_RECORDS,
    MAX_UPDATE_BYTES,
    RecordSlot,
    decode_update,
    encode_in_chunks,
)
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    agent,
    author,
    claim,
    contents,
    delivery,
    encode_update,
    entry,
    key,
    node,
    placed,
    revocation,
    room,
    shown,
    update,
)

ALICE = author("alice")
MALLORY = author("mallory")
OLD, CURRENT = entry(ALICE, 3), entry(ALICE, 9, status="degraded")
CLIENT = RoomDocument(room_id(1)).yjs_client(CURRENT.slot_key)


def victim() -> SharedRoom:
    return room(entry(ROOT), CURRENT, entry(MALLORY), of=ROOT)


def yjs(of: SharedRoom) -> "Doc[Any]":
    """The same document in the hands of an ordinary Yjs client."""
    doc: Doc[Any] = Doc()
    for chunk in of.missing_updates(b"\x00"):
        doc.apply_update(chunk)
    return doc


def value(signed: Any) -> dict[str, str]:
    return {"record": signed.text, "signature": signed.signature}


def by_client(write: Callable[["Map[Any]"], object], map: str = "nodes") -> bytes:
    """What a synced Yjs client sends after it wrote something."""
    doc = yjs(victim())
    before = doc.get_state()
    write(doc.get(map, type=Map))
    return doc.get_update(before)


def forged(record: Any, by: RecordAuthor) -> Any:
    """Somebody's record, signed by somebody else."""
    return replace(record, signature=sign_record(by, "nodes", by.node, 1, NOW, node(by)).signature)


NEXT = entry(ALICE, 10)
ATTACKS: dict[str, tuple[str, bytes]] = {
    "plain value": ("form", by_client(lambda m: m.update({"alice": {"status": "offline"}}))),
    "unsigned record": ("signature", placed(replace(NEXT, signature=""))),
    "signed by another node": ("signature", placed(forged(NEXT, MALLORY))),
    "own record under another's key": (
        "form",
        by_client(lambda m: m.update({"alice": value(entry(MALLORY, 2))})),
    ),
    "another's key in own name": (
        "not_writer",
        update(sign_record(MALLORY, "nodes", "alice", 10, NOW, node(MALLORY))),
    ),
    "another's claim in own name": (
        "not_writer",
        update(sign_record(MALLORY, "agents", "builder@alice", 1, NOW, agent("mallory"))),
    ),
    "a chain nobody signed": (
        "not_admitted",
        update(
            entry(RecordAuthor(MALLORY.key, (replace(ALICE.chain[0], key=MALLORY.key.public),)), 10)
        ),
    ),
    "rollback by a Yjs client": ("form", by_client(lambda m: m.update({"alice": value(OLD)}))),
    "rollback as the next write": ("rollback", placed(OLD, version=10)),
    "rollback from a fresh client": ("rollback", placed(OLD, client=77)),
    "somebody's next clock": ("misplaced", placed(entry(MALLORY, 10), client=CLIENT)),
    "a record moved to another map": ("misplaced", placed(entry(MALLORY), map="delivery")),
    "delete by a Yjs client": ("deleted", by_client(lambda m: m.pop("alice"))),
    "delete in a delete set": ("deleted", b"\x00\x01" + lib0.encode_uint(CLIENT) + b"\x01\x08\x01"),
    "delete of everything": ("deleted", b"\x00\x01" + lib0.encode_uint(CLIENT) + b"\x01\x00\x7f"),
    "an extra root map": (
        "unknown_map",
        by_client(lambda m: m.update({"a": value(NEXT)}), "payloads"),
    ),
    "a nested type": ("content", by_client(lambda m: m.update({"alice": Map({"x": "y"})}))),
    "a value of 1 MB": (
        "form",
        by_client(lambda m: m.update({"mallory": {"record": "x" * 10**6, "signature": "s"}})),
    ),
    "a payload in a field": (
        "type",
        update(entry(MALLORY, 2, protocol_version="aGVsbG8gd29ybGQ=" * 100)),
    ),
    "a payload in a field of its own": (
        "form",
        by_client(lambda m: m.update({"mallory": value(entry(MALLORY, 2)) | {"payload": "x"}})),
    ),
    "malformed bytes": ("malformed", b"\x01\x02\x03"),
    "bytes after the end": ("malformed", update(entry(MALLORY, 2)) + b"payload"),
    "a good record and then a bad one": (
        "type",
        update(entry(MALLORY, 2), entry(ALICE, 10, status="lost")),
    ),
}


@pytest.mark.parametrize(("rule", "attack"), ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_changes_nothing_and_is_a_violation(rule: str, attack: bytes) -> None:
    attacked, heard = victim(), list[object]()
    attacked.on_change(heard.append)
    before = contents(attacked), shown(attacked), attacked.state_vector()
    with pytest.raises(RoomViolation) as caught:
        attacked.apply_update(attack)
    assert caught.value.rule == rule
    assert (contents(attacked), shown(attacked), attacked.state_vector()) == before
    assert heard == []
    assert attacked.apply_update(update(NEXT)).changed == (NEXT,)


def block(*structs: bytes, start: int = 9, client: int = CLIENT, deletes: bytes = b"\0") -> bytes:
    """An update with one block, of the slot of alice; the room has its clocks through 8."""
    head = bytes((1, len(structs))) + lib0.encode_uint(client)
    return head + lib0.encode_uint(start) + b"".join(structs) + deletes


def left(clock: int, client: int = CLIENT) -> bytes:
    return lib0.encode_uint(client) + lib0.encode_uint(clock)


def content(signed: SignedRecord, fields: int = 1) -> bytes:
    texts = (("record", signed.text), ("signature", signed.signature))
    parts = [lib0.encode_text(name) + b"\x77" + lib0.encode_text(text) for name, text in texts]
    return b"\x01\x76" + bytes((2 * fields,)) + b"".join(parts) * fields


GAP = b"\xa1" + left(8) + b"\x01"
FURTHER = entry(ALICE, 11)
READ_DIFFERENTLY_BY_YJS = {
    "collected clocks": block(b"\x00\x7f"),
    "skipped clocks": block(b"\x0a\x7f"),
    "deleted clocks that no record has": block(b"\xa1" + left(8) + b"\x7f"),
    "deleted clocks of a new slot": block(b"\x21\x01\x05nodes\x05alice\x7f", start=0),
    "a delete of clocks to come": b"\x00\x01" + lib0.encode_uint(CLIENT) + b"\x01\x0a\x01",
    "a delete of a client to come": b"\x00\x01\x4d\x01\x00\x01",
    "a delete of nothing": b"\x00\x01" + lib0.encode_uint(CLIENT) + b"\x01\x00\x00",
    "a reference to a client that is unknown": block(b"\xa8" + left(8, 77) + content(NEXT)),
    "a reference to a clock before": block(b"\xa8" + left(3) + content(NEXT)),
    "a reference to the right": block(b"\xe8" + left(8) + left(8) + content(NEXT)),
    "a value without the mark of a key": block(b"\x88" + left(8) + content(NEXT)),
    "a gap before the block": block(b"\xa8" + left(9) + content(FURTHER), start=10),
    "the key of another node before the record": update(NEXT).replace(
        b"\x05nodes\x05alice", b"\x05nodes\x05mallo"
    ),
    "a split run of clocks": block(
        GAP, b"\xa1" + left(9) + b"\x01", b"\xa8" + left(10) + content(entry(ALICE, 12))
    ),
    "two records in one struct": block(
        b"\xa8" + left(8) + b"\x02" + content(NEXT)[1:] + content(FURTHER)[1:]
    ),
    "two blocks of a client": b"\x02" + update(NEXT)[1:-1] + update(FURTHER)[1:],
    "fields that stand twice": block(b"\xa8" + left(8) + content(NEXT, 2)),
    "a number in a longer form": b"\x81\x00" + update(NEXT)[1:],
    "the record as a JSON number": block(b"\xa8" + left(8) + b"\x01\x7d\x05"),
    "a block of nothing": block(),
}


@pytest.mark.parametrize("name", READ_DIFFERENTLY_BY_YJS)
def test_what_yjs_reads_differently_is_refused(name: str) -> None:
    attacked = victim()
    before = contents(attacked), attacked.state_vector()
    with pytest.raises(RoomViolation):
        attacked.apply_update(READ_DIFFERENTLY_BY_YJS[name])
    assert (contents(attacked), attacked.state_vector()) == before
    assert attacked.apply_update(update(NEXT)).changed == (NEXT,)


def test_the_next_versions_in_a_block_that_begins_where_the_room_ends_are_taken() -> None:
    """So an ordinary Yjs client relays what the room lacks."""
    attacked = victim()
    assert attacked.apply_update(block(GAP, b"\xa8" + left(9) + content(FURTHER))).changed == (
        FURTHER,
    )


def test_nothing_waits_for_structs_that_are_missing() -> None:
    """Yjs would keep this pending, and show it once the gap is filled."""
    hidden = encode_update([RecordSlot(77, 5, "nodes", "mallory", "payload", "s")])
    pending = hidden.replace(b"\x02\x4d\x00", b"\x01\x4d\x03").replace(
        b"\x21\x01\x05nodes\x07mallory\x04", b""
    )
    with pytest.raises(RoomViolation):
        victim().apply_update(pending)
    honest = yjs(room(entry(ALICE, 9), NEXT))
    ahead = honest.get_update(bytes([1]) + lib0.encode_uint(CLIENT) + b"\x08")
    attacked = victim()
    attacked.apply_update(ahead)
    assert shown(attacked) == shown(room(entry(ROOT), NEXT, entry(MALLORY)))


def test_the_update_of_an_ordinary_yjs_client_that_relays_is_taken() -> None:
    source = room(entry(ROOT), NEXT, entry(MALLORY), claim(ALICE, "agents", "a", agent("alice")))
    relayed = yjs(source).get_update()
    for target in (victim(), room(), room(OLD)):
        target.apply_update(relayed)
        assert contents(target) == contents(source)


def test_what_one_replica_took_every_other_takes() -> None:
    revoked = revocation(ROOT, MALLORY)
    lost = claim(MALLORY, "agents", "a", agent("mallory"))
    records = [entry(ROOT), entry(MALLORY), revoked, lost, CURRENT]
    relay = room()
    for record in records:
        relay.apply_update(update(record))
    for target in (victim(), room(revoked), room(NEXT)):
        for chunk in relay.missing_updates(target.state_vector()):
            target.apply_update(chunk)
        assert {r.text for r in records} - {CURRENT.text} <= contents(target)


def test_the_same_update_again_is_nothing_new() -> None:
    target = victim()
    assert target.apply_update(update(NEXT)).changed == (NEXT,)
    assert target.apply_update(update(NEXT)).changed == ()
    assert target.apply_update(update(OLD)).changed == ()


def test_a_writer_may_write_with_an_ordinary_yjs_client() -> None:
    doc: Doc[Any] = Doc(client_id=CLIENT)
    for chunk in victim().missing_updates(b"\x00"):
        doc.apply_update(chunk)
    doc.get("nodes", type=Map)["alice"] = value(NEXT)
    target = victim()
    assert target.apply_update(doc.get_update()).changed == (NEXT,)


def test_two_keys_of_one_node_id_stand_side_by_side_through_any_relay() -> None:
    """Yjs shows only one of them, and lists the other as deleted."""
    link = sign_admission(ROOT.key, "root", "alice", key("twin").public, "edge", NOW + 1)
    twin = RecordAuthor(key("twin"), (link,))
    rival = sign_record(twin, "nodes", "alice", 4, NOW, node(twin))
    revoked = revocation(ROOT, ALICE)
    both = room(CURRENT, revoked, rival)
    relayed = yjs(both).get_update()
    for target in (both, room(CURRENT, revoked)):
        target.apply_update(relayed)
        assert target.effective.nodes["alice"].public_key == twin.key.public


def test_a_writer_cannot_fill_the_room() -> None:
    crowd = [
        claim(MALLORY, "agents", f"a{i}", agent("mallory")) for i in range(MAX_KEYS_PER_WRITER)
    ]
    full = SharedRoom(GENESIS, records=crowd)
    more = claim(MALLORY, "agents", "more", agent("mallory"))
    assert full.apply_update(update(more, entry(ALICE), delivery_of(ALICE))).changed == (
        entry(ALICE),
        delivery_of(ALICE),
    )
    assert len(full.document) == MAX_KEYS_PER_WRITER + 2


def delivery_of(who: RecordAuthor) -> Any:
    return sign_record(who, "delivery", who.node, 1, NOW, delivery(1))


def test_one_update_costs_a_bounded_time_to_check() -> None:
    """Each signature takes time, in which a gateway serves nobody else."""
    crowd = [claim(ALICE, "agents", f"a{n}", agent("alice")) for n in range(MAX_RECORDS + 1)]
    slots = RoomDocument(room_id(1))
    (at_once,) = encode_in_chunks(map(slots._as_slot, crowd), MAX_UPDATE_BYTES)
    seen = room(entry(ROOT), entry(ALICE))
    with pytest.raises(RoomViolation) as refused:
        seen.apply_update(at_once)
    assert refused.value.rule == "too_large"
    sizes = [len(decode_update(chunk).items) for chunk in slots.encode_updates(crowd)]
    assert max(sizes) < MAX_RECORDS / 2, "an honest gateway sends less"
