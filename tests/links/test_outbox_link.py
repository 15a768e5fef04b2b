"""A link between two gateways: each reads the other's outbox, from where it is, and no further."""

from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.delivery.frames import (
    AnyFrame,
    EventsFrame,
    HelloFrame,
    Incarnation,
    LinkFrame,
    SkipFrame,
    SubscribeFrame,
    TakenFrame,
)
from gatepost.events import decode_event
from tests.delivery.mesh import Gate, Mesh, Wire


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b")


@pytest.fixture
def a(mesh: Mesh) -> Gate:
    return mesh["a"]


@pytest.fixture
def b(mesh: Mesh) -> Gate:
    return mesh["b"]


def events_seen(wire: Wire, gate: Gate) -> list[int]:
    frames = [each for each in wire.end_of(gate).seen if isinstance(each, EventsFrame)]
    return [decode_event(body).seq for frame in frames for body in frame.events]


def of(kind: type[LinkFrame], wire: Wire, gate: Gate) -> list[Any]:
    return [each for each in wire.end_of(gate).seen if isinstance(each, kind)]


def test_a_message_goes_there_and_its_receipts_come_back(mesh: Mesh, a: Gate, b: Gate) -> None:
    mesh.link("a", "b")
    mesh.flow()
    sent = a.send(b).event_id
    mesh.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")
    b.settle()
    mesh.flow()
    assert a.state(sent) == "processed"


def test_a_new_link_goes_on_where_the_last_one_ended(mesh: Mesh, a: Gate, b: Gate) -> None:
    first = mesh.link("a", "b")
    ids = a.send_many(b, 3)
    mesh.flow()
    first.cut()
    ids += a.send_many(b, 2)
    second = mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids
    assert events_seen(second, b) == [4, 5], "nothing travels twice"


def test_what_was_lost_on_a_broken_link_is_sent_again(mesh: Mesh, a: Gate, b: Gate) -> None:
    wire = mesh.link("a", "b")
    mesh.flow()
    ids = a.send_many(b, 3)
    wire.cut()
    assert b.mail() == []
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids


def test_of_two_links_at_once_one_is_read(mesh: Mesh, a: Gate, b: Gate) -> None:
    one, other = mesh.link("a", "b"), mesh.link("a", "b")
    ids = [a.send(b).event_id for _ in range(5)]
    mesh.flow()
    ids += [a.send(b).event_id for _ in range(5)]
    mesh.flow()
    assert b.mail() == ids
    assert one.errors == other.errors == []
    assert sorted([len(events_seen(one, b)), len(events_seen(other, b))]) == [0, 10]
    assert b.core.parts.counts.duplicates == 0


def test_when_one_of_two_links_goes_the_other_carries_on(mesh: Mesh, a: Gate, b: Gate) -> None:
    first, second = mesh.link("a", "b"), mesh.link("a", "b")
    mesh.flow()
    first.cut()
    ids = a.send_many(b, 3)
    mesh.flow()
    assert (b.mail(), second.errors) == (ids, [])


def test_an_event_left_out_is_noticed_and_nothing_is_taken(mesh: Mesh, a: Gate, b: Gate) -> None:
    wire = mesh.link("a", "b")
    mesh.flow()
    first, second = a.send(b).event_id, a.send(b).event_id
    left_out: list[EventsFrame] = []

    def without_the_first(frame: AnyFrame) -> AnyFrame | None:
        if isinstance(frame, EventsFrame) and not left_out:
            left_out.append(frame)
            return None
        return frame

    wire.end_of(a).tamper = without_the_first
    mesh.flow()
    assert wire.broken and "left out" in wire.errors[0]
    assert b.mail() == []
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == [first, second]


def leave_out(wire: Wire, gate: Gate, *seqs: int) -> None:
    """These events of `gate` never come, and nobody says so."""

    def tamper(frame: AnyFrame) -> AnyFrame:
        if not isinstance(frame, EventsFrame):
            return frame
        events = [body for body in frame.events if decode_event(body).seq not in seqs]
        return replace(frame, events=events)

    wire.end_of(gate).tamper = tamper


def said_by(mesh: Mesh, frame: AnyFrame) -> str:
    """What happens to a link when `b` says this to `a`."""
    wire = mesh.link("a", "b")
    mesh.flow()
    mesh["a"].send(mesh["b"])
    mesh.flow()
    assert not wire.broken
    wire.end_of(mesh["a"]).hear(frame)
    mesh.flow()
    assert len(wire.errors) == 1, "the link ends"
    return wire.errors[0]


def test_nobody_sends_the_outbox_of_another_as_its_own(mesh: Mesh) -> None:
    assert "as its own" in said_by(mesh, EventsFrame("c", "c-1", 1, 1, 0, []))


def test_nobody_speaks_of_the_outbox_of_another(mesh: Mesh, a: Gate) -> None:
    assert "speaks of" in said_by(mesh, SkipFrame("c", "c-1", 1, 9, "cut off"))
    assert a.rows("SELECT * FROM cursor WHERE source = 'c'") == []


def test_nobody_subscribes_twice(mesh: Mesh) -> None:
    assert "twice" in said_by(mesh, SubscribeFrame("b-1", [], 1))


def test_two_subscriptions_in_a_row_are_one_too_many(mesh: Mesh, a: Gate, b: Gate) -> None:
    """Even if the first has not been answered yet."""
    wire = Wire(a, b)
    end = wire.end_of(a)
    end.hear(HelloFrame("b", [("b-1", 1)], 0, 0))
    end.hear(SubscribeFrame("b-1", [], 1))
    end.hear(SubscribeFrame("b-1", [], 1))
    assert wire.broken


def test_nobody_subscribes_before_it_says_who_it_is(a: Gate, b: Gate) -> None:
    wire = Wire(a, b)
    wire.end_of(a).hear(SubscribeFrame("b-1", [], 1))
    assert wire.broken


def test_nobody_takes_what_it_was_not_sent(mesh: Mesh) -> None:
    assert "not sent" in said_by(mesh, TakenFrame("a", "a-1", 99, 1))


def test_nobody_is_somebody_else(mesh: Mesh) -> None:
    assert "introduces itself as" in said_by(mesh, HelloFrame("c", [("c-1", 1)], 0, 0))


def test_nobody_says_hello_twice(mesh: Mesh) -> None:
    assert "introduces itself" in said_by(mesh, HelloFrame("b", [("b-1", 1)], 0, 0))


def test_what_no_part_of_a_link_knows_ends_it(mesh: Mesh) -> None:
    assert "no use for" in said_by(mesh, TakenFrame("a", "a-1", 0, 1, "no such stream"))


def test_an_event_for_somebody_else_ends_the_link(mesh: Mesh, a: Gate, b: Gate) -> None:
    b.note("c")
    ((body,),) = b.rows("SELECT body FROM outbox ORDER BY seq DESC LIMIT 1")
    message = said_by(mesh, EventsFrame("b", "b-1", 1, 1, 0, [body]))
    assert "that is for c" in message


def test_an_event_that_is_none_ends_the_link(mesh: Mesh) -> None:
    assert "not an event" in said_by(mesh, EventsFrame("b", "b-1", 1, 1, 0, [b"{}"]))


def test_a_reader_that_is_ahead_of_the_outbox_is_told(mesh: Mesh, a: Gate, b: Gate) -> None:
    """Rather than wait in silence until the outbox has caught up."""
    a.send(b)
    old = a.backup()
    a.send(b)
    mesh.link("a", "b")
    mesh.flow()
    mesh.wires[0].cut()
    a.connection = old
    a.start()
    wire = mesh.link("a", "b")
    mesh.flow()
    assert "put back by hand" in wire.errors[0]


# -- incarnations


def test_a_restored_emitter_goes_on_in_a_new_life(mesh: Mesh, a: Gate, b: Gate) -> None:
    mesh.link("a", "b")
    before = a.send_many(b, 3)
    mesh.flow()
    backup = a.backup()
    lost = a.send(b).event_id
    mesh.flow()
    mesh.wires[0].cut()
    a.restore(backup)
    wire = mesh.link("a", "b")
    after = a.send_many(b, 2)
    mesh.flow()
    assert b.mail() == [*before, lost, *after]
    frames = of(EventsFrame, wire, b)
    assert {(frame.incarnation, frame.first_seq) for frame in frames} == {("a-2", 4)}
    assert b.rows("SELECT incarnation, seq FROM cursor WHERE source = 'a'")[-1] == ("a-2", 5)


def test_a_reader_of_an_earlier_life_hears_its_rest_first(mesh: Mesh, a: Gate, b: Gate) -> None:
    before = a.send_many(b, 3)
    a.restore(a.backup())
    after = a.send_many(b, 2)
    wire = mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == before + after
    incarnations: list[Incarnation] = [
        (frame.incarnation, frame.first_seq) for frame in of(EventsFrame, wire, b)
    ]
    assert incarnations == [("a-1", 1), ("a-2", 4)]


@pytest.mark.parametrize("size", [1, 3])
def test_the_end_of_a_life_left_out_is_noticed_in_the_next(
    mesh: Mesh, a: Gate, b: Gate, size: int
) -> None:
    """With 3, more of that incarnation was read; with 1, nothing was."""
    leave_out(mesh.link("a", "b"), a, size)
    before = a.send_many(b, size)
    mesh.flow()
    assert b.mail() == before[:-1]
    mesh.wires[0].cut()
    a.restore(a.backup())
    after = a.send_many(b, 2)
    wire = mesh.link("a", "b")
    mesh.flow()
    assert "left out" in wire.errors[0]
    assert b.mail() == before[:-1]
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == before + after


def test_the_ends_of_two_lives_left_out_are_both_noticed(mesh: Mesh, a: Gate, b: Gate) -> None:
    leave_out(mesh.link("a", "b"), a, 2)
    ids = a.send_many(b, 2)
    mesh.flow()
    mesh.wires[0].cut()
    a.restore(a.backup())
    leave_out(mesh.link("a", "b"), a, 3)
    ids += a.send_many(b, 1)
    mesh.flow()
    assert b.mail() == ids[:1]
    ids += a.send_many(b, 1)
    mesh.flow()
    for _ in range(2):
        mesh.link("a", "b")
        mesh.flow()
    assert b.mail() == ids


def test_a_life_that_was_left_behind_is_not_missed(mesh: Mesh, a: Gate, b: Gate) -> None:
    """The wrong backup is restored, and then a later one: both go on from the first incarnation."""
    mesh.link("a", "b")
    a.note("b")
    mesh.flow()
    wrong = a.backup()
    for _ in range(4):
        a.note("b")
    right = a.backup()
    mesh.wires[0].cut()
    a.restore(wrong)
    wire = mesh.link("a", "b")
    a.note("b")
    a.note("b")
    mesh.flow()
    assert (events_seen(wire, b), wire.errors) == ([2, 3], [])
    wire.cut()
    a.restore(right)
    a.note("b")
    wire = mesh.link("a", "b")
    mesh.flow()
    assert (events_seen(wire, b), wire.errors) == ([2, 3, 4, 5, 6], [])


def test_a_restored_reader_is_not_sent_again_what_it_may_have_heard(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    mesh.link("a", "b")
    mesh.flow()
    backup = b.backup()
    heard = a.send(b).event_id
    mesh.flow()
    mesh.wires[0].cut()
    b.restore(backup)
    wire = mesh.link("a", "b")
    mesh.flow()
    (skip,) = of(SkipFrame, wire, b)
    assert (skip.upto, skip.why) == (1, "restored")
    assert b.mail() == []
    assert a.state(heard) == "dead_letter"
    new = a.send(b).event_id
    mesh.flow()
    assert (b.mail(), a.state(new)) == ([new], "accepted")
    assert wire.errors == []


def test_a_retry_does_not_bring_back_what_a_restored_reader_may_have_heard(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    """Its first copy was heard. That a later one was not makes no difference."""
    wire = mesh.link("a", "b")
    mesh.flow()
    backup = b.backup()
    heard = a.send(b).event_id
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, EventsFrame) else frame
    mesh.flow()
    assert b.mail() == [heard]
    wire.cut()
    mesh.clock.advance(60_000)
    for _ in range(3):
        a.do(lambda tx: None)
        mesh.clock.advance(10_000)
    assert [each.attempt for each in a.events() if each.event_id == heard] == [1, 2]
    b.restore(backup)
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == [], "it may have been engaged before"
    assert a.state(heard) == "dead_letter"


def test_what_a_restored_reader_never_heard_is_sent(mesh: Mesh, a: Gate, b: Gate) -> None:
    mesh.link("a", "b")
    mesh.flow()
    mesh.wires[0].cut()
    unheard = a.send(b).event_id
    b.restore(b.backup())
    mesh.link("a", "b")
    mesh.flow()
    assert (b.mail(), a.state(unheard)) == ([unheard], "accepted")


def cut_and_prune(a: Gate, upto: int) -> None:
    a.connection.execute("UPDATE recipient SET cut_seq = ? WHERE node_id = 'b'", (upto,))
    a.connection.execute("DELETE FROM outbox WHERE seq <= ?", (upto,))


def test_a_reader_that_was_cut_off_gets_what_the_journal_still_has(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    for _ in range(3):
        a.note("b")
    a.connection.execute("UPDATE recipient SET cut_seq = 2 WHERE node_id = 'b'")
    wire = mesh.link("a", "b")
    mesh.flow()
    assert of(SkipFrame, wire, b) == []
    assert events_seen(wire, b) == [1, 2, 3]


def test_a_reader_that_was_cut_off_is_told_so(mesh: Mesh, a: Gate, b: Gate) -> None:
    for _ in range(3):
        a.note("b")
    cut_and_prune(a, 2)
    wire = mesh.link("a", "b")
    mesh.flow()
    (skip,) = of(SkipFrame, wire, b)
    assert (skip.upto, skip.why) == (2, "cut off")
    assert events_seen(wire, b) == [3]
    assert b.incidents("skipped") == ["a/2"]
    a.note("b")
    mesh.flow()
    assert (events_seen(wire, b), wire.errors) == ([3, 4], [])


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_left_out_right_behind_a_skip_is_noticed(
    mesh: Mesh, a: Gate, b: Gate, size: int
) -> None:
    """With 2, another event comes in the same frame; with 1, none does."""
    for _ in range(2 + size):
        a.note("b")
    cut_and_prune(a, 2)
    wire = mesh.link("a", "b")
    leave_out(wire, a, 3)
    mesh.flow()
    a.note("b")
    mesh.flow()
    assert "left out" in wire.errors[0]
    wire = mesh.link("a", "b")
    mesh.flow()
    assert (events_seen(wire, b), wire.errors) == ([3, 4, 5][: size + 1], [])
