"""What a gateway gives away for a proof: its events of the message that are for the asker."""

import pytest

from gatepost.delivery.frames import Position, TraceAnswer
from gatepost.events import decode_event
from gatepost.links.event_proof import read_evidence, read_seen_heads
from gatepost.proof.proof_file import ProvenGroup
from tests.delivery.mesh import Mesh


@pytest.fixture
def mesh() -> Mesh:
    """`a` and `b` reach each other through the relay `s` only; `c` is a member too."""
    mesh = Mesh("a", "b", "c", "s", relays=["s"])
    for name in ("a", "b", "c"):
        mesh.link(name, "s")
    mesh.flow()
    return mesh


def deliver(mesh: Mesh) -> str:
    """Two messages in one commit group of `a`; returns the id of the first."""
    first, _ = mesh["a"].send_many(mesh["b"], 2)
    mesh.flow()
    mesh.refresh()
    mesh["b"].settle()
    mesh.flow()
    return str(first)


def ask_for_proof(
    mesh: Mesh, asker: str, target: str, event_id: str, heads: list[Position]
) -> TraceAnswer:
    answers: list[TraceAnswer] = []
    (wire,) = [w for w in mesh.wires if {w.one.gate.id, w.other.gate.id} == {asker, "s"}]
    trace = wire.end_of(mesh[asker]).port.trace
    trace.request_trace([event_id], answers.append, None if target == "s" else target, heads)
    mesh.flow()
    (answer,) = answers
    return answer


def kinds(groups: list[ProvenGroup]) -> set[str]:
    return {decode_event(body).kind for group in groups for body in group.events}


def test_the_sender_gets_the_receipts_through_a_relay(mesh: Mesh) -> None:
    answer = ask_for_proof(mesh, "a", "b", deliver(mesh), [])
    assert kinds(answer.groups) == {"ack"}
    assert {group.source for group in answer.groups} == {"b"}


def test_a_member_that_is_no_party_gets_nothing_from_either_end(mesh: Mesh) -> None:
    event_id = deliver(mesh)
    for target in ("a", "b"):
        assert ask_for_proof(mesh, "c", target, event_id, []).groups == []


def test_other_events_of_a_group_are_digests_only(mesh: Mesh) -> None:
    event_id = deliver(mesh)
    (group,) = mesh["a"].do(lambda tx: read_evidence(tx, "a", event_id)).groups
    assert (group.last - group.first, len(group.events)) == (1, 1)
    assert len(group.split_digests()) == 2


def test_a_relay_says_which_history_it_checked(mesh: Mesh) -> None:
    event_id = deliver(mesh)
    (group,) = mesh["a"].do(lambda tx: read_evidence(tx, "a", event_id)).groups
    heads = [(group.source, group.incarnation, group.last)]
    (seen,) = ask_for_proof(mesh, "a", "s", event_id, heads).seen
    assert (seen.witness, seen.source, seen.seq) == ("s", "a", group.last)
    assert seen.chain == group.chain


def test_nobody_vouches_for_what_it_has_not_read(mesh: Mesh) -> None:
    event_id = deliver(mesh)
    (group,) = mesh["a"].do(lambda tx: read_evidence(tx, "a", event_id)).groups
    relay = mesh["s"]
    heads: list[Position] = [
        (group.source, group.incarnation, group.last + 1),
        (group.source, "another-incarnation", group.last),
        ("c", group.incarnation, group.last),
        ("s", relay.node.incarnation, 1),
    ]
    assert relay.do(lambda tx: read_seen_heads(tx, relay.node, heads)) == []
