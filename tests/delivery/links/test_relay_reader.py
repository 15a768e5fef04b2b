"""Whom a reader asks for an outbox that no link brings, and for how long it avoids a bad relay."""

import pytest

from gatepost.delivery.frames import AnyFrame, EventsFrame, RelayFrame
from gatepost.delivery.links.relay_reader import RelayReader, RelayRetry
from tests.delivery.mesh import Gate, Mesh, Wire

RETRY = RelayRetry()


@pytest.fixture
def mesh() -> Mesh:
    """`b` reaches two relays; `a` reaches none of them yet."""
    mesh = Mesh("a", "b", "s", "t", relays=["s", "t"])
    for relay in ("s", "t"):
        mesh.link("b", relay)
    mesh.flow()
    return mesh


def asked(mesh: Mesh, relay: str) -> bool:
    """Whether `b` wants the outbox of `a` from this relay now."""
    (wire,) = [w for w in mesh.wires if {w.one.gate.id, w.other.gate.id} == {"b", relay}]
    said = [e for e in wire.end_of(mesh[relay]).seen if isinstance(e, RelayFrame)]
    return bool(said) and "a" in said[-1].wants


def forged(wire: Wire, relay: Gate) -> None:
    def tamper(frame: AnyFrame) -> AnyFrame:
        if isinstance(frame, EventsFrame) and frame.stream == "relay":
            return EventsFrame(
                frame.source, frame.incarnation, frame.first_seq, frame.upto, frame.now,
                frame.events, [], "relay",
            )  # fmt: skip
        return frame

    wire.end_of(relay).tamper = tamper


def test_one_relay_is_asked_first_and_the_next_after_a_while(mesh: Mesh) -> None:
    assert sorted([asked(mesh, "s"), asked(mesh, "t")]) == [False, True]
    mesh.clock.advance(RETRY.next_relay_ms - 1)
    mesh.refresh()
    assert sorted([asked(mesh, "s"), asked(mesh, "t")]) == [False, True]
    mesh.clock.advance(1)
    mesh.refresh()
    assert asked(mesh, "s") and asked(mesh, "t")


def test_a_clock_that_goes_back_does_not_stop_the_asking(mesh: Mesh) -> None:
    mesh.clock.advance(-3_600_000)
    mesh.refresh()
    mesh.clock.advance(RETRY.next_relay_ms)
    mesh.refresh()
    assert asked(mesh, "s") and asked(mesh, "t")


def test_the_relay_that_has_it_is_asked_alone(mesh: Mesh) -> None:
    mesh.clock.advance(RETRY.next_relay_ms)
    mesh.refresh()
    mesh.link("a", "t")
    mesh.flow()
    mesh.refresh()
    assert (asked(mesh, "s"), asked(mesh, "t")) == (False, True)
    sent = mesh["a"].send(mesh["b"]).event_id
    mesh.flow()
    assert mesh["b"].mail() == [sent]


def test_a_relay_that_forged_is_avoided_twice_as_long_each_time() -> None:
    mesh = Mesh("a", "b", "s", relays=["s"])
    reader, gate = mesh["b"].reader, mesh["b"]
    wire = mesh.link("b", "s")
    mesh.flow()
    part = next(p for p in reader._parts if p.peer == "s")
    now = gate.clock.now()
    for times in range(3):
        reader.blame_relay("s", "a", now)
        ban = RETRY.first_ban_ms << times
        assert reader._is_blamed(part, "a")
        assert reader._blamed["s", "a"].until == now + ban
    assert not wire.broken
    reader.clear_blame("s", "a")
    assert not reader._is_blamed(part, "a")


def test_a_ban_ends_when_the_clock_goes_back() -> None:
    mesh = Mesh("a", "b", "s", relays=["s"])
    mesh.link("b", "s")
    mesh.flow()
    reader: RelayReader = mesh["b"].reader
    part = next(p for p in reader._parts if p.peer == "s")
    reader.blame_relay("s", "a", mesh.clock.now())
    mesh.clock.advance(-60_000)
    assert not reader._is_blamed(part, "a")


def test_a_forging_relay_is_left_and_another_serves() -> None:
    mesh = Mesh("a", "b", "s", "t", relays=["s", "t"])
    for one in ("a", "b"):
        for relay in ("s", "t"):
            mesh.link(one, relay)
    mesh.flow()
    a, b = mesh["a"], mesh["b"]
    mesh.refresh()
    liar = "s" if asked(mesh, "s") else "t"
    (wire,) = [w for w in mesh.wires if {w.one.gate.id, w.other.gate.id} == {"b", liar}]
    forged(wire, mesh[liar])
    sent = a.send(b).event_id
    mesh.flow()
    mesh.refresh()
    assert wire.broken
    assert b.incidents("relay") == [f"{liar}/a"]
    assert b.mail() == [sent]


def test_a_restored_reader_refuses_old_events_of_a_relay_and_its_pair_goes_on() -> None:
    """Its sender has them as processed: nothing else would ever close their numbers."""
    mesh = Mesh("a", "b", "s", relays=["s"])
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "s")
    wire = mesh.link("b", "s")
    mesh.flow()
    backup = b.backup()
    done = a.send_many(b, 2)
    mesh.flow()
    assert b.settle() == 2
    mesh.flow()
    assert [a.state(id) for id in done] == ["processed", "processed"]
    wire.cut()
    b.restore(backup)
    restored = f"INSERT INTO fact (name, value) VALUES ('restored_at', '{b.clock.now()}')"
    b.do(lambda tx: tx.execute(restored))
    mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == []
    mesh.clock.advance(60_000)
    sent = a.send(b).event_id
    mesh.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")
    assert [a.state(id) for id in done] == ["processed", "processed"]
