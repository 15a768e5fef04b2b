"""One message for several agents: each gets a copy of its own."""

import pytest
from msgspec import Raw

from gatepost.delivery import fanout
from gatepost.delivery.send_request import check_send, fingerprint_send
from gatepost.errors import IdempotencyConflict, InvalidRequest, InvalidTargets
from gatepost.events import parse_event_id
from gatepost.routing import AgentHome, RoutingDirectory
from gatepost.wire.operations import NewSend, Sent
from tests.delivery.mesh import Gate, Mesh


@pytest.fixture
def mesh() -> Mesh:
    found = Mesh("a", "b", "c")
    found.link("a", "b")
    found.link("a", "c")
    found.flow()
    return found


def _send(gate: Gate, new: NewSend) -> Sent:
    check_send(new)
    sent: Sent = gate.do(lambda tx: gate.coordinator.send(tx, new, fingerprint_send(new)))
    return sent


def _new(to: object, **fields: object) -> NewSend:
    given = {"payload": Raw(b"1"), "to_agents": to} | fields
    return NewSend("A", **given)  # type: ignore[arg-type]


def test_each_gets_a_copy_with_an_id_of_its_own(mesh: Mesh) -> None:
    sent = _send(mesh["a"], _new(["B", "C"]))
    mesh.flow()
    copies = {copy.to_agent: copy for copy in sent.copies}
    assert {to: copy.node for to, copy in copies.items()} == {"B": "b", "C": "c"}
    assert mesh["b"].mail() == [copies["B"].event_id]
    assert mesh["c"].mail() == [copies["C"].event_id]
    assert {copy.corr_id for copy in sent.copies} == {sent.event_id} == {sent.corr_id}
    mesh["b"].settle()
    mesh.flow()
    assert mesh["a"].state(copies["B"].event_id) == "processed"
    assert mesh["a"].state(copies["C"].event_id) == "accepted", "each is a delivery of its own"


def test_a_star_is_everybody_but_the_sender(mesh: Mesh) -> None:
    a = mesh["a"]
    a.do(lambda tx: a.agents.register(tx, "local"))
    sent = _send(a, _new("*"))
    assert [copy.to_agent for copy in sent.copies] == ["B", "C", "local"]


def test_a_star_leaves_out_agents_without_an_owner(mesh: Mesh) -> None:
    a = mesh["a"]
    a.see(RoutingDirectory(a.directory.gateways, {**a.directory.agents, "gone": AgentHome(None)}))
    sent = _send(a, _new("*"))
    assert [copy.to_agent for copy in sent.copies] == ["B", "C"]


def test_a_star_has_a_limit(mesh: Mesh) -> None:
    a = mesh["a"]
    many = {f"x{n}": AgentHome("b") for n in range(fanout.MAX_TARGETS + 1)}
    a.see(RoutingDirectory(a.directory.gateways, many))
    with pytest.raises(InvalidTargets, match="1001 agents, and a message goes to 1000 at most"):
        _send(a, _new("*"))


def test_a_star_without_anybody_else_is_an_error() -> None:
    alone = Mesh("a")
    with pytest.raises(InvalidTargets, match="no other agent"):
        _send(alone["a"], _new("*"))


def test_one_that_is_unknown_does_not_spoil_the_others(mesh: Mesh) -> None:
    sent = _send(mesh["a"], _new(["B", "nobody"]))
    good, bad = sent.copies
    assert (good.to_agent, good.error) == ("B", None)
    assert bad.error is not None
    assert (bad.to_agent, bad.error.code, bad.error.subject) == (
        "nobody",
        "unknown_agent",
        "nobody",
    )
    mesh.flow()
    assert mesh["b"].mail() == [good.event_id]
    assert mesh["a"].rows("SELECT count(*) FROM delivery") == [(1,)]


def test_if_none_is_valid_nothing_was_sent(mesh: Mesh) -> None:
    with pytest.raises(InvalidTargets, match=r"to none of them.*'nobody'"):
        _send(mesh["a"], _new(["nobody", "nor-this"]))
    assert mesh["a"].rows("SELECT count(*) FROM delivery") == [(0,)]


def test_the_same_agent_twice_gets_it_once(mesh: Mesh) -> None:
    assert len(_send(mesh["a"], _new(["B", "B"])).copies) == 1


def test_a_repeated_call_finds_its_copies_again(mesh: Mesh) -> None:
    new = _new(["B", "C"], event_id=mesh["a"].node.event_ids.next_id())
    first, again = _send(mesh["a"], new), _send(mesh["a"], new)
    assert [c.event_id for c in first.copies] == [c.event_id for c in again.copies]
    mesh.flow()
    assert len(mesh["b"].mail()) == 1


def test_a_key_counts_per_agent(mesh: Mesh) -> None:
    a = mesh["a"]
    first = _send(a, _new(["B"], idempotency_key="k"))
    more = _send(a, _new(["B", "C"], idempotency_key="k"))
    assert more.copies[0].event_id == first.copies[0].event_id, "B has it already"
    mesh.flow()
    assert (len(mesh["b"].mail()), len(mesh["c"].mail())) == (1, 1)
    other = _send(a, _new(["B", "C", "A"], idempotency_key="k", payload=Raw(b"2")))
    assert [c.error and c.error.code for c in other.copies] == [
        *("idempotency_conflict", "idempotency_conflict", None),
    ]


def test_a_key_for_one_and_for_several_are_not_confused(mesh: Mesh) -> None:
    a = mesh["a"]
    one = _send(a, NewSend("A", "B", Raw(b"1"), idempotency_key="k"))
    copy = _send(a, _new(["B"], idempotency_key="k")).copies[0]
    assert one.event_id != copy.event_id
    with pytest.raises(IdempotencyConflict):
        _send(a, NewSend("A", "C", Raw(b"1"), idempotency_key="k"))


def test_a_message_is_for_one_or_for_several() -> None:
    for to_agent, to in (("", None), ("B", ["C"])):
        new = NewSend("A", to_agent, Raw(b"1"))
        if to is not None:
            new.to_agents = to
        with pytest.raises(InvalidRequest, match="either `to_agent` or `to_agents`"):
            check_send(new)


def test_a_copys_id_is_a_uuid_of_the_same_time() -> None:
    whole = "0192f8a0-1234-7abc-8def-0123456789ab"
    ids = {fanout.copy_event_id(whole, agent) for agent in ("a", "b", "c")}
    assert len(ids) == 3
    assert all(parse_event_id(id)[:6] == parse_event_id(whole)[:6] for id in ids)
