"""Deliveries whose owner never comes back: they end, or go to where their agent lives now."""

from typing import Any

import pytest

from gatepost.delivery.sender.lost_owners import OpenFilter
from gatepost.delivery.undelivered import give_up_messages
from gatepost.errors import InvalidRequest
from gatepost.routing import AgentHome, GatewayEntry, RevokedGateway, RoutingDirectory
from tests.delivery.mesh import Gate, Mesh
from tests.delivery.sender.tools import letters, online, wait

DAY = 86_400_000


def revoke(mesh: Mesh, lost: str, home: str | None = None) -> None:
    """`lost` is revoked, and its agent lives behind `home`, if anywhere."""
    mesh[lost].see(RoutingDirectory())
    members = {id: gate for id, gate in mesh.gates.items() if id != lost}
    gateways = {id: GatewayEntry(gate.key.public) for id, gate in members.items()}
    agents = {id.upper(): AgentHome(id) for id in members}
    if home:
        agents[lost.upper()] = AgentHome(home)
        mesh[home].do(lambda tx: mesh[home].agents.register(tx, lost.upper()))
    for gate in members.values():
        gate.see(RoutingDirectory(gateways, agents, {}, {lost: RevokedGateway(b"key", 1000)}))


def undelivered(a: Gate) -> dict[str, tuple[str, str | None]]:
    rows = a.rows("SELECT lower(hex(event_id)), reason, verdict FROM undelivered")
    return {id: (reason, verdict) for id, reason, verdict in rows}


def give_up(a: Gate, **wanted: Any) -> int:
    chosen = OpenFilter(**wanted)
    count: int = a.do(lambda tx: give_up_messages(tx, a.core, chosen, 10, "ann"))
    return count


def key(event_id: str) -> str:
    return event_id.replace("-", "")


def test_a_revoked_owner_ends_what_it_accepted(mesh: Mesh, a: Gate, b: Gate) -> None:
    wire = mesh.link("a", "b")
    sent = a.send(b).event_id
    mesh.flow()
    assert a.state(sent) == "accepted"
    wire.cut()
    revoke(mesh, "b")
    assert a.state(sent) == "dead_letter"
    assert undelivered(a) == {key(sent): ("owner_revoked", "accepted")}


def test_a_message_on_its_way_to_a_revoked_owner_may_have_been_taken(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = lambda frame: None
    sent = a.send(b).event_id
    mesh.flow()
    wire.cut()
    revoke(mesh, "b", home="c")
    assert (a.state(sent), undelivered(a)) == ("dead_letter", {key(sent): ("owner_revoked", None)})


def test_mail_that_a_revoked_owner_never_got_goes_to_the_new_home(
    mesh: Mesh, a: Gate, b: Gate, c: Gate
) -> None:
    mesh.link("a", "c")
    ids = a.send_many(b, 3)
    revoke(mesh, "b")
    wait(mesh, 60_000)
    assert {a.state(id) for id in ids} == {"retry_pending"}, "nobody has taken the agent yet"
    revoke(mesh, "b", home="c")
    wait(mesh, 1)
    taken = c.rows("SELECT m.msg_id FROM mail m JOIN mailbox x ON x.id = m.mailbox"
                   " WHERE x.name = 'B' ORDER BY m.arrival")  # fmt: skip
    assert [row[0] for row in taken] == ids
    assert {a.state(id) for id in ids} == {"accepted"}


def test_mail_behind_a_revoked_owner_expires_if_nobody_takes_the_agent(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    sent = a.send(b).event_id
    revoke(mesh, "b")
    wait(mesh, DAY + 1)
    assert undelivered(a) == {key(sent): ("expired", "never sent")}


def test_a_pair_is_free_after_its_owner_was_revoked(mesh: Mesh, a: Gate, b: Gate, c: Gate) -> None:
    wire = mesh.link("a", "b")
    first = a.send(b).event_id
    mesh.flow()
    wire.cut()
    waiting = a.send(b).event_id
    mesh.link("a", "c")
    revoke(mesh, "b", home="c")
    late = a.send(b).event_id
    mesh.flow()
    assert [a.state(id) for id in (first, waiting, late)] == ["dead_letter", "accepted", "accepted"]


def test_an_overridden_owner_gives_up_only_what_it_may_have(
    mesh: Mesh, a: Gate, b: Gate, c: Gate
) -> None:
    """The owner is dead, and not revoked: mail that never was on a link follows its agent."""
    wire = mesh.link("a", "b")
    accepted = a.send(b).event_id
    mesh.flow()
    wire.cut()
    online(mesh, "a", "c")
    unsent = a.send(b).event_id
    mesh.link("a", "c")
    mesh.flow()
    gateways = {id: GatewayEntry(gate.key.public, id != "b") for id, gate in mesh.gates.items()}
    agents = {"A": AgentHome("a"), "B": AgentHome("c")}
    c.do(lambda tx: c.agents.register(tx, "B"))
    for gate in (a, c):
        gate.see(RoutingDirectory(gateways, agents))
    mesh.flow()
    assert a.rows("SELECT node FROM delivery ORDER BY event_id") == [("b",), ("c",)]
    assert (a.state(accepted), a.state(unsent)) == ("accepted", "emitted"), "the order is kept"
    assert give_up(a, node="b") == 1
    mesh.flow()
    assert a.state(unsent) == "accepted"


def test_an_owner_that_never_reports_the_end_is_given_up_after_days(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    wire = mesh.link("a", "b")
    sent = a.send(b).event_id
    mesh.flow()
    wire.cut()
    wait(mesh, 7 * DAY - 2)
    assert a.state(sent) == "incident"
    wait(mesh, 2)
    assert undelivered(a) == {key(sent): ("abandoned", "accepted")}
    assert [letter.reason for letter in letters(a)] == ["abandoned"]
    assert sent in a.incidents("dead_letter")
    mesh.link("a", "b")
    mesh.flow()
    said = ("abandoned", "processed: expired")
    assert undelivered(a) == {key(sent): said}, "a late word amends it"


def test_open_messages_are_given_up_by_hand(mesh: Mesh, a: Gate, b: Gate) -> None:
    wire = mesh.link("a", "b")
    first = a.send(b).event_id
    mesh.flow()
    wire.cut()
    second, third = a.send(b).event_id, a.send(b).event_id

    assert give_up(a, event_ids=[second]) == 1
    assert give_up(a, node="c") == give_up(a, agent="A") == 0
    assert give_up(a, agent="B", node="b") == 2
    assert undelivered(a) == {
        key(first): ("given_up", "accepted"),
        key(second): ("given_up", "never sent"),
        key(third): ("given_up", "never sent"),
    }
    with pytest.raises(InvalidRequest, match="name the messages"):
        give_up(a)
