"""Whom a reader asks for an outbox that no link brings, and for how long it avoids a bad relay."""

import apsw
import pytest

from gatepost.delivery.accept import EventBatch
from gatepost.delivery.frames import AnyFrame, EventsFrame, RelayFrame
from gatepost.journal import Tx
from gatepost.links.relay_reader import RelayReader, RelayRetry
from tests.delivery.mesh import Gate, Mesh, Wire
from tests.delivery.tools import signals

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


def restore_reader(mesh: Mesh, backup: apsw.Connection) -> Wire:
    """`b` comes back from its backup, and reaches its relay again."""
    b = mesh["b"]
    mesh.wires[-1].cut()
    b.restore(backup)
    b.do(lambda tx: tx.execute("INSERT INTO fact (name, value) VALUES ('restored_at', '1')"))
    wire = mesh.link("b", "s")
    mesh.flow()
    return wire


@pytest.fixture
def relayed() -> Mesh:
    """`a` and `b` reach each other through `s` only."""
    mesh = Mesh("a", "b", "s", relays=["s"])
    mesh.link("a", "s")
    mesh.link("b", "s")
    mesh.flow()
    return mesh


def test_a_restored_reader_lets_old_mail_of_a_relay_go_by_and_its_pair_goes_on(
    relayed: Mesh,
) -> None:
    """Its sender has it as processed: only the signal `pair_closed` closes its numbers."""
    a, b = relayed["a"], relayed["b"]
    backup = b.backup()
    done = a.send_many(b, 2)
    relayed.flow()
    assert b.settle() == 2
    relayed.flow()
    restore_reader(relayed, backup)
    assert b.mail() == []
    sent = a.send(b).event_id
    relayed.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")
    assert [a.state(id) for id in done] == ["processed", "processed"]


@pytest.mark.parametrize("ahead", [-3_600_000, 3_600_000])
def test_mail_that_a_lost_journal_took_is_given_up_whatever_the_clocks_say(
    relayed: Mesh, ahead: int
) -> None:
    a, b = relayed["a"], relayed["b"]
    backup = b.backup()
    relayed.clock.advance(ahead)
    taken = a.send(b).event_id
    relayed.flow()
    relayed.clock.advance(-ahead)
    assert b.mail() == [taken]
    restore_reader(relayed, backup)
    assert (b.mail(), a.state(taken)) == ([], "dead_letter")
    assert "restored" in signals(b, "a") and "resumed" in signals(a, "b")


def test_a_relayed_reader_that_is_linked_later_is_resumed_once(relayed: Mesh) -> None:
    """Behind its relay it has read everything, so nothing is skipped on the link."""
    a, b = relayed["a"], relayed["b"]
    backup = b.backup()
    done = a.send_many(b, 2)
    relayed.flow()
    b.settle()
    relayed.flow()
    relayed.wires[0].cut()
    restore_reader(relayed, backup)
    assert "resumed" not in signals(a, "b"), "nobody could tell it"
    relayed.link("a", "b")
    sent = a.send(b).event_id
    relayed.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")
    assert [a.state(id) for id in done] == ["processed", "processed"]


def test_the_answer_to_an_earlier_restore_does_not_count(relayed: Mesh) -> None:
    a, b = relayed["a"], relayed["b"]
    first, second = b.backup(), b.backup()
    a.send(b)
    relayed.flow()
    restore_reader(relayed, first)
    resumed = signals(a, "b").count("resumed")
    taken = a.send(b).event_id
    relayed.flow()
    assert b.mail() == [taken]
    restore_reader(relayed, second)
    assert (b.mail(), a.state(taken)) == ([], "dead_letter")
    assert signals(a, "b").count("resumed") > resumed


def test_a_fault_of_ours_with_one_outbox_costs_no_other_outbox_its_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = Mesh("a", "b", "c", "s", relays=["s"])
    wires = [mesh.link(name, "s") for name in "abc"]
    mesh.flow()
    reader = mesh["b"]
    take_batch = reader.coordinator.take_batch

    def fail_for_a(tx: Tx, batch: EventBatch) -> int:
        taken = take_batch(tx, batch)
        if batch.source == "a":
            raise KeyError("a bug")
        return taken

    monkeypatch.setattr(reader.coordinator, "take_batch", fail_for_a)
    mesh["a"].send(reader)
    mesh.flow()
    honest = mesh["c"].send(reader).event_id
    mesh.flow()
    assert reader.mail() == [honest]
    assert reader.incidents("relay") == ["s/a"]
    assert not [error for wire in wires for error in wire.errors]
