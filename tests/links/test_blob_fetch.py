"""Blobs over links: whole, verified, resumed, and only for whom they are meant."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.delivery.frames import PIECE_BYTES, AnyFrame, BlobPiece, BlobRequest
from gatepost.delivery.send_request import fingerprint_send
from gatepost.errors import GatepostError, StorageFailed
from gatepost.events import Blob, BlobStore, EventKind
from gatepost.links.blob_fetch import BlobFetcher, FetchStage
from gatepost.links.blob_link_part import BlobLinkPart
from gatepost.links.blob_ports import FetchLimits, FileDone
from gatepost.links.proof import sign_blob_request
from gatepost.wire.operations import NewSend
from tests.conftest import choose
from tests.delivery.mesh import Gate, Mesh, Wire

_INSERT_BLOB = "INSERT INTO blob (digest, key, size, created_at) VALUES (?, ?, ?, ?)"
BOUNDS = FetchLimits(max_bytes=8 * PIECE_BYTES)


class Disk:
    """A real blob store whose work is done when it is told to."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.work: list[Callable[[], None]] = []
        self.puts: list[int] = []

    def read_range(
        self, digest: str, offset: int, length: int, done: Callable[[int, bytes], None]
    ) -> None:
        def do() -> None:
            try:
                data = b"".join(self.store.read_ciphertext(digest, offset, length))
                done(self.store.ciphertext_size(digest), data)
            except GatepostError:
                done(0, b"")

        self.work.append(do)

    def put_piece(self, digest: str, offset: int, piece: bytes, done: FileDone) -> None:
        self.puts.append(offset)
        self._do(partial(self.store.write_piece, digest, offset, piece), done)

    def complete_blob(self, digest: str, done: FileDone) -> None:
        self._do(partial(self.store.complete_fetch, digest), done)

    def abandon_pieces(self, digest: str) -> None:
        self.work.append(partial(self.store.abandon_fetch, digest))

    def _do(self, act: Callable[[], object], done: FileDone) -> None:
        def do() -> None:
            try:
                act()
            except GatepostError as error:
                done(error)
            else:
                done(None)

        self.work.append(do)

    def run(self) -> bool:
        work, self.work = self.work, []
        for each in work:
            each()
        return bool(work)


class Post:
    """Gates with blob stores."""

    def __init__(self, folder: Path, *names: str, relays: tuple[str, ...] = ()) -> None:
        self.mesh = Mesh(*names, relays=relays)
        self.disks: dict[str, Disk] = {}
        self.fetchers: dict[str, BlobFetcher] = {}
        for name in names:
            self._equip(self.mesh[name], folder / name)

    def _equip(self, gate: Gate, folder: Path) -> None:
        disk = self.disks[gate.id] = Disk(BlobStore(folder, gate.clock))
        fetcher = self.fetchers[gate.id] = gate.peers.fetcher
        fetcher.files = disk
        fetcher.limits = fetcher.forwarder.limits = BOUNDS
        gate.coordinator.observe(on_blob_wanted=fetcher.want_blob)

    def link(self, one: str, other: str) -> Wire:
        return self.mesh.link(one, other)

    def step(self) -> bool:
        worked = [disk.run() for disk in self.disks.values()]
        return any([self.mesh.step(), *worked])

    def flow(self) -> None:
        for _ in range(5_000):
            if not self.step():
                return
        raise AssertionError("they never come to rest")

    def wait(self, ms: int) -> None:
        self.mesh.clock.advance(ms)
        for fetcher in self.fetchers.values():
            fetcher.expire_requests()
        self.flow()

    def upload(self, gate: Gate, size: int) -> str:
        """A blob of ciphertext of about this size."""
        data = bytes(place % 251 for place in range(size))
        blob, key = self.disks[gate.id].store.store_payload([data])
        row = (blob.digest, key, blob.size, gate.clock.now())
        gate.do(lambda tx: tx.execute(_INSERT_BLOB, row))
        return blob.digest

    def send(self, source: Gate, to: Gate, size: int, **fields: Any) -> tuple[str, str]:
        """(event id, digest) of a message with a blob."""
        digest = self.upload(source, size)
        new = NewSend(source.id.upper(), to.id.upper(), payload_ref=digest, **fields)
        sent = source.do(lambda tx: source.coordinator.send(tx, new, fingerprint_send(new)))
        return sent.event_id, digest

    def leftovers(self, name: str) -> list[str]:
        return [path.name for path in self.disks[name].store._directory.glob("tmp-*")]


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path, "a", "b")


def part_of(wire: Wire, gate: Gate) -> BlobLinkPart:
    (found,) = [each for each in wire.end_of(gate).link.parts if isinstance(each, BlobLinkPart)]
    return found


def asks(wire: Wire, gate: Gate) -> list[BlobRequest]:
    return [each for each in wire.end_of(gate).seen if isinstance(each, BlobRequest)]


def pieces(wire: Wire, gate: Gate) -> list[BlobPiece]:
    return [each for each in wire.end_of(gate).seen if isinstance(each, BlobPiece)]


SIZES = [0, 1, PIECE_BYTES - 100, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES]


@pytest.mark.parametrize("size", SIZES)
def test_a_message_is_accepted_once_its_blob_is_here(post: Post, size: int) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    post.link("a", "b")
    post.flow()
    sent, digest = post.send(a, b, size)
    post.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")
    ((key,),) = b.rows("SELECT key FROM blob WHERE digest = ?", digest)
    data = b"".join(post.disks["b"].store.read_payload(digest, key))
    assert data == bytes(place % 251 for place in range(size))
    assert post.leftovers("b") == []


def test_few_pieces_are_under_way_at_once(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    post.send(a, b, 7 * PIECE_BYTES)
    most = 0
    while post.step():
        under_way = len(asks(wire, a)) - len(post.disks["b"].puts)
        most = max(most, under_way)
    assert 1 < most <= BOUNDS.pieces
    assert max(len(each.data) for each in pieces(wire, b)) == PIECE_BYTES


def test_a_broken_link_is_no_reason_to_start_again(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    sent, _ = post.send(a, b, 7 * PIECE_BYTES)
    while len(post.disks["b"].puts) < 3:
        post.step()
    post.disks["b"].run()
    wire.cut()
    post.flow()
    again = post.link("a", "b")
    post.wait(2_000)
    assert b.mail() == [sent]
    assert min(each.offset for each in asks(again, a)) >= 3 * PIECE_BYTES


def test_nothing_is_asked_while_an_earlier_answer_is_being_written(post: Post) -> None:
    """It might overwrite the next one."""
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    sent, _ = post.send(a, b, 100)
    while not post.disks["b"].puts:
        post.step()
    wire.cut()
    again = post.link("a", "b")
    post.mesh.clock.advance(BOUNDS.max_backoff_ms)
    post.mesh.flow()
    post.fetchers["b"].expire_requests()
    post.mesh.flow()
    assert asks(again, a) == []
    post.flow()
    assert (asks(again, a), b.mail()) == ([], [sent]), "for it was all there was to ask for"


def test_what_was_needed_before_a_restart_is_fetched_after_it(post: Post, tmp_path: Path) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    wire.end_of(a).tamper = lambda frame: None if isinstance(frame, BlobPiece) else frame
    sent, _ = post.send(a, b, 100)
    post.flow()
    wire.cut()
    b.start()
    post._equip(b, tmp_path / "b")
    post.link("a", "b")
    post.flow()
    assert b.mail() == []
    post.fetchers["b"].resume_fetches()
    post.flow()
    assert b.mail() == [sent]


def test_a_wrong_blob_is_not_kept_and_is_known(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()

    def forge(frame: AnyFrame) -> AnyFrame:
        if isinstance(frame, BlobPiece) and frame.data:
            return replace(frame, data=b"x" * len(frame.data))
        return frame

    wire.end_of(a).tamper = forge
    sent, digest = post.send(a, b, 2 * PIECE_BYTES)
    post.flow()
    assert b.mail() == []
    assert b.incidents("blob_forged") == [f"a/{digest}"]
    assert post.leftovers("b") == []
    assert digest not in post.disks["b"].store
    wire.end_of(a).tamper = lambda frame: frame
    post.wait(5_000)
    assert b.mail() == [sent], "it was tried again, from the start"


@pytest.mark.parametrize(
    "lie",
    [
        lambda piece: replace(piece, total=piece.total + 1),
        lambda piece: replace(piece, data=piece.data[:-1]),
        lambda piece: replace(piece, data=piece.data + b"x"),
    ],
)
def test_a_piece_of_another_size_is_no_piece(post: Post, lie: Callable[[Any], Any]) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    wire.end_of(a).tamper = lambda frame: (
        lie(frame) if isinstance(frame, BlobPiece) and frame.data else frame
    )
    post.send(a, b, 100)
    post.flow()
    assert (b.mail(), post.disks["b"].puts) == ([], [])
    assert len(b.incidents("blob_forged")) == 1


def test_trying_again_has_an_end(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    sent, digest = post.send(a, b, 100)
    post.disks["a"].store.delete(digest)
    post.flow()
    for _ in range(30):
        post.wait(300_000)
    assert len(asks(wire, a)) == BOUNDS.attempts
    assert b.incidents("blob_missing") == [f"a/{digest}"]
    assert b.rows("SELECT why FROM held") == [("blob",)], "it stays held"
    signals = [e.ref_event_id for e in b.events() if e.kind == EventKind.SIGNAL]
    assert set(signals) == {sent}, "its sender hears that it is held"
    assert post.fetchers["b"]._fetches == {}
    assert sent not in b.mail()


def test_a_source_that_is_asked_through_relays_hears_that_its_event_is_held(
    tmp_path: Path,
) -> None:
    post = Post(tmp_path, "a", "b", "r", "s", relays=("r", "s"))
    for relay in "rs":
        post.link("a", relay)
        post.link("b", relay)
    post.flow()
    sent, digest = post.send(post.mesh["a"], post.mesh["b"], 100)
    post.disks["a"].store.delete(digest)
    post.flow()
    signals = [e.ref_event_id for e in post.mesh["b"].events() if e.kind == EventKind.SIGNAL]
    assert signals == [sent], "once for both relays"


def test_who_does_not_answer_has_failed(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    silent = True
    wire.end_of(a).tamper = lambda frame: None if silent and isinstance(frame, BlobPiece) else frame
    sent, _ = post.send(a, b, 100)
    post.flow()
    post.wait(BOUNDS.answer_ms - 1)
    assert len(asks(wire, a)) == 1
    silent = False
    post.wait(1)
    post.wait(5_000)
    assert len(asks(wire, a)) == 2
    assert b.mail() == [sent]


def test_an_answer_that_comes_too_late_is_harmless(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    late: list[BlobPiece] = []

    def keep(frame: AnyFrame) -> AnyFrame | None:
        if isinstance(frame, BlobPiece) and not late:
            late.append(frame)
            return None
        return frame

    wire.end_of(a).tamper = keep
    sent, _ = post.send(a, b, 100)
    post.flow()
    post.wait(BOUNDS.answer_ms)
    post.wait(5_000)
    wire.end_of(b).hear(late[0])
    post.flow()
    assert (b.mail(), post.leftovers("b"), wire.errors) == ([sent], [], [])


def test_one_that_is_too_large_is_not_asked_for(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    _, digest = post.send(a, b, BOUNDS.max_bytes)
    post.flow()
    assert asks(wire, a) == []
    assert b.incidents("blob_missing") == [f"a/{digest}"]


def test_only_so_many_are_fetched_at_once(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    wire.end_of(a).tamper = lambda frame: None if isinstance(frame, BlobPiece) else frame
    sent = [post.send(a, b, 100 + n)[0] for n in range(BOUNDS.fetches + 3)]
    post.flow()
    assert len({each.digest for each in asks(wire, a)}) == 1, "a pair's blobs come in its order"
    wire.end_of(a).tamper = lambda frame: frame
    post.wait(BOUNDS.answer_ms)
    post.wait(5_000)
    assert b.mail() == sent


def test_what_nobody_needs_any_more_is_not_fetched(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    post.fetchers["b"].want_blob("sha256:" + "0" * 64, "a")
    wire = post.link("a", "b")
    post.flow()
    assert asks(wire, a) == []
    assert post.fetchers["b"]._fetches == {}
    assert b.incidents() == []


# -- who may have it


def answered(post: Post, wire: Wire, by: Gate, ask: BlobRequest) -> BlobPiece:
    """What `by` says to the other side's asking."""
    other = wire.one if wire.other.gate is by else wire.other
    wire.end_of(by).hear(ask)
    post.flow()
    return pieces(wire, other.gate)[-1]


def test_a_blob_is_given_only_to_whom_it_was_sent(tmp_path: Path) -> None:
    post = Post(tmp_path, "a", "b", "c")
    a, b = post.mesh["a"], post.mesh["b"]
    to_b, to_c = post.link("a", "b"), post.link("a", "c")
    post.flow()
    _, digest = post.send(a, b, 100)
    unsent = post.upload(a, 50)
    post.flow()
    ask = BlobRequest("a", digest, 0, 10)
    assert len(answered(post, to_b, a, ask).data) == 10
    for refused in (ask, replace(ask, digest=unsent)):
        assert answered(post, to_c, a, refused) == BlobPiece("a", refused.digest, 0, 0, b"")
    assert answered(post, to_b, a, replace(ask, digest=unsent)).total == 0
    assert answered(post, to_b, a, replace(ask, offset=10**9)).data == b""


def test_nobody_asks_for_too_much(post: Post) -> None:
    a = post.mesh["a"]
    wire = post.link("a", "b")
    post.flow()
    wire.end_of(a).hear(BlobRequest("a", "sha256:" + "0" * 64, 0, PIECE_BYTES + 1))
    assert "too much" in wire.errors[0]
    wire = post.link("a", "b")
    post.flow()
    for _ in range(BOUNDS.reads + 1):
        wire.end_of(a).hear(BlobRequest("a", "sha256:" + "0" * 64, 0, 1))
    assert "too much" in wire.errors[0]


# -- through a relay


@pytest.fixture
def triangle(tmp_path: Path) -> Post:
    post = Post(tmp_path, "a", "b", "s", relays=("s",))
    post.link("a", "s")
    post.link("b", "s")
    post.flow()
    return post


def wire_of(post: Post, one: str, other: str) -> Wire:
    wires = post.mesh.wires
    return next(w for w in wires if {w.one.gate.id, w.other.gate.id} == {one, other})


def test_a_blob_comes_through_a_relay(triangle: Post) -> None:
    a, b = triangle.mesh["a"], triangle.mesh["b"]
    sent, digest = triangle.send(a, b, 3 * PIECE_BYTES)
    triangle.flow()
    assert (b.mail(), a.state(sent)) == ([sent], "accepted")
    assert digest not in triangle.disks["s"].store, "which keeps nothing of it"
    assert triangle.fetchers["s"].forwarder._forwarded == {}


def test_a_relay_asks_for_nobody_but_who_asked_it(triangle: Post) -> None:
    """So that it cannot fetch for itself what is for others, nor pass on round corners."""
    a, b, s = (triangle.mesh[name] for name in "abs")
    _, digest = triangle.send(a, b, 100)
    triangle.flow()
    ask = BlobRequest("a", digest, 0, 10)
    assert answered(triangle, wire_of(triangle, "a", "s"), a, ask).total == 0
    forged = replace(ask, reader="b")
    assert answered(triangle, wire_of(triangle, "b", "s"), s, forged).total == 0


def test_a_relay_without_a_link_says_so_and_is_tried_later(triangle: Post) -> None:
    a, b = triangle.mesh["a"], triangle.mesh["b"]
    wire_of(triangle, "b", "s").end_of(b).tamper = lambda frame: (
        None if isinstance(frame, BlobRequest) else frame
    )
    sent, _ = triangle.send(a, b, 100)
    triangle.flow()
    wire_of(triangle, "a", "s").cut()
    wire_of(triangle, "b", "s").end_of(b).tamper = lambda frame: frame
    triangle.wait(BOUNDS.answer_ms)
    triangle.wait(3_000)
    assert pieces(wire_of(triangle, "b", "s"), b)[-1].total == 0
    triangle.link("a", "s")
    for _ in range(4):
        triangle.wait(10_000)
    assert b.mail() == [sent]


def test_a_source_that_leaves_its_relay_waiting_is_answered_for(triangle: Post) -> None:
    a, b = triangle.mesh["a"], triangle.mesh["b"]
    wire = wire_of(triangle, "a", "s")
    wire.end_of(a).tamper = lambda frame: None if isinstance(frame, BlobPiece) else frame
    triangle.send(a, b, 100)
    triangle.flow()
    assert len(triangle.fetchers["s"].forwarder._forwarded) == 1
    triangle.wait(BOUNDS.answer_ms)
    assert triangle.fetchers["s"].forwarder._forwarded == {}


def test_the_source_itself_is_asked_before_a_relay(triangle: Post) -> None:
    a, b = triangle.mesh["a"], triangle.mesh["b"]
    direct = triangle.link("a", "b")
    triangle.flow()
    sent, _ = triangle.send(a, b, 100)
    triangle.flow()
    assert b.mail() == [sent]
    assert len(asks(direct, a)) == 1
    assert asks(wire_of(triangle, "b", "s"), triangle.mesh["s"]) == []


def test_when_the_source_fails_a_relay_may_not(triangle: Post) -> None:
    a, b = triangle.mesh["a"], triangle.mesh["b"]
    direct = triangle.link("a", "b")
    triangle.flow()

    def forge(frame: AnyFrame) -> AnyFrame:
        return (
            replace(frame, data=b"x" * len(frame.data)) if isinstance(frame, BlobPiece) else frame
        )

    direct.end_of(a).tamper = forge
    sent, digest = triangle.send(a, b, 100)
    triangle.flow()
    assert b.mail() == [sent]
    assert b.incidents("blob_forged") == [f"a/{digest}"]


# -- whatever happens


@settings(max_examples=choose(15, 200))
@given(plan=st.lists(st.sampled_from(["step", "step", "step", "cut", "send"]), max_size=40))
def test_whatever_breaks_every_blob_comes(tmp_path_factory: Any, plan: list[str]) -> None:
    post = Post(tmp_path_factory.mktemp("blobs"), "a", "b")
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    sent = [post.send(a, b, 2 * PIECE_BYTES)[0]]
    for move in plan:
        if move == "send":
            sent.append(post.send(a, b, PIECE_BYTES)[0])
        elif move == "cut":
            wire.cut()
            wire = post.link("a", "b")
            post.wait(BOUNDS.max_backoff_ms)
        else:
            post.step()
    for _ in range(4):
        post.wait(BOUNDS.max_backoff_ms)
    assert b.mail() == sent
    assert post.leftovers("b") == []
    assert b.incidents() == []


def test_a_link_that_closes_while_a_blob_is_checked_changes_nothing(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    sent, digest = post.send(a, b, PIECE_BYTES)
    fetch = None
    while fetch is None or fetch.stage != FetchStage.CHECKING:
        post.step()
        fetch = post.fetchers["b"]._fetches.get(digest)
    wire.cut()
    post.flow()
    assert b.mail() == [sent], "the blob was here, and needed no link"
    assert b.incidents("blob_forged") == []


def test_our_own_disk_is_not_blamed_on_the_peer(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    post.link("a", "b")
    post.flow()
    store, failures = post.disks["b"].store, [StorageFailed("the disk is full")]
    honest = store.complete_fetch

    def complete(digest: str) -> Blob:
        if failures:
            store.abandon_fetch(digest)
            raise failures.pop()
        return honest(digest)

    monkeypatch.setattr(store, "complete_fetch", complete)
    sent, _ = post.send(a, b, PIECE_BYTES)
    post.flow()
    assert b.mail() == []
    post.wait(10_000)
    assert b.mail() == [sent]
    assert b.incidents("blob_forged") == []


def test_a_clock_that_goes_back_does_not_stop_a_fetch(post: Post) -> None:
    a, b = post.mesh["a"], post.mesh["b"]
    wire = post.link("a", "b")
    post.flow()
    wire.end_of(a).tamper = lambda frame: None if isinstance(frame, BlobPiece) else frame
    sent, _ = post.send(a, b, PIECE_BYTES)
    post.flow()
    wire.end_of(a).tamper = lambda frame: frame
    post.mesh.clock.advance(-3_600_000)
    post.wait(0)
    post.wait(BOUNDS.answer_ms)
    post.wait(BOUNDS.max_backoff_ms)
    assert b.mail() == [sent]


def test_a_relay_forwards_no_more_than_a_source_tolerates(tmp_path: Path) -> None:
    post = Post(tmp_path, "a", "b", "s", relays=("s",))
    wire = post.link("a", "s")
    post.link("b", "s")
    post.flow()
    fetcher, digest = post.fetchers["s"], "sha256:" + "0" * 64
    (part,) = [each for each in fetcher._parts if each.peer == "b"]
    proof = ("b", sign_blob_request(post.mesh["b"].key, "b", "a", digest))
    asked = [
        fetcher.forwarder.forward_request(part, BlobRequest("a", digest, offset, 1, *proof))
        for offset in range(100)
    ]
    assert sum(asked) + BOUNDS.fetches * BOUNDS.pieces == BOUNDS.reads
    post.flow()
    assert wire.errors == []
