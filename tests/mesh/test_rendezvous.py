from typing import Any

import msgspec
import pytest

from gatepost.errors import InvalidRequest
from gatepost.events import fingerprint_key
from gatepost.mesh.heard_addresses import HeardAddresses, encode_point
from gatepost.mesh.messages import IntroPoints
from gatepost.mesh.rendezvous import (
    LIFE_MS,
    MAX_DOCUMENT_BYTES,
    REFRESH_MS,
    DescriptorDocument,
    find_descriptor,
    joinable_points,
    merge_points,
    renew_descriptor,
    verify_document,
)
from gatepost.room import RecordAuthor, SharedRoom, SignedRecord, TransportRecord
from gatepost.room.records import MAX_DESCRIPTOR_POINTS
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import GENESIS, NOW, ROOT, author, claim, entry, key, revocation

VPS, LEA = author("vps", "backbone"), author("lea")
FINGERPRINT = fingerprint_key(GENESIS.key)


def room_of(*records: SignedRecord, who: RecordAuthor = ROOT) -> SharedRoom:
    return SharedRoom(GENESIS, author=who, records=[*map(entry, (ROOT, VPS, LEA)), *records])


def published(room: SharedRoom, who: RecordAuthor = ROOT, now: int = NOW) -> SignedRecord:
    record = renew_descriptor(room, who.node, who.key.public, HeardAddresses(), now)
    assert record is not None
    return claim(who, "rendezvous", "descriptor", record)


def document_of(signed: SignedRecord) -> bytes:
    return msgspec.json.encode(DescriptorDocument.of_record(GENESIS, signed))


def test_all_addresses_are_merged_and_backbone_nodes_come_first() -> None:
    onion = "a" * 56 + ".onion"
    hidden = sign_record(LEA, "transports", "lea", 1, NOW, TransportRecord(onion=onion))
    points = merge_points(room_of(hidden), HeardAddresses())
    assert [point.node for point in points] == ["root", "vps", "lea"]
    assert points[2].onion == onion
    assert points[1].key == key("vps").fingerprint
    assert [p.node for p in joinable_points(published(room_of()).data)] == ["root", "vps"]  # type: ignore[arg-type]


def test_a_node_without_an_address_and_a_revoked_one_are_left_out() -> None:
    room = room_of(entry(LEA, 2, endpoint_ws=None), revocation(ROOT, VPS))
    assert [point.node for point in merge_points(room, HeardAddresses())] == ["root"]


def heard_of(who: str, endpoint: str | None, at: int, key_name: str = "") -> HeardAddresses:
    heard = HeardAddresses()
    points = () if endpoint is None else (encode_point(endpoint),)
    heard.note_points(who, key(key_name or who).public, IntroPoints(points, at // 1000), at)
    return heard


def test_the_later_word_of_a_node_about_its_address_counts() -> None:
    later, earlier = NOW + 60_000, NOW - 60_000
    shown = {point.node: point for point in merge_points(room_of(), HeardAddresses())}
    moved = merge_points(room_of(), heard_of("vps", "wss://moved:1", later))
    assert {point.node: point.endpoint_ws for point in moved} == {
        node: "wss://moved:1" if node == "vps" else point.endpoint_ws
        for node, point in shown.items()
    }
    stale = merge_points(room_of(), heard_of("vps", "wss://moved:1", earlier))
    assert list(stale) == list(shown.values())
    gone = merge_points(room_of(), heard_of("vps", None, later))
    assert [point.node for point in gone] == ["root", "lea"]


def test_the_word_of_another_key_or_of_a_revoked_node_does_not_count() -> None:
    imposter = heard_of("vps", "wss://moved:1", NOW + 60_000, key_name="other")
    assert merge_points(room_of(), imposter) == merge_points(room_of(), HeardAddresses())
    revoked = room_of(revocation(ROOT, VPS))
    points = merge_points(revoked, heard_of("vps", "wss://moved:1", NOW + 60_000))
    assert [point.node for point in points] == ["root", "lea"]


def test_a_descriptor_has_a_bound() -> None:
    many = [author(f"n{number}", "edge", VPS) for number in range(60)]
    long: dict[str, Any] = {"endpoint_ws": f"wss://{'h' * 200}:1", "tls_pin": "a" * 64}
    room = room_of(*(entry(each, **long) for each in many[:29]))
    assert len(merge_points(room_of(*map(entry, many)), HeardAddresses())) == MAX_DESCRIPTOR_POINTS
    document = document_of(published(room))
    assert len(document) < MAX_DOCUMENT_BYTES
    verify_document(document, NOW, FINGERPRINT)


def test_publishing_twice_changes_nothing_until_something_changed_or_a_day_has_passed() -> None:
    first = published(room_of())
    room, heard, root = room_of(first), HeardAddresses(), ROOT.key.public
    assert renew_descriptor(room, "root", root, heard, NOW + REFRESH_MS - 1) is None
    assert renew_descriptor(room, "root", root, heard, NOW + REFRESH_MS) is not None
    moved = room_of(first, entry(VPS, 2, endpoint_ws="ws://elsewhere:1"))
    changed = renew_descriptor(moved, "root", root, heard, NOW)
    assert changed is not None
    assert changed.points[1].endpoint_ws == "ws://elsewhere:1"


def test_the_publishers_descriptor_is_served_and_another_ones_until_there_is_one() -> None:
    room = room_of(published(room_of()), published(room_of(), VPS))
    for publisher in ("root", "vps"):
        found = find_descriptor(room, publisher, NOW)
        assert found is not None
        assert found.writer == publisher
    only = find_descriptor(room_of(published(room_of())), "vps", NOW)
    assert only is not None
    assert only.writer == "root"
    assert find_descriptor(room, "root", NOW + LIFE_MS) is None
    assert find_descriptor(room_of(), "root", NOW) is None


def test_a_newcomer_verifies_the_descriptor_up_to_the_genesis() -> None:
    document = document_of(published(room_of(), VPS))
    found = verify_document(document, NOW, FINGERPRINT)
    assert (found.publisher, found.version, len(found.data.points)) == ("vps", 1, 3)


def altered(document: bytes, **changes: object) -> bytes:
    read = msgspec.json.decode(document, type=DescriptorDocument)
    return msgspec.json.encode(msgspec.structs.replace(read, **changes))


def test_a_descriptor_that_is_forged_old_or_of_others_is_refused() -> None:
    document = document_of(published(room_of()))
    record = msgspec.json.decode(document, type=DescriptorDocument).record
    forged = [
        b"",
        b"{}",
        document + b" " * MAX_DOCUMENT_BYTES,
        altered(document, record=record.replace("vps", "vqs")),
        altered(document, signature="A" * 86 + "=="),
        altered(document, genesis_key=key("mallory").public),
        altered(document, genesis_key=b"short"),
        document_of(entry(ROOT)),
    ]
    for text in forged:
        with pytest.raises(InvalidRequest):
            verify_document(text, NOW, FINGERPRINT)
    for now in (NOW + LIFE_MS, NOW - 86_400_000):
        with pytest.raises(InvalidRequest, match="out of date"):
            verify_document(document, now, FINGERPRINT)
    with pytest.raises(InvalidRequest, match="another mesh"):
        verify_document(document, NOW, "ab" * 16)


def test_an_edge_node_cannot_publish_a_descriptor() -> None:
    signed = published(room_of(), LEA)
    with pytest.raises(InvalidRequest):
        verify_document(document_of(signed), NOW, FINGERPRINT)
    assert find_descriptor(room_of(signed), "lea", NOW) is None
