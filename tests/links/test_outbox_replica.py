"""Outboxes as a relay stores them: from where somebody needs them, for as long as somebody does."""

from collections.abc import Iterator

import pytest

from gatepost.delivery.frames import CommitGroup, IncarnationsFrame
from gatepost.journal.transaction import Tx
from gatepost.links import outbox_replica
from gatepost.links.outbox_replica import ReaderProgress, ReplicaPosition
from tests.delivery.mesh import Gate, Mesh

ONE = [("one", 1)]
FORKED = [("one", 1), ("two", 4)]
KEEP = 1_000


@pytest.fixture
def relay() -> Iterator[Gate]:
    yield Mesh("s", relays=["s"])["s"]


def group(first: int, last: int) -> CommitGroup:
    chain = last.to_bytes(32, "big")
    return CommitGroup(first, last, (first - 1).to_bytes(32, "big"), chain, b"s" * 64)


def keep(tx: Tx, *spans: tuple[int, int], to: str = "b", incarnation: str = "one") -> None:
    """Store these groups of `a`, which `b` reads, one after another."""
    for first, last in spans:
        rows = [
            (seq, to, b"event %d" % seq, seq.to_bytes(32, "big")) for seq in range(first, last + 1)
        ]
        outbox_replica.store_rows(tx, "a", incarnation, rows, [group(first, last)])
        state = outbox_replica.find_replica(tx, "a")
        assert state is not None
        now = ReplicaPosition(incarnation, last, last.to_bytes(32, "big"))
        assert outbox_replica.advance_replica(tx, "a", state.position, now)


def read(tx: Tx, reader: str = "b", at: int = 0) -> None:
    outbox_replica.save_reader(tx, reader, ["a"], [("a", "one", at)])


def learn(tx: Tx, incarnations: list[tuple[str, int]]) -> None:
    outbox_replica.save_incarnations(tx, IncarnationsFrame("a", incarnations, b"s" * 64))


def begun(tx: Tx) -> None:
    read(tx)
    learn(tx, ONE)
    assert outbox_replica.begin_following(tx, "a", ONE) == ReplicaPosition("one", 0, None)


def test_nobody_reads_nothing_is_followed(relay: Gate) -> None:
    assert relay.do(lambda tx: outbox_replica.begin_following(tx, "a", ONE)) is None


def test_a_replica_starts_at_the_reader_that_is_furthest_back(relay: Gate) -> None:
    def work(tx: Tx) -> ReplicaPosition | None:
        read(tx, "b", 7)
        read(tx, "c", 3)
        return outbox_replica.begin_following(tx, "a", ONE)

    assert relay.do(work) == ReplicaPosition("one", 3, None)


def test_a_replica_goes_on_where_it_is_and_starts_again_for_a_reader_from_before(
    relay: Gate,
) -> None:
    def work(tx: Tx) -> tuple[ReplicaPosition | None, ReplicaPosition | None]:
        read(tx, "b", 2)
        learn(tx, ONE)
        outbox_replica.begin_following(tx, "a", ONE)
        keep(tx, (3, 4))
        goes_on = outbox_replica.begin_following(tx, "a", ONE)
        read(tx, "c", 1)
        return goes_on, outbox_replica.begin_following(tx, "a", ONE)

    goes_on, again = relay.do(work)
    assert goes_on == ReplicaPosition("one", 4, (4).to_bytes(32, "big"))
    assert again == ReplicaPosition("one", 1, None)
    assert relay.value("SELECT count(*) FROM replica") == 0


def test_events_behind_a_fork_of_a_restored_source_are_deleted(relay: Gate) -> None:
    def work(tx: Tx) -> ReplicaPosition | None:
        begun(tx)
        keep(tx, (1, 3), (4, 6))
        learn(tx, FORKED)
        return outbox_replica.begin_following(tx, "a", FORKED)

    assert relay.do(work) == ReplicaPosition("one", 3, (3).to_bytes(32, "big"))
    assert relay.value("SELECT max(seq) FROM replica") == 3


def test_a_replica_whose_fork_is_inside_a_group_starts_again(relay: Gate) -> None:
    def work(tx: Tx) -> ReplicaPosition | None:
        begun(tx)
        keep(tx, (1, 6))
        learn(tx, FORKED)
        return outbox_replica.begin_following(tx, "a", FORKED)

    assert relay.do(work) == ReplicaPosition("one", 0, None)


def test_a_position_that_was_overtaken_is_not_advanced(relay: Gate) -> None:
    def work(tx: Tx) -> bool:
        begun(tx)
        keep(tx, (1, 2))
        return outbox_replica.advance_replica(
            tx, "a", ReplicaPosition("one", 0, None), ReplicaPosition("one", 5, b"x" * 32)
        )

    assert relay.do(work) is False


def test_an_excerpt_has_the_readers_events_with_the_groups_that_hold_them(relay: Gate) -> None:
    def work(tx: Tx) -> outbox_replica.ReplicaExcerpt | None:
        begun(tx)
        keep(tx, (1, 2))
        keep(tx, (3, 4), to="c")
        keep(tx, (5, 5))
        return outbox_replica.read_excerpt(tx, "a", "b", ONE, 1)

    found = relay.do(work)
    assert found.events == [b"event 2", b"event 5"]
    assert [(each.first, each.last, len(each.digests)) for each in found.groups] == [
        (1, 2, 64),
        (5, 5, 32),
    ]
    assert (found.last, found.upto, found.complete) == (5, 5, True)


def test_an_excerpt_ends_with_its_incarnation(relay: Gate) -> None:
    def work(tx: Tx) -> outbox_replica.ReplicaExcerpt | None:
        begun(tx)
        keep(tx, (1, 3))
        learn(tx, FORKED)
        keep(tx, (4, 5), incarnation="two")
        return outbox_replica.read_excerpt(tx, "a", "b", FORKED, 0)

    found = relay.do(work)
    assert found.events == [b"event 1", b"event 2", b"event 3"]
    assert (found.upto, found.complete) == (3, False)


def test_what_every_reader_has_taken_is_pruned_group_by_group(relay: Gate) -> None:
    def work(tx: Tx) -> set[str]:
        begun(tx)
        keep(tx, (1, 2), (3, 5))
        taken = {("a", "b"): ReaderProgress([("a", "one", 4)], 4)}
        return outbox_replica.prune_replicas(tx, taken, KEEP)

    assert relay.do(work) == set()
    assert relay.value("SELECT min(seq) FROM replica") == 3
    assert relay.do(lambda tx: outbox_replica.read_excerpt(tx, "a", "b", ONE, 1)) is None


def test_a_reader_that_stays_away_is_forgotten_and_so_is_its_source(relay: Gate) -> None:
    relay.do(begun)
    relay.clock.advance(KEEP + 1)
    assert relay.do(lambda tx: outbox_replica.prune_replicas(tx, {}, KEEP)) == {"a"}
    assert relay.do(outbox_replica.replicated_sources) == set()


def test_a_connected_reader_keeps_its_source_wanted(relay: Gate) -> None:
    relay.do(begun)
    relay.clock.advance(KEEP + 1)
    here = {("a", "b"): ReaderProgress([], 0)}
    assert relay.do(lambda tx: outbox_replica.prune_replicas(tx, here, KEEP)) == set()


def test_a_reader_that_has_gone_back_is_served_from_where_it_is(relay: Gate) -> None:
    def work(tx: Tx) -> tuple[int, int]:
        begun(tx)
        keep(tx, (1, 5))
        taken = {("a", "b"): ReaderProgress([("a", "one", 4)], 5)}
        outbox_replica.prune_replicas(tx, taken, KEEP)
        same = outbox_replica.save_reader(tx, "b", ["a"], [("a", "one", 4)])["a"][1]
        back = outbox_replica.save_reader(tx, "b", ["a"], [("a", "one", 2)])["a"][1]
        return same, back

    assert relay.do(work) == (5, 0)
