"""The emitter's end of a subscription: from memory if it can, from the journal if it must."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.outbox_archive import ArchivePolicy, OutboxArchive
from gatepost.archive.segment_reader import SegmentReader
from gatepost.core.own_archive import read_archived_page
from gatepost.delivery.accept import EventBatch, take_batch
from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    EventsFrame,
    SkipFrame,
    TakenFrame,
)
from gatepost.errors import ArchiveError
from gatepost.events import decode_event, parse_event_id
from gatepost.journal import Tx
from gatepost.journal.outbox import EVERYBODY
from gatepost.links import outbox_feed
from gatepost.links.outbox_feed import PageRead, PrunedStretch
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
    assert b.core.parts.counts.duplicates == 0


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
    a.note(EVERYBODY)
    mesh.flow()
    a.note(None)
    a.note("b")
    a.note(EVERYBODY)
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


class GateArchive:
    """The archive of a gate's outbox, read at once."""

    def __init__(self, gate: Gate, folder: Path, *, bodies: bool = True) -> None:
        self._gate = gate
        self._store = ArchiveStore.open(str(folder))
        policy = ArchivePolicy(4, 1, bodies)
        node = gate.node
        self._archive = OutboxArchive(self._store, node.id, node.incarnation, node.key, policy)
        self._segments = SegmentReader(self._store, node.id, node.key.public)
        self.pages: list[PrunedStretch] = []
        self.broken = False
        gate.peers.archive = self

    def prune(self, upto: int) -> None:
        """Archive everything, and prune it up to here, as if no reader were waited for."""
        self._gate.clock.advance(10)
        while self._archive.archive_segment(Tx(self._gate.connection, self._gate.now())):
            pass
        sql = "UPDATE recipient SET cut_seq = ? WHERE node_id = 'b'"
        self._gate.connection.execute(sql, (upto,))
        self._gate.connection.execute("DELETE FROM outbox WHERE seq <= ?", (upto,))

    def read_page(self, wanted: PrunedStretch, done: PageRead) -> None:
        self.pages.append(wanted)
        if self.broken:
            done(None, ArchiveError("the disk is away"))
            return
        done(read_archived_page(self._segments, wanted), None)


def test_a_reader_that_was_cut_off_goes_on_from_the_archive(mesh: Mesh, tmp_path: Path) -> None:
    a, b = mesh["a"], mesh["b"]
    archive = GateArchive(a, tmp_path)
    mesh.link("a", "b")
    ids = a.send_many(b, 3)
    mesh.flow()
    mesh.wires[0].cut()
    for _ in range(7):
        ids += a.send_many(b, 3)
    archive.prune(17)
    a.send(a)
    wire = mesh.link("a", "b")
    mesh.flow()
    ids.append(a.send(b).event_id)
    mesh.flow()
    assert (b.mail(), wire.errors) == (ids, [])
    assert archive.pages != []
    assert (b.core.parts.counts.duplicates, b.incidents("skipped")) == (0, [])


def test_a_link_that_ends_while_the_archive_is_read_goes_on_where_it_was(
    mesh: Mesh, tmp_path: Path
) -> None:
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 1
    archive = GateArchive(a, tmp_path)
    mesh.link("a", "b")
    mesh.flow()
    mesh.wires[0].cut()
    ids = [a.send(b).event_id for _ in range(12)]
    archive.prune(10)
    wire = mesh.link("a", "b")
    while not b.mail():
        mesh.step()
    wire.cut()
    assert len(b.mail()) < 10
    again = mesh.link("a", "b")
    mesh.flow()
    assert (b.mail(), again.errors, b.incidents("skipped")) == (ids, [], [])


def test_an_archive_without_bodies_leaves_the_skip(mesh: Mesh, tmp_path: Path) -> None:
    a, b = mesh["a"], mesh["b"]
    archive = GateArchive(a, tmp_path, bodies=False)
    mesh.link("a", "b")
    mesh.flow()
    mesh.wires[0].cut()
    for _ in range(6):
        a.note("b")
    archive.prune(4)
    wire = mesh.link("a", "b")
    mesh.flow()
    (skip,) = [each for each in wire.end_of(b).seen if isinstance(each, SkipFrame)]
    assert (skip.upto, skip.why, wire.errors) == (4, "cut off", [])


def test_an_archive_that_cannot_be_read_ends_the_link_and_skips_nothing(
    mesh: Mesh, tmp_path: Path
) -> None:
    a, b = mesh["a"], mesh["b"]
    archive = GateArchive(a, tmp_path)
    mesh.link("a", "b")
    mesh.flow()
    mesh.wires[0].cut()
    ids = [a.send(b).event_id for _ in range(6)]
    archive.prune(4)
    archive.broken = True
    wire = mesh.link("a", "b")
    mesh.flow()
    assert wire.errors == ["the disk is away"]
    archive.broken = False
    mesh.link("a", "b")
    mesh.flow()
    assert (b.mail(), b.incidents("skipped")) == (ids, [])


def test_a_lost_journal_may_have_done_what_is_archived(mesh: Mesh, tmp_path: Path) -> None:
    a, b = mesh["a"], mesh["b"]
    archive = GateArchive(a, tmp_path)
    mesh.link("a", "b")
    mesh.flow()
    backup = b.backup()
    heard = a.send(b).event_id
    mesh.flow()
    mesh.wires[0].cut()
    seqs = a.rows("SELECT max(seq) FROM outbox")
    unheard = a.send(b).event_id
    archive.prune(a.value("SELECT max(seq) FROM outbox"))
    b.restore(backup)
    wire = mesh.link("a", "b")
    mesh.flow()
    assert heard not in b.mail(), "the lost journal may have engaged it"
    assert unheard in b.mail()
    assert wire.errors == [] and seqs


@pytest.mark.parametrize("bodies", [True, False])
def test_a_reader_behind_a_relay_goes_on_from_the_archive_of_the_source(
    tmp_path: Path, bodies: bool
) -> None:
    mesh = Mesh("a", "b", "s", relays=["s"])
    a, b, s = mesh["a"], mesh["b"], mesh["s"]
    archive = GateArchive(a, tmp_path, bodies=bodies)
    mesh.link("a", "s")
    far = mesh.link("b", "s")
    early = a.send_many(b, 3)
    mesh.flow()
    assert b.mail() == early
    far.cut()
    mesh.wires[0].cut()
    late = [id for _ in range(4) for id in a.send_many(b, 3)]
    ((head,),) = a.rows("SELECT max(last_seq) FROM head")
    archive.prune(head - 3)
    for table in ("replica", "replica_head"):
        s.connection.execute(f"DELETE FROM {table}")
    s.connection.execute("UPDATE relayed SET start = seq")
    mesh.link("a", "s")
    mesh.link("b", "s")
    mesh.flow()
    late.append(a.send(b).event_id)
    mesh.flow()
    assert archive.pages != [] and {page.reader for page in archive.pages} == {None}
    assert [wire.errors for wire in mesh.wires] == [[], []]
    if bodies:
        assert (b.mail(), s.incidents("replica_gap")) == (early + late, [])
    else:
        assert len(s.incidents("replica_gap")) == 1


# -- offers that wait for a reader


def send_offers(mesh: Mesh, count: int) -> list[str]:
    """Messages for b while it is away: they are offers, and wait in the outbox of a."""
    a, online = mesh["a"], mesh["a"].directory
    away = replace(online.gateways["b"], online=False)
    a.see(replace(online, gateways=online.gateways | {"b": away}))
    ids = a.send_many(mesh["b"], count)
    a.see(online)
    return ids


def test_the_first_of_many_waiting_offers_is_engaged_before_most_of_them_are_read(
    mesh: Mesh, count: Callable[[int, int], int]
) -> None:
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 60_000
    ids = send_offers(mesh, count(600, 80_000))
    wire = mesh.link("a", "b")
    while not b.mail():
        assert mesh.step(), "nothing was engaged"
    read = b.value("SELECT count(*) FROM inbox")
    assert read < 250, "a window of offers and a few frames more"
    mesh.flow(1_000_000)
    assert (b.mail(), wire.errors) == (ids, [])


def test_confirmed_offers_are_named_while_the_reader_is_behind_and_then_no_more(
    mesh: Mesh,
) -> None:
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 20_000
    ids = send_offers(mesh, 200)
    wire = mesh.link("a", "b")
    mesh.flow()
    ids.append(a.send(b).event_id)
    ids += send_offers(mesh, 1)
    mesh.flow()
    seen = frames(wire, b)
    assert any(frame.confirmed for frame in seen)
    assert not seen[-1].confirmed
    assert b.mail() == ids


def test_a_link_that_ends_while_offers_are_confirmed_leaves_their_order(mesh: Mesh) -> None:
    """The confirmations that were lost with it come in their turn, and those behind them wait."""
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 20_000
    ids = send_offers(mesh, 300)
    for steps in (12, 15, 20, 31):
        wire = mesh.link("a", "b")
        for _ in range(steps):
            mesh.step()
        wire.cut()
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids
    assert {a.state(id) for id in ids} == {"accepted"}


def test_a_reader_that_gives_no_credit_leaves_a_bounded_number_of_confirmed_offers_to_name(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are confirmed when their turn comes."""
    monkeypatch.setattr(outbox_feed, "MAX_CONFIRMED", 20)
    a, b = mesh["a"], mesh["b"]
    a.window = b.window = 20_000
    ids = send_offers(mesh, 100)
    wire = mesh.link("a", "b")
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, TakenFrame) else frame
    mesh.flow()
    assert a.value("SELECT count(*) FROM delivery WHERE state = 'accepted'") > 20
    feed = wire.end_of(a).link.feed
    assert feed is not None
    assert len(feed._confirmed) == 20
    wire.cut()
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids


def test_of_the_confirmed_offers_a_source_names_only_its_own_next_ones_count(
    mesh: Mesh,
) -> None:
    """A source names what it likes: events of others, unknown ones, and one offer many times."""
    b = mesh["b"]
    ids = send_offers(mesh, 2)
    wire = mesh.link("a", "b")
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, EventsFrame) else frame
    mesh.flow()
    unknown = [number.to_bytes(16) for number in range(100)]
    first = parse_event_id(ids[0])
    foreign = EventBatch("c", "c-1", 1, 0, 0, [], [first])
    b.do(lambda tx: take_batch(b.core.parts, tx, foreign))
    assert b.mail() == []
    batch = EventBatch("a", "a-1", 1, 0, 0, [], [*unknown, *[first] * 100])
    b.do(lambda tx: b.coordinator.take_batch(tx, batch))
    assert b.mail() == ids[:1]


def test_an_offer_is_not_confirmed_ahead_of_an_earlier_one(mesh: Mesh) -> None:
    b = mesh["b"]
    ids = send_offers(mesh, 3)
    wire = mesh.link("a", "b")
    # What a decides does not arrive for now.
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, EventsFrame) else frame
    mesh.flow()
    assert b.rows("SELECT DISTINCT state FROM inbox") == [("offered",)]

    def confirm(*numbers: int) -> None:
        confirmed = [parse_event_id(ids[number]) for number in numbers]
        batch = EventBatch("a", "a-1", 1, 0, 0, [], confirmed)
        b.do(lambda tx: b.coordinator.take_batch(tx, batch))

    confirm(2)
    confirm(1)
    assert b.mail() == []
    confirm(0, 2)
    assert b.mail() == ids[:1]
    confirm(1, 2, 0)
    assert b.mail() == ids


def test_offers_of_a_revoked_source_are_not_confirmed_ahead(mesh: Mesh) -> None:
    b = mesh["b"]
    ids = send_offers(mesh, 1)
    wire = mesh.link("a", "b")
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, EventsFrame) else frame
    mesh.flow()
    b.core.routes.limit_honoured("a", 1)
    batch = EventBatch("a", "a-1", 1, 0, 0, [], [parse_event_id(ids[0])])
    b.do(lambda tx: b.coordinator.take_batch(tx, batch))
    assert b.mail() == []
