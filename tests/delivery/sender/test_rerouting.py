"""Offers, fallbacks, and pairs that move between nodes."""

from functools import partial

from tests.delivery.mesh import Gate, Mesh
from tests.delivery.sender.tools import online, signals, take_turns, wait

SECOND = 1_000
DAY = 86_400 * SECOND


def test_an_offer_is_engaged_only_when_it_is_confirmed(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = lambda frame: None
    sent = a.send(b).event_id
    mesh.flow()
    assert (a.state(sent), b.mail()) == ("emitted", [])
    wire.cut()
    mesh.link("a", "b")
    mesh.flow()
    assert (a.state(sent), b.mail()) == ("accepted", [sent])
    assert signals(a, "b") == ["confirm"]


def test_a_fallback_takes_over_and_the_owner_that_returns_does_nothing(
    mesh: Mesh, a: Gate, b: Gate, c: Gate
) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    mesh.link("a", "c")
    ids = a.send_many(b, 3)
    mesh.flow()
    online(mesh, "a", "c", fallback=True)
    mesh.flow()
    assert signals(a, "b") == ["withdraw"] * 3
    taken = c.rows("SELECT m.msg_id FROM mail m JOIN mailbox x ON x.id = m.mailbox"
                   " WHERE x.name = 'B' ORDER BY m.arrival")  # fmt: skip
    assert [row[0] for row in taken] == ids
    online(mesh, "a", "b", "c", fallback=True)
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == []
    assert {a.state(id) for id in ids} == {"accepted"}


def test_a_pair_that_moves_does_so_after_a_restart_too(mesh: Mesh, c: Gate, b: Gate) -> None:
    """c delivered some messages to B itself, and the next one comes back to it."""
    online(mesh, "a", "c", fallback=True)
    ids = c.send_many(b, 2)
    online(mesh, "a", "b", "c", fallback=True)
    ids += c.send_many(b, 1)
    assert c.state(ids[2]) == "emitted"
    c.core.sender.rolled_back()  # It forgets which pairs move, as when it restarts.
    online(mesh, "a", "c", fallback=True)
    assert {c.state(id) for id in ids} == {"accepted"}
    assert c.do(partial(take_turns, c)) == ids
    assert {c.state(id) for id in ids} == {"processed"}


def test_a_pair_with_accepted_work_waits_for_its_owner(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    wire = mesh.link("a", "b")
    mesh.link("a", "c")
    first = a.send(b).event_id
    mesh.flow()
    wire.cut()
    online(mesh, "a", "c", fallback=True)
    second = a.send(b).event_id
    mesh.flow()
    assert (a.state(first), a.state(second)) == ("accepted", "emitted")
    mesh.link("a", "b")
    b.settle()
    mesh.flow()
    assert (a.state(first), a.state(second)) == ("processed", "accepted")


def test_a_pair_that_moves_there_and_back_drains(mesh: Mesh, a: Gate, b: Gate, c: Gate) -> None:
    """Each node goes on as soon as what was before its part is settled, wherever."""
    online(mesh, "a", "b", "c", fallback=True)
    wire = mesh.link("a", "b")
    mesh.link("a", "c")
    ids = a.send_many(b, 2)
    mesh.flow()
    wire.cut()
    online(mesh, "a", "c", fallback=True)
    ids += a.send_many(b, 2)
    mesh.flow()
    online(mesh, "a", "b", "c", fallback=True)
    ids += a.send_many(b, 2)
    mesh.link("a", "b")
    turns: list[str] = []
    for _ in range(10):
        mesh.flow()
        for gate in (b, c):
            turns += gate.do(partial(take_turns, gate))
    assert turns == ids
    assert {a.state(id) for id in ids} == {"processed"}


def test_the_new_node_does_not_wait_for_numbers_given_up_on_the_old_route(
    mesh: Mesh, a: Gate, b: Gate, c: Gate
) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    mesh.link("a", "c")
    first = a.send(b).event_id
    gone = a.send(b, ttl_secs=5.0).event_id
    wait(mesh, 6 * SECOND)
    assert a.state(gone) == "dead_letter"
    online(mesh, "a", "c", fallback=True)
    last = a.send(b).event_id
    mesh.flow()
    assert c.do(partial(take_turns, c)) == [first, last]
