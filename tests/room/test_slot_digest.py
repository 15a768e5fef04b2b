"""Replicas that were told different things notice it, agree, and name the writer."""

import pytest

from gatepost.errors import RoomViolation
from gatepost.room import RoomAwareness, RoomChange, SharedRoom, SyncPeer, lib0
from gatepost.room.slot_digest import BUCKETS, HASH_BYTES, MAX_SLOTS, DigestIndex
from gatepost.room.sync_protocol import BUCKET_DIGESTS, DIGEST, SLOT_DIGESTS
from tests.room.sample_records import ROOT, author, claim, contents, entry, room, update
from tests.room.sample_records import agent as agent_record

LIAR = author("liar")
ONE, OTHER = entry(LIAR, 7, status="online"), entry(LIAR, 7, status="offline")


class Pair:
    """Two replicas with a connection between them; `bob` was dialled by `ann`."""

    def __init__(self, ann: SharedRoom, bob: SharedRoom) -> None:
        self.rooms = (ann, bob)
        self.changes: list[RoomChange] = []
        for each in self.rooms:
            each.on_change(self.changes.append)
        self.ann = SyncPeer(ann, RoomAwareness("ann", 1), "bob", "listener")
        self.bob = SyncPeer(bob, RoomAwareness("bob", 2), "ann", "dialer")

    def exchange(self, to_bob: list[bytes], to_ann: list[bytes]) -> None:
        """Pass these messages on, and all that follow from them."""
        for _ in range(20):
            from_bob = [m for message in to_bob for m in self.bob.receive_message(message)]
            from_ann = [m for message in to_ann for m in self.ann.receive_message(message)]
            to_ann = from_bob + list(self.bob.pending_messages())
            to_bob = from_ann + list(self.ann.pending_messages())
            if not to_ann and not to_bob:
                return
        raise AssertionError("they never stop")

    def sync(self) -> None:
        self.exchange(self.ann.first_messages(), self.bob.first_messages())

    def compare(self) -> None:
        self.exchange(self.ann.digest_messages(), [])


@pytest.mark.parametrize(("anns", "bobs"), [(ONE, OTHER), (OTHER, ONE)])
def test_a_version_signed_twice_leaves_no_two_replicas_different(
    anns: object, bobs: object
) -> None:
    base = (entry(ROOT), entry(author("ben")))
    pair = Pair(room(*base, anns), room(*base, bobs))  # type: ignore[arg-type]
    pair.sync()
    first, second = pair.rooms
    assert contents(first) != contents(second), "a sync compares versions only"
    pair.compare()
    assert contents(first) == contents(second)
    found = [pair for change in pair.changes for pair in change.conflicts]
    assert {frozenset(each.text for each in both) for both in found} == {
        frozenset((ONE.text, OTHER.text))
    }
    assert {known.writer for known, _ in found} == {"liar"}
    assert all(any(each.changed or each.conflicts for each in pair.changes) for _ in pair.rooms)


def test_replicas_that_agree_say_nothing_more() -> None:
    records = [
        entry(ROOT),
        *(claim(LIAR, "agents", f"a{n}", agent_record("liar")) for n in range(9)),
    ]
    pair = Pair(room(*records), room(*records))
    pair.sync()
    for digest in pair.ann.digest_messages():
        assert list(pair.bob.receive_message(digest)) == []
    assert pair.changes == []


def test_only_a_gateway_that_was_dialled_gets_digests_and_only_after_the_sync() -> None:
    pair = Pair(room(entry(ROOT)), room(entry(ROOT)))
    assert pair.ann.digest_messages() == []
    pair.sync()
    assert pair.bob.digest_messages() == [], "a plain Yjs reader must not get one"
    assert len(pair.ann.digest_messages()) == 2


def test_a_third_replica_that_hears_both_chooses_the_same() -> None:
    winner = max((ONE, OTHER), key=lambda signed: signed.version_order)
    for order in ((ONE, OTHER), (OTHER, ONE)):
        heard = room(entry(ROOT))
        for signed in order:
            heard.apply_update(update(signed))
        assert winner.text in contents(heard)


def test_an_answer_is_bounded_however_much_differs() -> None:
    index = DigestIndex()
    signed = entry(LIAR)
    for client in range(3 * MAX_SLOTS):
        index.put_record(client, signed)
    everything = index.differing_buckets([b"\0" * HASH_BYTES] * BUCKETS)
    assert len(everything) == BUCKETS
    assert 0 < len(index.slots_in(everything)) <= MAX_SLOTS


@pytest.mark.parametrize(
    "body",
    [
        bytes((BUCKET_DIGESTS,)) + lib0.encode_bytes(b"x" * 7),
        bytes((SLOT_DIGESTS,)) + lib0.encode_bytes(lib0.encode_uint(MAX_SLOTS + 1)),
        bytes((SLOT_DIGESTS,)) + lib0.encode_bytes(b"\x01\x01\x01short"),
        bytes((SLOT_DIGESTS,)) + lib0.encode_bytes(b"\x00extra"),
        b"\x09" + lib0.encode_bytes(b""),
    ],
)
def test_malformed_digests_are_violations(body: bytes) -> None:
    pair = Pair(room(entry(ROOT)), room(entry(ROOT)))
    with pytest.raises(RoomViolation):
        pair.bob.receive_message(bytes((DIGEST,)) + body)
