"""A proof verifies as it was written, and in no other way."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gatepost.errors import ProofRejected
from gatepost.events import NodeKey
from gatepost.proof.evidence import report_proof
from gatepost.proof.proof_file import (
    DigestStretch,
    ProofFile,
    ProvenGroup,
    SeenHead,
    encode_proof,
    sign_proof,
    sign_seen_head,
)
from gatepost.proof.verification import verify_proof
from tests.proof.harness import ProofWorld


@pytest.fixture(scope="module")
def world() -> ProofWorld:
    return ProofWorld()


@pytest.fixture(scope="module")
def event_id(world: ProofWorld) -> str:
    return world.deliver()


@pytest.fixture(scope="module")
def file(world: ProofWorld, event_id: str) -> ProofFile:
    return world.prove(event_id)


def test_a_proof_through_a_relay_verifies(world: ProofWorld, file: ProofFile) -> None:
    report = report_proof(world.write(file), world.genesis_key)
    assert (report.node, report.from_agent, report.to_agent) == ("a", "A", "B")
    said = [(each.node, each.status, each.problem) for each in report.receipts]
    assert said == [("b", "accepted", ""), ("b", "processed", "")]
    assert any("s checked the outbox of a" in sentence for sentence in report.proven)
    assert any("no key is in the file" in sentence for sentence in report.not_proven)


def test_no_byte_can_be_flipped(
    world: ProofWorld, file: ProofFile, event_id: str, count: Callable[[int, int], int]
) -> None:
    rich = replace(
        file, revocations=[world.revoke("b", 9)], keys={event_id: world.content_key(file)}
    )
    data = world.write(rich)
    verify_proof(data, world.genesis_key)
    draw = random.Random(26)
    for at in range(len(data)):
        for bit in draw.sample(range(8), count(1, 8)):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises(ProofRejected):
                verify_proof(bytes(changed), world.genesis_key)


def _tampered(group: ProvenGroup) -> dict[str, ProvenGroup]:
    event = group.events[0]
    return {
        "event": replace(group, events=[event[:-1] + b" }"]),
        "digests": replace(group, digests=bytes(len(group.digests))),
        "digest too few": replace(group, digests=group.digests[:-1]),
        "no digests": replace(group, digests=b""),
        "previous": replace(group, previous=bytes(32)),
        "chain": replace(group, chain=bytes(32)),
        "signature": replace(group, signature=bytes(64)),
        "first": replace(group, first=group.first + 1, last=group.last + 1),
        "incarnation": replace(group, incarnation="other"),
        "source": replace(group, source="b" if group.source == "a" else "a"),
        "junk": replace(group, events=[b"{}"]),
        "deep": replace(group, events=[b"[" * 100_000]),
    }


def test_the_maker_changes_no_group_even_if_it_signs_again(
    world: ProofWorld, file: ProofFile
) -> None:
    for at, group in enumerate(file.groups):
        for name, changed in _tampered(group).items():
            groups = [*file.groups]
            groups[at] = changed
            with pytest.raises(ProofRejected):
                verify_proof(world.write(replace(file, groups=groups)), world.genesis_key)
                pytest.fail(name)


def test_the_maker_makes_up_no_head_that_others_saw(world: ProofWorld, file: ProofFile) -> None:
    (seen, *_) = [each for each in file.seen if each.source == "a"]
    made_up: list[SeenHead] = [
        replace(seen, at=seen.at - 1),
        replace(seen, seq=seen.seq + 1),
        replace(seen, witness="b"),
        replace(seen, source="b"),
        replace(seen, chain=bytes(32)),
        sign_seen_head(world["a"].key, seen),
    ]
    for each in made_up:
        with pytest.raises(ProofRejected, match="is not signed by"):
            verify_proof(world.write(replace(file, seen=[each])), world.genesis_key)


def test_a_witness_that_saw_another_history_disproves_the_sender(
    world: ProofWorld, file: ProofFile
) -> None:
    (seen, *_) = [each for each in file.seen if each.source == "a"]
    other = sign_seen_head(world["s"].key, replace(seen, chain=bytes(32)))
    with pytest.raises(ProofRejected, match="s saw another history of a: a signed two"):
        verify_proof(world.write(replace(file, seen=[other])), world.genesis_key)


def test_another_room_is_told_apart(world: ProofWorld, file: ProofFile) -> None:
    stranger = NodeKey(bytes(range(32)))
    with pytest.raises(ProofRejected, match="of the room with the genesis key"):
        verify_proof(world.write(file), stranger.public)


def test_a_node_that_was_never_admitted_proves_nothing(world: ProofWorld, file: ProofFile) -> None:
    chains = [chain for chain in file.chains if chain[-1].node != "b"]
    with pytest.raises(ProofRejected, match="does not show that b was admitted"):
        verify_proof(world.write(replace(file, chains=chains)), world.genesis_key)
    made_up = replace(file.chains[1][0], key=NodeKey(bytes(range(32))).public)
    with pytest.raises(ProofRejected, match="was never admitted"):
        verify_proof(world.write(replace(file, chains=[*chains, (made_up,)])), world.genesis_key)


def test_a_proof_signed_by_another_member_than_its_maker_is_rejected(
    world: ProofWorld, file: ProofFile
) -> None:
    data = encode_proof(sign_proof(world["b"].key, file))
    with pytest.raises(ProofRejected, match="not signed by a"):
        verify_proof(data, world.genesis_key)


def test_events_of_other_messages_stay_out(world: ProofWorld, file: ProofFile) -> None:
    other = world.deliver(b'"second"')
    with pytest.raises(ProofRejected, match="is about another message"):
        verify_proof(world.write(replace(file, groups=world.groups(other))), world.genesis_key)


def test_a_proof_without_the_send_is_rejected(
    world: ProofWorld, file: ProofFile, event_id: str
) -> None:
    receipts = [group for group in file.groups if group.source == "b"]
    with pytest.raises(ProofRejected, match="has no send"):
        verify_proof(world.write(replace(file, groups=receipts)), world.genesis_key)


def test_a_key_opens_the_payload_it_is_for_and_no_other(
    world: ProofWorld, file: ProofFile, event_id: str
) -> None:
    opened = replace(file, keys={event_id: world.content_key(file)})
    report = report_proof(world.write(opened), world.genesis_key)
    assert bytes(report.payloads[event_id]) == b'"hi"'
    for keys in ({event_id: bytes(32)}, {file.groups[-1].source.ljust(36, "0"): bytes(32)}):
        with pytest.raises(ProofRejected):
            verify_proof(world.write(replace(file, keys=keys)), world.genesis_key)


def test_a_revoked_node_is_named_and_its_later_receipts_do_not_count(
    world: ProofWorld, file: ProofFile
) -> None:
    revoked = replace(file, revocations=[world.revoke("b", last_seq=1)])
    report = report_proof(world.write(revoked), world.genesis_key)
    accepted, processed = report.receipts
    assert (accepted.status, accepted.problem) == ("accepted", "")
    assert "b was revoked by s, and its events count up to 1 only" in processed.problem
    assert any("b was revoked by s" in each and "still count" in each for each in report.proven)
    assert any("this receipt does not count" in each for each in report.not_proven)
    assert any("that its turn has ended" in each for each in report.not_proven)


def test_the_send_of_a_revoked_sender_does_not_count(world: ProofWorld, file: ProofFile) -> None:
    revoked = replace(file, revocations=[world.revoke("a", last_seq=0)])
    report = report_proof(world.write(revoked), world.genesis_key)
    assert not any("a signed a message" in each for each in report.proven)
    assert any("that a sent it: a was revoked by s" in each for each in report.not_proven)


def test_a_revocation_by_a_junior_node_is_refused(world: ProofWorld, file: ProofFile) -> None:
    with pytest.raises(ProofRejected, match="not for a node with the role"):
        verify_proof(
            world.write(replace(file, revocations=[world.revoke("b", 0, by="a")])),
            world.genesis_key,
        )


def test_without_a_witness_the_receipt_pins_no_bytes(world: ProofWorld, file: ProofFile) -> None:
    report = report_proof(world.write(replace(file, seen=[])), world.genesis_key)
    (said,) = [each for each in report.not_proven if "these very bytes" in each]
    assert "b names it by its id" in said


def test_digests_lead_to_a_head_that_was_seen_later(world: ProofWorld) -> None:
    event_id = world.deliver(b'"pinned later"')
    groups = world.groups(event_id)
    (own,) = [group for group in groups if group.source == "a"]
    world.deliver(b'"one more"')
    later = world.prove(event_id).groups
    (more,) = [group for group in world.groups(world.deliver(b'"x"')) if group.source == "a"]
    chain = world["a"].value("SELECT chain FROM head WHERE last_seq = ?", more.last)
    seen = sign_seen_head(
        world["s"].key,
        SeenHead(
            witness="s", source="a", incarnation=own.incarnation, seq=more.last, at=1, chain=chain
        ),
    )
    rows = world["a"].rows(
        "SELECT digest FROM outbox WHERE seq > ? AND seq <= ? ORDER BY seq", own.last, more.last
    )
    stretch = DigestStretch(
        source="a",
        incarnation=own.incarnation,
        after=own.last,
        digests=b"".join(row[0] for row in rows),
    )
    file = world.prove(event_id, groups=later, seen=[seen], stretches=[stretch])
    report = report_proof(world.write(file), world.genesis_key)
    assert any("s checked the outbox of a" in each for each in report.proven)
    for digests in (b"", stretch.digests[:-1], stretch.digests[:-32], bytes(len(stretch.digests))):
        wrong = replace(file, stretches=[replace(stretch, digests=digests)])
        with pytest.raises(ProofRejected, match="of a lead"):
            verify_proof(world.write(wrong), world.genesis_key)
