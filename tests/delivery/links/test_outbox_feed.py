"""The emitter's end of a subscription: from memory if it can, from the journal if it must."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost.delivery.frames import FRAME_BYTES, FRAME_EVENTS, EventsFrame, TakenFrame
from gatepost.events import decode_event
from tests.conftest import choose
from tests.delivery.mesh import Gate, Mesh, Wire


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b")


def frames(wire: Wire, gate: Gate) -> list[EventsFrame]:
    return [each for each in wire.end_of(gate).seen if isinstance(each, EventsFrame)]


def test_what_is_new_goes_out_without_a_look_into_the_journal(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()
    a.send(b)
    assert a.jobs == [], "nothing has to be read first"
    assert len(wire.end_of(a).out) == 1


def test_who_comes_late_gets_it_from_the_journal(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    ids = a.send_many(b, 10)
    wire = mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids
    assert len(frames(wire, b)) == 1


def test_what_is_written_while_a_reader_catches_up_comes_in_order(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    ids = a.send_many(b, 10)
    wire = mesh.link("a", "b")
    for _ in range(30):
        mesh.step()
        ids.append(a.send(b).event_id)
    mesh.flow()
    assert (b.mail(), wire.errors) == (ids, [])
    assert b.core.receiver.duplicates == 0


def test_a_large_group_passes_a_small_window(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 4_000
    wire = mesh.link("a", "b")
    mesh.flow()
    ids = a.send_many(b, 100, size=2_000)
    mesh.flow()
    ids += a.send_many(b, 100, size=2_000)
    mesh.flow()
    assert (b.mail(), wire.errors) == (ids, [])


def test_a_reader_that_takes_nothing_is_sent_no_more_than_its_window(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 50_000
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, TakenFrame) else frame
    for _ in range(50):
        a.send_many(b, 10, size=2_000)
        mesh.flow()
    sent = sum(len(body) for frame in frames(wire, b) for body in frame.events)
    assert sent < 50_000 + 2 * FRAME_BYTES
    assert 0 < len(b.mail()) < 500


def test_credit_nobody_was_owed_buys_nothing(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 50_000
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, TakenFrame) else frame
    wire.end_of(a).hear(TakenFrame("a", "a-1", 0, 2**50))
    for _ in range(50):
        a.send_many(b, 10, size=2_000)
        mesh.flow()
    assert sum(len(body) for frame in frames(wire, b) for body in frame.events) < 1_000_000


@pytest.mark.parametrize("live", [True, False])
def test_frames_stay_small(mesh: Mesh, live: bool) -> None:
    a, b = mesh["a"], mesh["b"]
    if live:
        mesh.link("a", "b")
        mesh.flow()
    ids = a.send_many(b, FRAME_EVENTS + 10) + a.send_many(b, 100, size=9_000)
    if not live:
        mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids
    for frame in frames(mesh.wires[0], b):
        assert len(frame.events) <= FRAME_EVENTS
        assert sum(map(len, frame.events)) <= FRAME_BYTES


def test_what_is_about_to_be_sent_is_written_down_first(mesh: Mesh) -> None:
    """Live or not: should the reader lose its journal, that is how far it may have heard."""
    a, b = mesh["a"], mesh["b"]
    a.send_many(b, 3)
    sent = "SELECT sent_seq FROM recipient WHERE node_id = 'b'"
    assert a.value(sent) == 0
    mesh.link("a", "b")
    mesh.flow()
    assert a.value(sent) == 3
    a.send(b)
    assert a.value(sent) == 4


def test_a_reader_gets_its_own_and_what_is_for_everybody(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    a.note("c")
    a.note(None, everybody=True)
    mesh.flow()
    a.note(None)
    a.note("b")
    a.note(None, everybody=True)
    mesh.flow()
    assert [decode_event(body).seq for frame in frames(wire, b) for body in frame.events] == [
        2,
        4,
        5,
    ]
    assert wire.errors == []


steps = st.lists(st.sampled_from(["send", "burst", "back", "step", "step", "cut"]), max_size=40)


@settings(max_examples=choose(25, 500))
@given(steps, st.sampled_from([1, 3_000, 1 << 20]))
def test_whatever_breaks_everything_comes_once_and_in_order(plan: list[str], window: int) -> None:
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = window
    mesh.link("a", "b")
    there: list[str] = []
    back: list[str] = []
    for step in plan:
        if step == "send":
            there.append(a.send(b).event_id)
        elif step == "burst":
            there += a.send_many(b, 7, size=1_000)
        elif step == "back":
            back.append(b.send(a).event_id)
        elif step == "cut":
            mesh.wires[0].cut()
            mesh.wires = []
            mesh.link("a", "b")
        else:
            mesh.step()
    mesh.flow()
    assert (b.mail(), a.mail()) == (there, back)
    assert [wire.errors for wire in mesh.wires] == [[]]
    assert a.incidents() == b.incidents() == []
