"""What a gateway writes down about the room."""

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.archive import room_facts
from gatepost.archive.room_facts import NodeFact, RevocationFact, RoomFacts, TermFact
from gatepost.errors import ArchiveError
from gatepost.events import NodeKey
from gatepost.testing import ManualClock
from tests.archive.harness import ArchiveHarness

KEY, OTHER = NodeKey.generate(ManualClock()), NodeKey.generate(ManualClock(seed=1))
FACTS = RoomFacts(
    node="ann",
    at=5,
    nodes=(NodeFact(id="ann", public_key=KEY.public, tier="backbone", added_by="ann", added_at=1),),
    revocations=(RevocationFact(node="bob", public_key=OTHER.public, by="ann", at=4, last_seq=7),),
    terms=(TermFact(counter=1, node="ann", at=2),),
)


def test_they_survive_being_written_and_read(harness: ArchiveHarness) -> None:
    signed = room_facts.sign_facts(FACTS, KEY)
    room_facts.write_facts(harness.store(), signed)
    assert room_facts.read_facts(harness.store(), "ann") == signed
    assert room_facts.read_all_facts(harness.store()) == [signed]
    assert room_facts.read_facts(harness.store(), "bob") is None


def test_the_form_on_disk(harness: ArchiveHarness) -> None:
    room_facts.write_facts(harness.store(), room_facts.sign_facts(FACTS, KEY))
    document = msgspec.json.decode((harness.root / "room/ann.json").read_bytes())
    assert document["version"] == 1
    assert set(document["nodes"][0]) == {"id", "publicKey", "tier", "addedBy", "addedAt"}
    assert set(document["revocations"][0]) == {"node", "publicKey", "by", "at", "lastSeq"}
    assert document["terms"] == [{"counter": 1, "node": "ann", "at": 2}]


def test_they_are_signed_as_a_whole() -> None:
    signed = room_facts.sign_facts(FACTS, KEY)
    assert room_facts.are_facts_signed(signed, KEY.public)
    assert not room_facts.are_facts_signed(signed, OTHER.public)
    assert not room_facts.are_facts_signed(replace(signed, terms=()), KEY.public)


def test_keys_of_nodes_shut_out_are_known_too() -> None:
    assert FACTS.public_key_of("ann") == KEY.public
    assert FACTS.public_key_of("bob") == OTHER.public
    assert FACTS.public_key_of("eve") is None


def test_nonsense_is_refused(harness: ArchiveHarness) -> None:
    harness.store().write_file("room/ann.json", b"{}")
    with pytest.raises(ArchiveError):
        room_facts.read_all_facts(harness.store())
