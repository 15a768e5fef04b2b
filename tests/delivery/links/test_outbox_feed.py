"""The emitter's end of a subscription: from memory if it can, from the journal if it must."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.outbox_archive import ArchivePolicy, OutboxArchive
from gatepost.archive.segment_reader import SegmentReader
from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    EventsFrame,
    SkipFrame,
    TakenFrame,
)
from gatepost.delivery.links.outbox_feed import PageRead, PrunedStretch
from gatepost.errors import ArchiveError
from gatepost.events import decode_event
from gatepost.gateway.archive_reader import read_archived_page
from gatepost.journal import Tx
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
    assert (b.core.receiver.duplicates, b.incidents("skipped")) == (0, [])


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
