"""Re-routing: after a refusal, to where an agent lives, away from owners that never come back."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import apsw
import pytest

from gatepost.delivery.reroute import OpenFilter
from gatepost.delivery.undelivered import give_up_messages
from gatepost.errors import InvalidRequest
from gatepost.routing import AgentHome, GatewayEntry, RevokedGateway, RoutingDirectory
from tests.delivery.mesh import Gate, Mesh
from tests.delivery.tools import letters, online, signals, take_turns, wait

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
    c.core.parts.pairs.forget_moving()  # It forgets which pairs move, as when it restarts.
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


# -- the work of a move


class SqlWork:
    """The statements that a gateway ran, and the steps that SQLite took for them."""

    def __init__(self) -> None:
        self.statements = 0
        self.steps = 0

    def note(self, event: dict[str, object]) -> None:
        status = event["stmt_status"]
        assert isinstance(status, dict)
        self.statements += 1
        self.steps += int(status["SQLITE_STMTSTATUS_VM_STEP"])


@contextmanager
def sql_work(gate: Gate) -> Iterator[SqlWork]:
    work = SqlWork()
    gate.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, work.note)
    yield work
    gate.connection.trace_v2(0, None)


def go_away(mesh: Mesh) -> None:
    """b is away from now on, and c is its fallback."""
    online(mesh, "a", "c", fallback=True)


def nodes_of(gate: Gate) -> list[str]:
    return [row[0] for row in gate.rows("SELECT node FROM delivery ORDER BY pair_seq, event_id")]


def work_of_move(count: int) -> tuple[float, float]:
    """Statements and SQLite steps for each of `count` deliveries that move."""
    mesh = Mesh("a", "b", "c")
    a = mesh["a"]
    online(mesh, "a", "b", "c", fallback=True)
    a.send_many(mesh["b"], count)
    with sql_work(a) as work:
        go_away(mesh)
    assert set(nodes_of(a)) == {"c"}
    return work.statements / count, work.steps / count


def test_the_work_of_a_move_does_not_grow_with_the_pair() -> None:
    statements, steps = work_of_move(200)
    more_statements, more_steps = work_of_move(1_600)
    assert more_statements < 1.2 * statements < 20
    assert more_steps < 1.2 * steps


def test_a_node_is_told_once_how_far_a_moved_pair_is_closed(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    a.send_many(b, 50)
    go_away(mesh)
    assert signals(a, "c") == ["pair_closed"]


def test_closing_numbers_of_a_pair_that_moves_does_not_look_at_the_others_again(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    """b has accepted half of them, and c has the others: each that ends at b costs the same."""

    def steps_to_settle(count: int) -> float:
        mesh = Mesh("a", "b", "c")
        a, b = mesh["a"], mesh["b"]
        online(mesh, "a", "b", "c")
        wire = mesh.link("a", "b")
        a.send_many(b, count)
        mesh.flow()
        a.connection.execute("UPDATE pair_seq SET node = 'c', moving = 1")
        a.do(lambda tx: a.core.parts.pairs.forget_moving())
        b.settle()
        with sql_work(a) as work:
            mesh.flow()
        assert wire.errors == []
        assert a.value("SELECT count(*) FROM delivery WHERE processed_at IS NULL") == 0
        return work.steps / count

    assert steps_to_settle(800) < 1.5 * steps_to_settle(100)


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
