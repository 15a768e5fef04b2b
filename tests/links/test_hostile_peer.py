"""An admitted peer that asks for more than it takes, or for what is not its own."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gatepost.delivery.frames import (
    PIECE_BYTES,
    AnyFrame,
    BlobPiece,
    BlobRequest,
    EventsFrame,
    FollowFrame,
    IncarnationsFrame,
    LinkFrame,
    ReadingFrame,
    RelayFrame,
    TraceAnswer,
    TraceRequest,
    decode_frame,
    encode_frame,
)
from gatepost.links import outbox_replica
from gatepost.links.proof import sign_blob_request, sign_reading
from tests.delivery.mesh import CONGESTED_BYTES, WINDOW, End, Gate, Mesh, Wire
from tests.links.test_blob_fetch import BOUNDS, Post


def silent_link(mesh: Mesh, gate: Gate, peer: str) -> End:
    """A link of `gate` whose other side takes nothing after the greeting."""
    wire = mesh.link(gate.id, peer)
    mesh.flow()
    mesh.wires.remove(wire)
    return wire.end_of(gate)


def say(end: End, *frames: AnyFrame) -> None:
    """The peer says this, and the gate does what it can without being heard."""
    for frame in frames:
        end.hear(frame)
        while end.gate.work():
            pass


def queued(end: End, kind: type[LinkFrame]) -> int:
    return sum(isinstance(decode_frame(data), kind) for data in end.out)


# -- Follow


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b", "s", relays=["s"])


def test_a_repeated_follow_replaces_the_former_one(mesh: Mesh) -> None:
    """9 KiB of them queued 1.1 GiB."""
    a = mesh["a"]
    a.send_many(mesh["b"], 400, 20_000)
    end = silent_link(mesh, a, "s")
    say(end, *[FollowFrame([], 2**50)] * 8)
    assert end.queued_bytes <= CONGESTED_BYTES + 2 * WINDOW
    assert queued(end, IncarnationsFrame) == 1, "the others wait until it takes something"
    say(end, *[FollowFrame([], 2**50)] * 8)
    assert "again and again" in end.wire.errors[0]


def test_the_last_of_several_follows_is_fed_once_the_peer_takes_frames(mesh: Mesh) -> None:
    a = mesh["a"]
    a.send_many(mesh["b"], 100, 20_000)
    end = silent_link(mesh, a, "s")
    say(end, FollowFrame([], WINDOW), FollowFrame([], WINDOW), FollowFrame([], WINDOW))
    while end.queued_bytes >= CONGESTED_BYTES:
        end.out.popleft()
    end.port.resume_requests()
    while a.work():
        pass
    answers = [decode_frame(data) for data in end.out]
    assert sum(isinstance(each, IncarnationsFrame) for each in answers) == 2
    events = [each for each in answers if isinstance(each, EventsFrame)]
    assert events[-1].stream == "follow"


def test_only_a_relay_may_follow_an_outbox(mesh: Mesh) -> None:
    """Any edge could read the envelopes of all messages."""
    a, b = mesh["a"], mesh["b"]
    a.send_many(mesh["s"], 3)
    end = silent_link(mesh, a, "b")
    before = list(end.out)
    say(end, FollowFrame([], WINDOW))
    assert list(end.out) == before
    mesh.clock.advance(60_001)
    a.peers.tend(0)
    assert "no backbone node" in end.wire.errors[0]
    a.note(None)
    assert [each.split("@")[0] for each in a.incidents("abuse")] == [f"{b.id}/foreign_outbox"]


def test_a_peer_that_ignores_its_credit_is_cut_off(mesh: Mesh) -> None:
    """What it sends waits in memory for the journal."""
    a, b = mesh["a"], mesh["b"]
    a.peers.settings = replace(a.peers.settings, max_untaken_bytes=2 * WINDOW)
    end = silent_link(mesh, a, "b")
    b.send_many(mesh["s"], 1, 100_000)
    (body,) = b.rows("SELECT body FROM outbox")[0]
    flood = EventsFrame("b", "b-1", 1, 1, 0, [body])
    for _ in range(40):
        end.port.receive(encode_frame(flood))
    assert "more than its credit" in end.wire.errors[0]
    assert len(a.jobs) <= 2 * WINDOW // len(body) + 1, "and one for the incident"


def test_a_peer_that_becomes_a_relay_later_may_follow_then(mesh: Mesh) -> None:
    a = mesh["a"]
    end = silent_link(mesh, a, "b")
    say(end, FollowFrame([], WINDOW))
    a.backbone.add("b")
    a.peers.tend(0)
    while a.work():
        pass
    assert queued(end, IncarnationsFrame) == 1


# -- blobs


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path, "a", "b", "c", "s", relays=("s",))


def run_disk(post: Post, gate: Gate) -> None:
    while any([gate.work(), post.disks[gate.id].run()]):
        pass


def test_pieces_are_read_as_the_peer_takes_them(post: Post) -> None:
    """805 KiB of requests queued 2 GiB."""
    a, b = post.mesh["a"], post.mesh["b"]
    end = silent_link(post.mesh, a, "b")
    _, digest = post.send(a, b, 4 * PIECE_BYTES)
    for number in range(BOUNDS.reads):
        say(end, BlobRequest("a", digest, number % 4 * PIECE_BYTES, PIECE_BYTES))
        run_disk(post, a)
    assert queued(end, BlobPiece) <= BOUNDS.served + 1
    assert end.queued_bytes <= CONGESTED_BYTES + (BOUNDS.served + 1) * (PIECE_BYTES + 200)
    served = 0
    while end.out:
        served += isinstance(decode_frame(end.out.popleft()), BlobPiece)
        end.port.resume_requests()
        run_disk(post, a)
    assert served == BOUNDS.reads, "and the others were not forgotten"
    say(end, *[BlobRequest("a", digest, 0, PIECE_BYTES)] * (BOUNDS.reads + BOUNDS.served + 9))
    assert "too much" in end.wire.errors[0]


def test_nobody_gets_a_blob_by_naming_its_reader(post: Post) -> None:
    """Neither an edge, nor a relay that the reader did not ask."""
    a, b = post.mesh["a"], post.mesh["b"]
    _, digest = post.send(a, b, 100)
    forged = sign_blob_request(post.mesh["c"].key, "b", "a", digest)
    genuine = sign_blob_request(b.key, "b", "a", digest)
    for peer, signature, total in [
        ("c", genuine, 0),
        ("s", b"", 0),
        ("s", forged, 0),
        ("s", genuine, 1),
    ]:
        end = silent_link(post.mesh, a, peer)
        say(end, BlobRequest("a", digest, 0, 10, "b", signature))
        run_disk(post, a)
        (piece,) = [p for p in map(decode_frame, end.out) if isinstance(p, BlobPiece)]
        assert bool(piece.total) == bool(total), peer


def test_a_relay_forwards_only_what_its_reader_signed(post: Post) -> None:
    a, b, s = (post.mesh[name] for name in "abs")
    to_a = post.link("a", "s")
    end = silent_link(post.mesh, s, "b")
    _, digest = post.send(a, b, 100)
    say(end, BlobRequest("a", digest, 0, 10), BlobRequest("a", digest, 0, 10, "b", bytes(64)))
    post.flow()
    assert not any(isinstance(each, BlobRequest) for each in to_a.end_of(a).seen)


def test_blobs_that_never_come_hold_up_nobody_else(post: Post) -> None:
    """400 of them occupied all fetch slots."""
    a, b, c = (post.mesh[name] for name in "abc")
    fetcher = post.fetchers["b"]
    post.link("a", "b")
    wire = post.link("c", "b")
    post.flow()
    wire.end_of(c).tamper = lambda frame: None if isinstance(frame, BlobPiece) else frame
    for number in range(400):
        fetcher.want_blob(f"sha256:{number:064}", "c")
    assert len(fetcher._fetches) <= BOUNDS.wanted
    sent, _ = post.send(a, b, 100)
    post.flow()
    assert b.mail() == [sent]


def test_a_source_that_does_not_answer_gets_one_slot(post: Post) -> None:
    b, c = post.mesh["b"], post.mesh["c"]
    wire = post.link("c", "b")
    post.flow()
    wire.end_of(c).tamper = lambda frame: None if isinstance(frame, BlobPiece) else frame
    sent = [post.send(c, b, 100 + n, order="none")[0] for n in range(9)]
    post.flow()
    asked = {each.digest for each in wire.end_of(c).seen if isinstance(each, BlobRequest)}
    assert len(asked) == BOUNDS.fetches
    wire.end_of(c).seen.clear()
    post.wait(BOUNDS.answer_ms)
    again = {each.digest for each in wire.end_of(c).seen if isinstance(each, BlobRequest)}
    assert len(again - asked) <= 1
    wire.end_of(c).tamper = lambda frame: frame
    for _ in range(20):
        post.wait(BOUNDS.answer_ms)
    assert sorted(b.mail()) == sorted(sent)


# -- relays


def relay_links(mesh: Mesh) -> tuple[Wire, Wire]:
    """`a` and `b` with the relay `s`."""
    wires = mesh.link("a", "s"), mesh.link("b", "s")
    mesh.flow()
    return wires


def test_a_relay_handles_one_request_at_a_time(mesh: Mesh) -> None:
    s = mesh["s"]
    relay_links(mesh)
    end = silent_link(mesh, s, "b")
    jobs = len(s.jobs)
    for number in range(1000):
        end.hear(RelayFrame([], ["a"] if number % 2 else [], WINDOW))
    assert len(s.jobs) - jobs == 1
    while s.work():
        pass
    assert queued(end, IncarnationsFrame) <= 2


def replica_bytes(gate: Gate) -> int:
    query = "SELECT coalesce(sum(length(body)), 0) FROM replica WHERE source = 'a'"
    return int(gate.value(query))


def test_a_replica_that_becomes_too_large_loses_its_oldest_events(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that never reads, or a source without end, filled the disk of the relay."""
    monkeypatch.setattr(outbox_replica, "MAX_REPLICA_BYTES", 300_000)
    a, b, s = (mesh[name] for name in "abs")
    _, to_b = relay_links(mesh)
    to_b.cut()
    ids: list[str] = []
    for _ in range(30):
        ids += a.send_many(b, 5, 10_000)
        mesh.flow()
        assert replica_bytes(s) <= 300_000
    assert s.value("SELECT bytes FROM relayed WHERE source = 'a'") == replica_bytes(s)
    mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == ids, "the source still has what the relay has not"
    assert replica_bytes(s) <= 300_000


def test_a_reader_that_goes_back_again_and_again_makes_the_others_wait_once(mesh: Mesh) -> None:
    """All of an outbox was followed again for each of its requests."""
    a, b, s = (mesh[name] for name in "abs")
    to_a, to_b = relay_links(mesh)
    a.send_many(b, 30)
    mesh.flow()
    assert s.host is not None
    mesh.clock.advance(60_000)
    s.host.prune_replicas(s.commit)
    mesh.flow()
    assert replica_bytes(s) == 0
    mesh.wires.remove(to_b)
    follows = sum(isinstance(each, FollowFrame) for each in to_a.end_of(a).seen)
    for _ in range(20):
        say(to_b.end_of(s), RelayFrame([], [], WINDOW), RelayFrame([], ["a"], WINDOW))
        mesh.flow()
        s.host.prune_replicas(s.commit)
        mesh.flow()
    again = sum(isinstance(each, FollowFrame) for each in to_a.end_of(a).seen)
    assert again - follows <= 2


def test_a_forged_reading_ends_the_link_of_its_reader_alone(mesh: Mesh) -> None:
    """It made the source end its link with an honest relay."""
    to_a, to_b = relay_links(mesh)
    forged = sign_reading(mesh["a"].key, "b", "b-1", ("a", "a-1", 3))
    to_b.end_of(mesh["s"]).hear(forged)
    mesh.flow()
    assert to_b.broken and not to_a.broken


def test_a_reader_that_reports_too_often_is_passed_on_once_a_second(mesh: Mesh) -> None:
    """Each report is a commit at the source, and counts against the relay there."""
    a, b, s = (mesh[name] for name in "abs")
    to_a, to_b = relay_links(mesh)
    a.send_many(b, 3)
    mesh.flow()
    s.peers.tend(0)
    mesh.flow()
    to_a.end_of(a).seen.clear()
    for upto in (1, 2, 3) * 100:
        to_b.end_of(s).hear(sign_reading(b.key, "b", "b-1", ("a", "a-1", upto)))
    mesh.flow()
    s.peers.tend(0)
    mesh.flow()
    passed = [each.upto for each in to_a.end_of(a).seen if isinstance(each, ReadingFrame)]
    assert passed == [1, 3]


def test_a_forged_trace_ends_the_link_of_its_author_alone(mesh: Mesh) -> None:
    sent = mesh["a"].send(mesh["b"]).event_id
    to_a, to_b = relay_links(mesh)
    to_a.end_of(mesh["s"]).hear(TraceRequest(1, [sent], "b", "a", bytes(64)))
    mesh.flow()
    assert to_a.broken and not to_b.broken
    to_a = mesh.link("a", "s")
    mesh.flow()
    to_b.end_of(mesh["b"]).tamper = lambda frame: (
        replace(frame, signature=bytes(64)) if isinstance(frame, TraceAnswer) else frame
    )
    answers: list[TraceAnswer] = []
    to_a.end_of(mesh["a"]).port.trace.request_trace([sent], answers.append, "b")
    mesh.flow()
    broken = [wire.broken for wire in (to_a, to_b)]
    assert (broken, answers) == ([False, True], [])


def test_traces_are_not_answered_to_a_peer_that_takes_nothing(mesh: Mesh) -> None:
    a = mesh["a"]
    ids = a.send_many(mesh["b"], 64)
    end = silent_link(mesh, a, "b")
    for number in range(200):
        say(end, TraceRequest(number, ids))
    assert queued(end, TraceAnswer) < 200
    assert end.queued_bytes < 2 * CONGESTED_BYTES


def test_a_trace_that_its_target_never_answers_is_forgotten(mesh: Mesh) -> None:
    sent = mesh["a"].send(mesh["b"]).event_id
    to_a, to_b = relay_links(mesh)
    target = to_b.end_of(mesh["s"])
    target.tamper = lambda frame: None if isinstance(frame, TraceRequest) else frame
    for _ in range(50):
        asker = to_a.end_of(mesh["a"]).port.trace
        asker.request_trace([sent], lambda answer: None, "b")
        mesh.flow()
        mesh.clock.advance(10_001)
    assert len(target.port.trace._requests) <= 4
