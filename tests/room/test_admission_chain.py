"""A chain of admissions holds only if it leads to the genesis, link by link."""

import pytest
from msgspec.structs import replace

from gatepost.errors import RoomViolation
from gatepost.room import ChainVerifier, Genesis, RecordAuthor, sign_admission
from gatepost.room.admission_chain import MAX_CHAIN_LENGTH
from tests.room.sample_records import GENESIS, NOW, ROOT, author, key

BACKBONE = author("vps", "backbone")
EDGE = author("laptop", "edge", BACKBONE)


def holds(*chain: object) -> bool:
    try:
        ChainVerifier(GENESIS).verify_chain(tuple(chain))  # type: ignore[arg-type]
    except RoomViolation as violation:
        assert violation.rule == "not_admitted"
        return False
    return True


def test_the_genesis_admits_itself_and_others() -> None:
    assert holds(*ROOT.chain)
    assert holds(*BACKBONE.chain)
    assert [link.node for link in EDGE.chain] == ["vps", "laptop"]
    assert holds(*EDGE.chain)


def test_a_chain_to_another_genesis_does_not_hold() -> None:
    with pytest.raises(RoomViolation):
        ChainVerifier(Genesis("root", key("other").public)).verify_chain(EDGE.chain)


def test_an_edge_node_admits_nobody() -> None:
    member = sign_admission(EDGE.key, "laptop", "phone", key("phone").public, "edge", NOW)
    assert not holds(*EDGE.chain, member)


def test_nobody_is_admitted_in_another_issuers_name() -> None:
    forged = sign_admission(EDGE.key, "vps", "phone", key("phone").public, "edge", NOW)
    assert not holds(*BACKBONE.chain, forged)


@pytest.mark.parametrize(
    "change",
    [
        {"node": "desktop"},
        {"tier": "backbone"},
        {"issued_at": NOW + 1},
        {"key": key("desktop").public},
        {"signature": bytes(64)},
    ],
)
def test_a_link_that_was_altered_does_not_hold(change: dict[str, object]) -> None:
    assert not holds(*EDGE.chain[:-1], replace(EDGE.chain[-1], **change))


def test_a_link_left_out_does_not_hold() -> None:
    assert not holds(EDGE.chain[-1])


def test_nobody_else_becomes_the_genesis_node() -> None:
    twin = sign_admission(ROOT.key, "root", "root", key("twin").public, "backbone", NOW)
    assert not holds(twin)
    again = sign_admission(BACKBONE.key, "vps", "root", ROOT.key.public, "backbone", NOW)
    assert not holds(*BACKBONE.chain, again)


def test_the_genesis_is_no_link_in_the_chains_of_others() -> None:
    assert not holds(*ROOT.chain, *BACKBONE.chain)


def test_chains_may_be_as_long_as_the_limit() -> None:
    last: RecordAuthor = ROOT
    for number in range(MAX_CHAIN_LENGTH):
        last = author(f"n{number}", "backbone", last)
    assert len(last.chain) == MAX_CHAIN_LENGTH
    assert holds(*last.chain)
