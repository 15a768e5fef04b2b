"""All replicas show the same record of a version that was signed twice, and name the same liar."""

from functools import partial
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.errors import RoomViolation
from gatepost.journal import Tx, open_memory_journal
from gatepost.room import (
    RecordAuthor,
    RecordRetention,
    RoomChange,
    SharedRoom,
    SignedRecord,
    lib0,
    sign_admission,
    store,
)
from gatepost.room.evidence import Evidence, prove_signed_twice
from gatepost.room.retention import rotate_room
from gatepost.room.sync_protocol import DIGEST, PROOF
from tests.conftest import choose
from tests.room.sample_records import (
    NOW,
    ROOT,
    agent,
    author,
    claim,
    contents,
    entry,
    key,
    proof_of,
    room,
    shown,
    update,
)
from tests.room.test_slot_digest import Pair

LIAR, OTHER_LIAR = author("liar"), author("fibber")
THREE = [entry(LIAR, 7, status=status) for status in ("online", "offline", "degraded")]
LATER = entry(LIAR, 8)
BASE = (entry(ROOT), entry(author("ben")))
HISTORY = [
    *THREE,
    LATER,
    *(entry(LIAR, 9, status=status) for status in ("online", "offline")),
    *(claim(LIAR, "agents", "spy", data, 2) for data in (agent("liar"), None)),
    *(entry(OTHER_LIAR, 2, status=status) for status in ("online", "offline")),
]


def proofs(of: SharedRoom) -> dict[str, tuple[str, str]]:
    return {proof.writer: (proof.first.text, proof.second.text) for proof in of.evidence}


def note_named(names: set[str], change: RoomChange) -> None:
    names.update(proof.writer for proof in change.proofs)


@settings(max_examples=choose(40, 400))
@given(st.randoms(use_true_random=False), st.integers(2, 4))
def test_replicas_agree_on_the_record_and_on_the_liar_in_any_order(
    random: Random, replicas: int
) -> None:
    """Each hears some of the records in an order of its own; later all of them meet."""
    rooms = [room(*BASE) for _ in range(replicas)]
    named: list[set[str]] = [set() for _ in rooms]
    for each, names in zip(rooms, named, strict=True):
        each.on_change(partial(note_named, names))
        for signed in random.sample(HISTORY, random.randint(0, len(HISTORY))):
            each.apply_update(update(signed))
    for _ in range(2):
        for one, other in random.sample(list(permutations(rooms, 2)), replicas * (replicas - 1)):
            pair = Pair(one, other)
            pair.sync()
            pair.compare()
            pair.ann.close()
            pair.bob.close()
    for each, names in zip(rooms, named, strict=True):
        assert contents(each) == contents(rooms[0])
        assert shown(each) == shown(rooms[0])
        assert proofs(each) == proofs(rooms[0])
        assert names == proofs(each).keys()


@pytest.mark.parametrize("order", list(permutations(THREE)))
def test_of_three_records_of_a_version_all_keep_the_same_two(order: list[SignedRecord]) -> None:
    heard = room(*BASE)
    for signed in order:
        heard.apply_update(update(signed))
    least = sorted(signed.text for signed in THREE)
    assert proofs(heard) == {"liar": (least[0], least[1])}
    assert least[2] in contents(heard)


def test_evidence_that_arrives_after_a_later_version_names_the_liar_too() -> None:
    saw_both, saw_later = room(*BASE, *THREE[:2], LATER), room(*BASE, THREE[0], LATER)
    saw_later.apply_update(update(THREE[1]))
    assert proofs(saw_later) == {}, "the later version has taken the place of both"
    for pair in (Pair(saw_later, saw_both), Pair(saw_both, saw_later)):
        pair.sync()
        pair.compare()
        assert proofs(saw_later) == proofs(saw_both) != {}


def test_a_proof_has_to_be_two_genuine_records_of_one_version() -> None:
    heard = room(*BASE)
    peer = Pair(heard, room(*BASE)).ann
    forged = replace(THREE[1], text=THREE[1].text.replace("offline", "onlin_e"))
    for one, other in ((THREE[0], THREE[0]), (THREE[0], LATER), (THREE[0], forged)):
        texts = (one.text, one.signature, other.text, other.signature)
        body = b"".join(lib0.encode_text(text) for text in texts)
        with pytest.raises(RoomViolation):
            peer.receive_message(bytes((DIGEST, PROOF)) + lib0.encode_bytes(body))
    assert proofs(heard) == {}


def test_a_second_key_of_a_node_proves_nothing_against_it() -> None:
    heard = room(*BASE, entry(LIAR))
    link = sign_admission(ROOT.key, "root", "liar", key("twin").public, "edge", NOW + 1)
    twin = RecordAuthor(key("twin"), (link,))
    twice = [entry(twin, 3, status=status) for status in ("online", "offline")]
    assert heard.accept_evidence(prove_signed_twice(*twice), "peer").is_empty
    assert proofs(heard) == {}


def test_the_liars_of_one_branch_are_bounded() -> None:
    evidence = Evidence()
    backbone = author("backbone", "backbone")
    for number in range(80):
        who = author(f"liar-{number}", by=backbone)
        twice = [entry(who, 3, status=status) for status in ("online", "offline")]
        evidence.add_proof(prove_signed_twice(*twice))
    assert len(list(evidence)) == 64
    assert evidence.add_proof(prove_signed_twice(*THREE[:2])) is not None


def test_evidence_moves_to_the_next_document() -> None:
    before = room(*BASE, *THREE[:2], of=ROOT)
    after = rotate_room(before, proof_of(2), NOW, RecordRetention())
    assert proofs(after) == proofs(before) != {}


def test_the_proof_against_a_writer_is_stored_in_place_of_the_former_one() -> None:
    heard, tx = room(*BASE), Tx(open_memory_journal(), NOW)
    for signed in HISTORY:
        for proof in heard.apply_update(update(signed)).proofs:
            store.save_evidence(tx, proof)
    assert len(tx.fetch_all("SELECT * FROM room_evidence")) == 2
    stored = SharedRoom(heard.genesis, evidence=store.load_evidence(tx, heard.genesis))
    assert proofs(stored) == proofs(heard)
