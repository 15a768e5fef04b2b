"""Outboxes served by somebody else: complete, in order, proven, and never trusted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    AnyFrame,
    EventsFrame,
    FollowFrame,
    IncarnationsFrame,
    LinkFrame,
    RelayFrame,
    TakenFrame,
)
from gatepost.errors import GatepostError
from gatepost.events import decode_event
from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.transaction import Tx
from gatepost.links.outbox_replica import ReplicaPosition
from gatepost.links.proof import sign_reading
from gatepost.links.relay_host import REPLICA_KEEP_MS
from gatepost.routing import RoutingDirectory
from tests.conftest import choose
from tests.delivery.mesh import Gate, Mesh, Wire

Tamper = Callable[[EventsFrame], EventsFrame | None]


@pytest.fixture
def mesh() -> Mesh:
    """`a` and `b` cannot reach each other, but both reach `s`."""
    mesh = Mesh("a", "b", "s", relays=["s"])
    mesh.link("a", "s")
    mesh.link("b", "s")
    mesh.flow()
    return mesh


@pytest.fixture
def a(mesh: Mesh) -> Gate:
    return mesh["a"]


@pytest.fixture
def b(mesh: Mesh) -> Gate:
    return mesh["b"]


@pytest.fixture
def s(mesh: Mesh) -> Gate:
    return mesh["s"]


def wire_of(mesh: Mesh, one: str, other: str) -> Wire:
    (found,) = [w for w in mesh.wires if {w.one.gate.id, w.other.gate.id} == {one, other}]
    return found


def relayed(wire: Wire, gate: Gate) -> list[EventsFrame]:
    seen = wire.end_of(gate).seen
    return [each for each in seen if isinstance(each, EventsFrame) and each.stream == "relay"]


def seqs(frames: list[EventsFrame]) -> list[int]:
    return [decode_event(body).seq for frame in frames for body in frame.events]


def tampered(mesh: Mesh, change: Tamper) -> Wire:
    """From now on `s` does this to what it relays to `b`."""
    wire = wire_of(mesh, "b", "s")

    def tamper(frame: AnyFrame) -> AnyFrame | None:
        return (
            change(frame) if isinstance(frame, EventsFrame) and frame.stream == "relay" else frame
        )

    wire.end_of(mesh["s"]).tamper = tamper
    return wire


def reconnect(mesh: Mesh, one: str, other: str) -> Wire:
    for wire in [w for w in mesh.wires if {w.one.gate.id, w.other.gate.id} == {one, other}]:
        wire.cut()
    wire = mesh.link(one, other)
    mesh.flow()
    return wire


def prune(mesh: Mesh, gate: Gate) -> None:
    assert gate.host is not None
    gate.host.prune_replicas(gate.commit)
    mesh.flow()


# -- the way there and back


def test_a_message_goes_there_and_its_receipts_come_back(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    mesh.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")
    b.settle()
    mesh.flow()
    assert a.state(sent) == "processed"


def test_what_was_written_before_anybody_asked_comes_too() -> None:
    mesh = Mesh("a", "b", "s", relays=["s"])
    ids = mesh["a"].send_many(mesh["b"], 20)
    mesh.link("a", "s")
    mesh.flow()
    mesh.link("b", "s")
    mesh.flow()
    assert mesh["b"].mail() == ids


def test_what_is_new_is_passed_on_from_memory(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    a.send(b)
    mesh.flow()
    a.send(b)
    wire_of(mesh, "a", "s").step()
    assert s.work(), "it is stored"
    assert s.jobs == [], "and nothing is read"
    assert len(wire_of(mesh, "b", "s").end_of(s).out) == 1


def test_the_relay_delivers_what_its_source_is_not_there_to_send(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    wire_of(mesh, "b", "s").cut()
    ids = a.send_many(b, 5)
    mesh.flow()
    wire_of(mesh, "a", "s").cut()
    mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == ids


def test_a_relay_that_starts_again_still_has_it(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    wire_of(mesh, "b", "s").cut()
    ids = a.send_many(b, 5)
    mesh.flow()
    wire_of(mesh, "a", "s").cut()
    s.start()
    mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == ids
    mesh.link("a", "s")
    ids += a.send_many(b, 5)
    mesh.flow()
    assert b.mail() == ids, "and goes on to follow, unasked"


def test_a_reader_goes_on_where_it_was(mesh: Mesh, a: Gate, b: Gate) -> None:
    ids = a.send_many(b, 3)
    mesh.flow()
    wire_of(mesh, "b", "s").cut()
    ids += a.send_many(b, 2)
    mesh.flow()
    wire = mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == ids
    assert seqs(relayed(wire, b)) == [4, 5]


def test_a_reader_gets_its_own_and_what_is_for_everybody(mesh: Mesh, a: Gate, b: Gate) -> None:
    for live in (True, False):
        if not live:
            wire_of(mesh, "b", "s").cut()
        a.note("c")
        a.note(EVERYBODY)
        a.note(None)
        a.note("b")
        a.note(EVERYBODY)
        mesh.flow()
    wire = mesh.link("b", "s")
    mesh.flow()
    assert seqs(relayed(wire, b)) == [7, 9, 10]
    assert b.value("SELECT seq FROM cursor WHERE source = 'a'") == 10
    assert b.incidents() == []


@pytest.mark.parametrize("live", [True, False])
def test_large_groups_pass_small_windows(live: bool) -> None:
    mesh = Mesh("a", "b", "s", relays=["s"])
    for gate in mesh.gates.values():
        gate.window = 5_000
        gate.start()
    a, b = mesh["a"], mesh["b"]
    ids = [] if live else a.send_many(b, 100, size=3_000)
    mesh.link("a", "s")
    mesh.link("b", "s")
    mesh.flow()
    ids += a.send_many(b, 150, size=3_000)
    ids += a.send_many(b, FRAME_EVENTS + 20)
    mesh.flow()
    assert b.mail() == ids
    for frame in relayed(wire_of(mesh, "b", "s"), b):
        proof = sum(len(group.digests) for group in frame.groups)
        assert sum(map(len, frame.events)) <= FRAME_BYTES
        assert len(frame.events) <= FRAME_EVENTS
        assert proof <= FRAME_BYTES + 32 * (FRAME_EVENTS + 20)


def test_a_reader_that_takes_nothing_gets_no_more_than_its_window() -> None:
    mesh = Mesh("a", "b", "s", relays=["s"])
    for gate in mesh.gates.values():
        gate.window = 50_000
        gate.start()
    mesh.link("a", "s")
    wire = mesh.link("b", "s")
    mesh.flow()
    a, b = mesh["a"], mesh["b"]
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, TakenFrame) else frame
    for _ in range(50):
        a.send_many(b, 10, size=2_000)
        mesh.flow()
    assert 0 < len(b.mail()) < 500
    assert sum(len(body) for f in relayed(wire, b) for body in f.events) < 50_000 + FRAME_BYTES
    assert mesh["s"].value("SELECT count(*) FROM replica WHERE source = 'a'") == 500


def test_several_sources_take_turns(mesh: Mesh) -> None:
    mesh = Mesh("a", "b", "c", "s", relays=["s"])
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    of_a, of_c = a.send_many(b, 50), c.send_many(b, 50)
    for name in ("a", "c", "b"):
        mesh.link(name, "s")
    mesh.flow()
    assert sorted(b.mail()) == sorted(of_a + of_c)
    assert [each for each in b.mail() if each in of_a] == of_a


# -- who relays what for whom


def test_a_direct_link_and_a_relay_deliver_once(mesh: Mesh, a: Gate, b: Gate) -> None:
    ids = a.send_many(b, 3)
    mesh.flow()
    mesh.link("a", "b")
    for _ in range(5):
        ids.append(a.send(b).event_id)
        mesh.step()
    mesh.flow()
    wire_of(mesh, "a", "b").cut()
    ids += a.send_many(b, 3)
    mesh.flow()
    assert b.mail() == ids
    assert b.incidents() == a.incidents() == []


def test_who_is_linked_is_not_asked_for_by_relay(mesh: Mesh, a: Gate, b: Gate) -> None:
    mesh.link("a", "b")
    mesh.flow()
    asked = wire_of(mesh, "b", "s").end_of(mesh["s"]).seen
    wants = [each.wants for each in asked if isinstance(each, RelayFrame)]
    assert wants == [["a"], []]
    a.send(b)
    mesh.flow()
    assert relayed(wire_of(mesh, "b", "s"), b) == []


def test_an_outbox_that_was_left_out_for_a_moment_begins_anew(mesh: Mesh, a: Gate, b: Gate) -> None:
    """Requests come faster than the relay handles them, and it handles the last one only."""
    a.send(b)
    mesh.flow()
    wire = wire_of(mesh, "b", "s")
    wants = wire.end_of(b).port.reader._wants
    relay = wire.end_of(mesh["s"]).port._relay
    assert relay is not None
    for asked in (["x", *wants], wants, [], wants):
        relay.receive_frame(RelayFrame([], asked, 1 << 20))
    mesh.flow()
    assert seqs(relayed(wire, b)) == [1, 1]


def test_what_came_by_relay_is_not_relayed() -> None:
    """Or it could go round in circles."""
    mesh = Mesh("a", "b", "s", "t", relays=["s", "t"])
    for one, other in (("a", "s"), ("s", "t"), ("t", "b")):
        mesh.link(one, other)
    mesh.flow()
    mesh["a"].send(mesh["b"])
    mesh["a"].send(mesh["t"])
    mesh.flow()
    assert len(mesh["t"].mail()) == 1, "it reads by relay what is for itself"
    assert mesh["t"].rows("SELECT * FROM replica WHERE source = 'a'") == []
    assert mesh["b"].mail() == []


def test_one_of_two_relays_is_enough_and_the_other_takes_over() -> None:
    mesh = Mesh("a", "b", "s", "t", relays=["s", "t"])
    for relay in ("s", "t"):
        mesh.link("a", relay)
        mesh.link("b", relay)
    mesh.flow()
    ids = [mesh["a"].send(mesh["b"]).event_id for _ in range(5)]
    mesh.flow()
    assert mesh["b"].mail() == ids
    assert mesh["b"].core.parts.counts.duplicates == 0
    (asked,) = [
        relay
        for relay in ("s", "t")
        if any(isinstance(each, RelayFrame) and each.wants for each in _said_to(mesh, relay))
    ]
    wire_of(mesh, "b", asked).cut()
    mesh["b"].clock.advance(6_000)
    mesh.refresh()
    ids += [mesh["a"].send(mesh["b"]).event_id for _ in range(5)]
    mesh.flow()
    assert mesh["b"].mail() == ids


def _said_to(mesh: Mesh, relay: str) -> list[AnyFrame]:
    """What b said to a relay."""
    return wire_of(mesh, "b", relay).end_of(mesh[relay]).seen


def test_one_link_to_a_source_is_enough_and_another_takes_over(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    first = wire_of(mesh, "a", "s")
    second = mesh.link("a", "s")
    mesh.flow()
    assert not [each for each in second.end_of(a).seen if isinstance(each, FollowFrame)]
    first.cut()
    ids = a.send_many(b, 3)
    mesh.flow()
    assert b.mail() == ids
    assert [each for each in second.end_of(a).seen if isinstance(each, FollowFrame)]


def test_who_is_not_in_the_room_gets_nothing_and_gives_nothing(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    gateways = {id: found for id, found in s.directory.gateways.items() if id != "a"}
    s.see(RoutingDirectory(gateways, s.directory.agents))
    a.send(b)
    mesh.flow()
    wire = reconnect(mesh, "b", "s")
    assert relayed(wire, b) == []
    s.see(RoutingDirectory({}, {}))
    again = reconnect(mesh, "b", "s")
    assert (relayed(again, b), again.errors) == ([], [])
    assert (s.incidents(), b.incidents()) == ([], [])


def test_a_reader_that_has_just_joined_is_served_once_the_relay_knows_it(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    everybody = s.directory
    newcomers = {id: found for id, found in everybody.gateways.items() if id != "b"}
    s.see(RoutingDirectory(newcomers, everybody.agents))
    reconnect(mesh, "b", "s")
    ids = a.send_many(b, 2)
    mesh.flow()
    assert b.mail() == []
    s.see(everybody)
    s.peers.room_changed()
    mesh.flow()
    assert (b.mail(), s.incidents()) == (ids, [])


def test_who_was_asked_for_before_the_relay_heard_of_it_is_relayed_once_it_has(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    whole = s.directory
    gateways = {id: found for id, found in whole.gateways.items() if id != "a"}
    s.see(RoutingDirectory(gateways, whole.agents))
    reconnect(mesh, "b", "s")
    sent = a.send(b).event_id
    mesh.flow()
    assert b.mail() == []
    s.see(whole)
    reconnect(mesh, "a", "s")
    assert b.mail() == [sent]


def test_a_node_that_relays_nothing_ends_the_link_of_who_asks(mesh: Mesh, b: Gate) -> None:
    mesh.link("a", "b")
    mesh.flow()
    wire = wire_of(mesh, "a", "b")
    wire.end_of(b).hear(RelayFrame([], ["s"], 1))
    assert "no use for" in wire.errors[0]


def test_what_may_be_relayed_counts_as_heard(mesh: Mesh, a: Gate, b: Gate) -> None:
    """`a` has no link with `b`, but cannot say that `b` does not know."""
    sent = "SELECT sent_seq FROM recipient WHERE node_id = 'b'"
    a.send(b)
    assert a.value(sent) == 1
    wire_of(mesh, "a", "s").cut()
    a.send(b)
    assert a.value(sent) == 1
    mesh.link("a", "s")
    mesh.flow()
    assert a.value(sent) == 2


def acked(gate: Gate, reader: str = "b") -> int:
    return int(gate.value("SELECT acked_seq FROM recipient WHERE node_id = ?", reader))


def test_a_source_hears_how_far_it_was_read(mesh: Mesh, a: Gate, b: Gate) -> None:
    """So that it can forget what nobody needs any more."""
    a.send_many(b, 3)
    mesh.flow()
    assert acked(a) == 3
    a.send_many(b, 2)
    mesh.flow()
    assert acked(a) == 3, "not all the time"
    mesh.clock.advance(1_000)
    mesh.refresh()
    assert acked(a) == 5


def test_a_source_that_is_away_hears_it_later(mesh: Mesh, a: Gate, b: Gate) -> None:
    wire_of(mesh, "b", "s").cut()
    a.send_many(b, 3)
    mesh.flow()
    wire_of(mesh, "a", "s").cut()
    mesh.link("b", "s")
    mesh.flow()
    assert acked(a) == 0
    mesh.link("a", "s")
    mesh.flow()
    assert acked(a) == 3


def test_how_far_somebody_has_read_is_its_own_word(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    a.send_many(b, 3)
    said = sign_reading(s.key, "b", "b-1", ("a", "a-1", 3))
    wire = wire_of(mesh, "a", "s")
    wire.end_of(a).hear(said)
    assert "not signed" in wire.errors[0]
    wire = wire_of(mesh, "b", "s")
    wire.end_of(s).hear(replace(said, reader="a"))
    assert "how far a has read" in wire.errors[0]
    assert acked(a) == 0


def test_one_with_another_journal_is_not_believed_to_have_read(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    a.send(b)
    mesh.flow()
    wire_of(mesh, "b", "s").cut()
    b.restore(b.backup())
    a.send(b)
    mesh.clock.advance(2_000)
    mesh.link("b", "s")
    mesh.flow()
    assert acked(a) == 1


# -- what a relay cannot do


def with_event(frame: EventsFrame, change: Callable[[bytes], bytes]) -> EventsFrame:
    return replace(frame, events=[change(body) for body in frame.events])


def with_group(frame: EventsFrame, **fields: object) -> EventsFrame:
    return replace(frame, groups=[replace(group, **fields) for group in frame.groups])


LIES: dict[str, Tamper] = {
    "an altered event": lambda f: with_event(f, lambda body: body.replace(b'"B"', b'"C"')),
    "no event at all": lambda f: with_event(f, lambda body: b"{}"),
    "an event of another": lambda f: replace(f, source="b"),
    "nothing": lambda f: replace(f, events=[]),
    "no proof": lambda f: replace(f, groups=[]),
    "a proof that is cut off": lambda f: with_group(f, digests=f.groups[0].digests[:-1]),
    "another place": lambda f: with_group(f, first=f.groups[0].first + 1),
    "a later place": lambda f: with_group(f, first=f.groups[0].last + 1),
    "another chain": lambda f: with_group(f, chain=b"x" * 32),
    "another past": lambda f: with_group(f, previous=b"x" * 32),
    "another signature": lambda f: with_group(f, signature=b"x" * 64),
    "another incarnation": lambda f: replace(f, incarnation="a-0"),
    "a later start": lambda f: replace(f, first_seq=f.first_seq + 1),
    "events in the wrong order": lambda f: replace(f, events=f.events[::-1]),
    "an event twice": lambda f: replace(f, events=f.events + f.events[:1]),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.replace(" ", "_"))
def test_a_lie_ends_the_link_and_changes_nothing(mesh: Mesh, lie: str) -> None:
    a, b = mesh["a"], mesh["b"]
    first = a.send(b).event_id
    mesh.flow()
    before = b.rows("SELECT * FROM cursor")
    wire = tampered(mesh, LIES[lie])
    a.send_many(b, 3)
    mesh.flow()
    assert wire.broken and len(wire.errors) == 1
    assert (b.mail(), b.rows("SELECT * FROM cursor")) == ([first], before)
    assert len(b.incidents("relay")) == 1
    assert b.incidents("relay")[0].startswith("s/"), "it names the relay"


def test_lives_are_the_sources_own_word(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.note("b")
    wire_of(mesh, "b", "s").cut()
    wire = mesh.link("b", "s")
    wire.end_of(mesh["s"]).tamper = lambda frame: (
        replace(frame, incarnations=[("a-1", 5)]) if isinstance(frame, IncarnationsFrame) else frame
    )
    mesh.flow()
    assert "not signed" in wire.errors[0]


def test_an_event_left_out_is_noticed_and_another_relay_is_asked() -> None:
    mesh = Mesh("a", "b", "s", "t", relays=["s", "t"])
    for one, other in (("a", "s"), ("a", "t"), ("b", "s")):
        mesh.link(one, other)
    mesh.flow()
    a, b = mesh["a"], mesh["b"]
    ids = [a.send(b).event_id]
    mesh.flow()
    dropped: list[EventsFrame] = []

    def drop_one(frame: EventsFrame) -> EventsFrame | None:
        if dropped:
            return frame
        dropped.append(frame)
        return None

    again = tampered(mesh, drop_one)
    ids += [a.send(b).event_id, a.send(b).event_id]
    mesh.flow()
    assert (b.mail(), b.incidents("relay")) == (ids[:1], ["s/a"])
    assert _details(b, "relay", "left out")
    asked = [each for each in again.end_of(mesh["s"]).seen if isinstance(each, RelayFrame)]
    assert asked[-1].wants == ["t"], "it is not asked for a while"
    mesh.link("b", "t")
    mesh.flow()
    assert b.mail() == ids


def test_a_relay_is_asked_again_after_a_while(mesh: Mesh, a: Gate, b: Gate) -> None:
    tampered(mesh, LIES["no proof"])
    ids = a.send_many(b, 2)
    mesh.flow()
    mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == []
    mesh.clock.advance(31_000)
    mesh.refresh()
    assert b.mail() == ids


def test_each_failure_in_a_row_makes_the_wait_longer(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.send(b)
    for wait in (30_000, 60_000, 120_000):
        broken = tampered(mesh, LIES["no proof"])
        mesh.refresh()
        assert broken.broken
        wire = mesh.link("b", "s")
        mesh.flow()
        mesh.clock.advance(wait - 1)
        mesh.refresh()
        assert relayed(wire, b) == [], "it is not asked yet"
        mesh.clock.advance(1)
    mesh.refresh()
    assert len(b.mail()) == 1


def test_a_relay_cannot_move_a_reader_past_what_it_has_not_shown(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    tampered(mesh, lambda frame: replace(frame, upto=2**52))
    ids = [a.send(b).event_id]
    mesh.flow()
    assert b.value("SELECT seq FROM cursor WHERE source = 'a'") == 1
    mesh.link("a", "b")
    ids.append(a.send(b).event_id)
    mesh.flow()
    assert b.mail() == ids


@pytest.mark.parametrize("now", [0, 2**52])
def test_a_relay_cannot_make_a_message_expire(mesh: Mesh, a: Gate, b: Gate, now: int) -> None:
    tampered(mesh, lambda frame: replace(frame, now=now))
    sent = a.send(b).event_id
    mesh.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")


def test_a_relay_cannot_send_what_is_for_another(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    tampered(mesh, lambda frame: frame)
    s.connection.execute("UPDATE replica SET to_node = 'b'")
    a.note("c")
    mesh.flow()
    wire_of(mesh, "b", "s").cut()
    s.connection.execute("UPDATE replica SET to_node = 'b'")
    mesh.link("b", "s")
    mesh.flow()
    assert b.incidents("relay") == ["s/a"]
    assert _details(b, "relay", "that is for c")


def test_a_source_that_signs_nonsense_does_not_cost_its_relay_a_link(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    """The events say that others were left out between them, which never were."""
    a.send(b)
    mesh.flow()
    a.outbox._last_seq_to["b"] = 77
    a.send(b)
    mesh.flow()
    assert b.incidents("relay") == ["s/a"]
    wire = wire_of(mesh, "b", "s")
    assert not wire.broken
    sent = s.send(b).event_id
    mesh.flow()
    assert b.mail()[1:] == [sent]


def test_frames_that_are_not_taken_cost_no_credit(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    a.send(b)
    mesh.flow()
    a.outbox._last_seq_to["b"] = 77
    a.send_many(b, 3, size=1000)
    mesh.flow()
    (feed,) = [part._feed for part in s.peers.relay_host._parts if part.peer == "b"]
    assert feed is not None and feed._window._credit == feed._window.size


def _details(gate: Gate, kind: str, text: str) -> bool:
    return any(
        text in row[0] for row in gate.rows("SELECT detail FROM incident WHERE class = ?", kind)
    )


# -- what a source cannot do


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda f: with_group(f, signature=b"x" * 64), "not signed"),
        (lambda f: with_group(f, previous=b"x" * 32), "not the one it was"),
        (lambda f: with_group(f, last=f.groups[0].last + 1), "does not start where"),
        (lambda f: replace(f, events=f.events[1:]), "leaves out"),
        (lambda f: replace(f, events=[]), "sent nothing"),
        (lambda f: replace(f, source="b"), "as its own"),
        (lambda f: replace(f, incarnation="a-7"), "it does not have"),
    ],
)
def test_what_does_not_verify_is_not_kept(mesh: Mesh, change: Tamper, error: str) -> None:
    a, b, s = mesh["a"], mesh["b"], mesh["s"]
    a.send(b)
    mesh.flow()
    wire = wire_of(mesh, "a", "s")
    wire.end_of(a).tamper = lambda frame: (
        change(frame) if isinstance(frame, EventsFrame) and frame.stream == "follow" else frame
    )
    a.send_many(b, 2)
    mesh.flow()
    assert error in wire.errors[0]
    assert s.value("SELECT max(last_seq) FROM replica_head WHERE source = 'a'") == 1
    mesh.link("a", "s")
    mesh.flow()
    assert len(b.mail()) == 3, "the true ones are taken afterwards"


def test_an_answer_nobody_asked_for_ends_the_link(mesh: Mesh, a: Gate, s: Gate) -> None:
    wire = wire_of(mesh, "a", "s")
    wire.end_of(s).hear(IncarnationsFrame("a", [("a-1", 1)], b"x" * 64))
    assert "was not asked" in wire.errors[0]


# -- incarnations


def test_a_restored_source_goes_on_in_a_new_life(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    ids = a.send_many(b, 3)
    mesh.flow()
    backup = a.backup()
    ids.append(a.send(b).event_id)
    mesh.flow()
    wire_of(mesh, "a", "s").cut()
    a.restore(backup)
    ids += a.send_many(b, 2)
    mesh.link("a", "s")
    mesh.flow()
    assert b.mail() == ids
    assert b.incidents() == s.incidents() == []
    kept = s.rows("SELECT incarnation, seq FROM replica WHERE source = 'a'")
    assert kept == [("a-1", 1), ("a-1", 2), ("a-1", 3), ("a-2", 4), ("a-2", 5)]


def test_a_source_that_is_restored_twice_from_one_backup_is_relayed(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    """The second incarnation, which the reader has read, is not on the source's line any more."""
    ids = a.send_many(b, 3)
    mesh.flow()
    first, second = a.backup(), a.backup()
    wire_of(mesh, "a", "s").cut()
    for backup in (first, second):
        a.restore(backup)
        ids.append(a.send(b).event_id)
        wire = mesh.link("a", "s")
        mesh.flow()
        assert b.mail() == ids
        wire.cut()


def test_the_rest_of_an_earlier_life_comes_before_the_new_one(mesh: Mesh, a: Gate, b: Gate) -> None:
    wire_of(mesh, "b", "s").cut()
    ids = a.send_many(b, 3)
    mesh.flow()
    backup = a.backup()
    a.send(b)
    mesh.flow()
    wire_of(mesh, "a", "s").cut()
    a.restore(backup)
    ids += a.send_many(b, 2)
    mesh.link("a", "s")
    mesh.flow()
    wire = mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == ids, "what the source has forgotten is on no line any more"
    assert [frame.incarnation for frame in relayed(wire, b)] == ["a-1", "a-2"]


def test_a_relay_cannot_leave_out_the_end_of_a_life(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.send(b)
    mesh.flow()
    tampered(mesh, lambda frame: None if frame.incarnation == "a-1" else frame)
    a.send(b)
    mesh.flow()
    wire_of(mesh, "a", "s").cut()
    a.restore(a.backup())
    a.send(b)
    mesh.link("a", "s")
    mesh.flow()
    assert _details(b, "relay", "left out")
    assert len(b.mail()) == 1


# -- forgetting


def replicas(gate: Gate, source: str = "a") -> int:
    found = gate.value("SELECT count(*) FROM replica WHERE source = ?", source)
    heads = gate.value("SELECT count(*) FROM replica_head WHERE source = ?", source)
    assert (found == 0) == (heads == 0)
    return int(found)


def test_what_all_have_taken_is_forgotten(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    a.send_many(b, 3)
    a.note("c")
    mesh.flow()
    assert replicas(s) == 4
    prune(mesh, s)
    assert replicas(s) == 0
    ids = a.send_many(b, 2)
    mesh.flow()
    assert b.mail()[3:] == ids
    wire = reconnect(mesh, "b", "s")
    assert wire.errors == []
    follows = [f for f in wire_of(mesh, "a", "s").end_of(a).seen if isinstance(f, FollowFrame)]
    assert len(follows) == 1, "a reader that is where it was needs nothing from before"


def test_what_somebody_has_not_taken_is_kept(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    ids = a.send_many(b, 3)
    mesh.flow()
    wire_of(mesh, "b", "s").cut()
    ids += a.send_many(b, 2)
    mesh.flow()
    prune(mesh, s)
    s.start()
    prune(mesh, s)
    assert replicas(s) >= 2
    mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == ids


def test_what_was_sent_and_not_taken_is_kept(mesh: Mesh, a: Gate, b: Gate, s: Gate) -> None:
    wire = wire_of(mesh, "b", "s")
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, TakenFrame) else frame
    a.send_many(b, 2)
    mesh.flow()
    prune(mesh, s)
    assert replicas(s) == 2


def test_what_is_too_old_is_forgotten_and_so_is_who_never_comes(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    wire_of(mesh, "b", "s").cut()
    a.send_many(b, 2)
    mesh.flow()
    mesh.clock.advance(REPLICA_KEEP_MS // 2)
    prune(mesh, s)
    assert replicas(s) == 2
    mesh.clock.advance(REPLICA_KEEP_MS)
    prune(mesh, s)
    assert replicas(s) == 0
    assert s.rows("SELECT source FROM relayed") == [("b",)], "which `a` reads"
    a.note("b")
    mesh.flow()
    assert replicas(s) == 0, "it is not followed any more"


class ScriptedPort:
    """A link whose commits end as the test says."""

    is_congested = False

    def __init__(self) -> None:
        self.sent: list[LinkFrame] = []
        self._waiting: list[Callable[[Any], None]] = []

    def send(self, frame: LinkFrame) -> None:
        self.sent.append(frame)

    def commit(
        self, operation: Callable[[Tx], Any], done: Callable[[Any], None], weight: int = 1
    ) -> None:
        self._waiting.append(done)

    def finish_commit(self, value: object) -> None:
        self._waiting.pop(0)(value)

    def now(self) -> int:
        return 0

    def uptime(self) -> int:
        return 0

    def end(self, error: GatepostError) -> None:
        raise error


def test_a_source_that_nobody_needs_when_it_is_to_begin_again_is_given_up(
    mesh: Mesh, s: Gate
) -> None:
    assert s.host is not None
    seen = wire_of(mesh, "a", "s").end_of(s).seen
    answer = next(f for f in seen if isinstance(f, IncarnationsFrame) and f.source == "a")
    port = ScriptedPort()
    part = s.host.make_part(port, "a")
    part.start_following()
    part.start_following()
    port.finish_commit(ReplicaPosition(answer.incarnations[0][0], 0, None))
    part.receive_frame(answer)
    port.finish_commit(None)
    assert not part.is_following
    assert port.sent[-1] == FollowFrame([], 0)


def test_a_source_that_is_given_up_before_it_is_followed_stays_so(s: Gate) -> None:
    assert s.host is not None
    port = ScriptedPort()
    part = s.host.make_part(port, "a")
    part.start_following()
    part.stop_following()
    port.finish_commit(ReplicaPosition("0123456789abcdef", 0, None))
    assert port.sent == [FollowFrame([], 0)]
    assert not part.is_following


def test_a_reader_that_comes_back_while_its_source_is_given_up_is_served(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    """The source has not heard yet that nobody follows it any more."""
    assert s.host is not None
    wire_of(mesh, "b", "s").cut()
    mesh.flow()
    mesh.clock.advance(REPLICA_KEEP_MS + 1)
    s.host.prune_replicas(s.commit)
    s.work()
    back = mesh.link("b", "s")
    while s.rows("SELECT 1 FROM relay_reader WHERE reader = 'b'") == []:
        back.step()
        b.work()
        s.work()
    ids = a.send_many(b, 2)
    mesh.flow()
    assert b.mail() == ids


def test_a_source_that_is_away_longer_than_events_are_kept_is_relayed_when_it_comes() -> None:
    """Its reader was linked all the time, and asks only once."""
    mesh = Mesh("a", "b", "s", relays=["s"])
    a, b, s = mesh["a"], mesh["b"], mesh["s"]
    mesh.link("b", "s")
    mesh.flow()
    mesh.clock.advance(REPLICA_KEEP_MS + 1)
    prune(mesh, s)
    mesh.link("a", "s")
    mesh.flow()
    sent = a.send(b).event_id
    mesh.flow()
    assert b.mail() == [sent]


def test_who_comes_from_further_behind_gets_it_all(mesh: Mesh) -> None:
    mesh = Mesh("a", "b", "c", "s", relays=["s"])
    a, b, c, s = (mesh[name] for name in "abcs")
    mesh.link("a", "s")
    mesh.link("b", "s")
    mesh.flow()
    to_b, to_c = a.send_many(b, 3), a.send_many(c, 3)
    mesh.flow()
    prune(mesh, s)
    to_b += a.send_many(b, 3)
    mesh.flow()
    mesh.link("c", "s")
    mesh.flow()
    assert (b.mail(), c.mail()) == (to_b, to_c)
    to_b += a.send_many(b, 1)
    to_c += a.send_many(c, 1)
    mesh.flow()
    assert (b.mail(), c.mail()) == (to_b, to_c)
    assert [wire.errors for wire in mesh.wires] == [[], [], []]


def test_what_is_on_its_way_while_a_replica_starts_again_does_no_harm(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    ids = a.send_many(b, 3)
    mesh.flow()
    wire = wire_of(mesh, "a", "s")
    for _ in range(5):
        ids.append(a.send(b).event_id)
    assert s.host is not None
    s.host.restart_following("a", "b", 0)
    for position in range(1, 6):
        ids.append(a.send(b).event_id)
        wire.step()
        s.host.restart_following("a", "b", position)
    mesh.flow()
    assert (b.mail(), wire.errors) == (ids, [])


def test_a_reader_that_is_restored_twice_goes_on_though_its_source_is_silent(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    """The second restart of the replica for one position has to wait; nothing else causes it."""
    backups = [b.backup(), b.backup()]
    a.send_many(b, 3)
    mesh.flow()
    last = a.events()[-1].seq
    for backup in backups:
        prune(mesh, s)
        wire_of(mesh, "b", "s").cut()
        b.restore(backup)
        mesh.meet()
        mesh.link("b", "s")
        mesh.flow()
    mesh.clock.advance(15_001)
    mesh.refresh()
    assert b.value("SELECT max(seq) FROM cursor WHERE source = 'a'") >= last


def test_a_relay_follows_only_from_where_somebody_is(mesh: Mesh) -> None:
    mesh = Mesh("a", "b", "s", relays=["s"])
    a, b, s = (mesh[name] for name in "abs")
    mesh.link("a", "b")
    ids = a.send_many(b, 50)
    mesh.flow()
    wire_of(mesh, "a", "b").cut()
    mesh.link("b", "s")
    mesh.flow()
    mesh.link("a", "s")
    ids += a.send_many(b, 2)
    mesh.flow()
    assert b.mail() == ids
    assert replicas(s) == 2


def test_what_a_source_has_forgotten_is_a_gap_and_known_as_one(
    mesh: Mesh, a: Gate, b: Gate, s: Gate
) -> None:
    a.note("b")
    mesh.flow()
    wire_of(mesh, "a", "s").cut()
    for _ in range(4):
        a.note("c")
    a.note("b")
    a.connection.execute("DELETE FROM outbox WHERE seq <= 4")
    a.connection.execute("DELETE FROM head WHERE last_seq <= 4")
    wire = mesh.link("a", "s")
    mesh.flow()
    assert wire.errors == []
    assert s.incidents("replica_gap") == ["a/6"]
    assert b.value("SELECT seq FROM cursor WHERE source = 'a'") == 6, "nothing was for it"


# -- whatever happens

moves = st.lists(
    st.sampled_from(
        ["send", "burst", "back", "step", "step", "step", "cut a", "cut b", "restart s", "prune",
         "direct", "cut direct", "note c", "to c", "link c", "cut c"]
    ),
    max_size=50,
)  # fmt: skip


@settings(max_examples=choose(35, 1000))
@given(moves, st.sampled_from([1, 4_000, 1 << 20]))
def test_a_reader_ends_with_exactly_what_was_addressed_to_it(plan: list[str], window: int) -> None:
    mesh = Mesh("a", "b", "c", "s", relays=["s"])
    a, b, c, s = (mesh[name] for name in "abcs")
    for gate in (a, b, c, s):
        gate.window = window
        gate.start()
    to_c: list[str] = []
    there: list[str] = []
    back: list[str] = []

    def cut(one: str, other: str) -> None:
        for wire in list(mesh.wires):
            if {wire.one.gate.id, wire.other.gate.id} == {one, other}:
                wire.cut()
        mesh.wires = [wire for wire in mesh.wires if not wire.broken]

    def again(one: str, other: str) -> None:
        cut(one, other)
        mesh.link(one, other)

    def restart() -> None:
        cut("a", "s")
        cut("b", "s")
        cut("c", "s")
        s.start()
        again("a", "s")
        again("b", "s")

    def pruned() -> None:
        assert s.host is not None
        s.host.prune_replicas(s.commit)

    acts: dict[str, Callable[[], object]] = {
        "send": lambda: there.append(a.send(b).event_id),
        "burst": lambda: there.extend(a.send_many(b, 7, size=1_500)),
        "back": lambda: back.append(b.send(a).event_id),
        "note c": lambda: a.note("c"),
        "to c": lambda: to_c.append(a.send(c).event_id),
        "link c": partial(again, "c", "s"),
        "cut c": partial(cut, "c", "s"),
        "step": mesh.step,
        "cut a": partial(again, "a", "s"),
        "cut b": partial(again, "b", "s"),
        "restart s": restart,
        "prune": pruned,
        "direct": partial(again, "a", "b"),
        "cut direct": partial(cut, "a", "b"),
    }
    again("a", "s")
    again("b", "s")
    for move in plan:
        acts[move]()
    mesh.flow()
    assert (b.mail(), a.mail()) == (there, back)
    again("c", "s")
    mesh.flow()
    assert c.mail() == to_c
    assert {error for wire in mesh.wires for error in wire.errors} == set()
    assert [gate.incidents() for gate in (a, b, c, s)] == [[], [], [], []]
