"""The outbox: gapless, chained, signed, append-only."""

from functools import partial

import apsw
import pytest

from gatepost.errors import ChainError, UnknownMessage
from gatepost.events import (
    Envelope,
    EventIdGenerator,
    NodeKey,
    event_digest,
    genesis_chain,
    verify_group,
)
from gatepost.journal import Tx, Writer, open_memory_journal
from gatepost.journal.outbox import Outbox, read_journey
from gatepost.journal.writer import WriteJob
from gatepost.testing import ManualClock
from tests.journal.outbox_reader import read_events, read_heads

NODE, INCARNATION = "node-1", "abc"


class OutboxHarness:
    """An outbox and the means to append to it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.key = NodeKey.generate(self.clock)
        self.connection = open_memory_journal()
        self.ids = EventIdGenerator(self.clock)
        outbox = Outbox(NODE, INCARNATION, self.key)
        self.writer = Writer(
            self.connection, self.clock, lambda outcomes: None, participants=(outbox,)
        )

    def append(self, *drafts: Envelope) -> None:
        """All of them in one group, each as an operation."""
        jobs: list[WriteJob] = [(partial(_append, draft), lambda *_: None) for draft in drafts]
        assert not [error for _, _, error in self.writer.run_group(jobs) if error]

    def draft(self, to: str | None = None, ref: str | None = None) -> Envelope:
        return Envelope(
            event_id=self.ids.next_id(), kind="message", source_agent_id="alice", to_node_id=to,
            ref_event_id=ref,
        )  # fmt: skip

    def tx(self) -> Tx:
        return Tx(self.connection, self.clock.now())

    def verify(self) -> int:
        """Check the chain group by group; returns how many groups there are."""
        chain, groups = genesis_chain(NODE, INCARNATION), 0
        for head, digests in read_heads(self.tx(), NODE, INCARNATION):
            chain = verify_group(chain, digests, head, self.key.public)
            groups += 1
        return groups


def _append(draft: Envelope, tx: Tx) -> None:
    tx.append_event(draft)


@pytest.fixture
def harness() -> OutboxHarness:
    return OutboxHarness()


def test_seq_is_gapless_across_groups_and_failed_operations(harness: OutboxHarness) -> None:
    harness.append(harness.draft(), harness.draft())

    def fails(tx: Tx) -> None:
        tx.append_event(harness.draft())
        raise UnknownMessage("undone")

    harness.writer.run_group([(fails, lambda *_: None)])
    harness.append(harness.draft())
    assert [event.seq for event in read_events(harness.tx())] == [1, 2, 3]


def test_group_that_fails_leaves_no_gap(harness: OutboxHarness) -> None:
    harness.append(harness.draft())
    bad = Envelope(event_id="not an id", kind="message", source_agent_id="alice")
    outcomes = harness.writer.run_group([(lambda tx: tx.append_event(bad), lambda *_: None)])
    assert [error.code for _, _, error in outcomes if error] == ["internal"]
    harness.append(harness.draft())
    assert [event.seq for event in read_events(harness.tx())] == [1, 2]
    assert harness.verify() == 2


def test_one_signed_head_for_each_group_that_appended(harness: OutboxHarness) -> None:
    harness.append(harness.draft(), harness.draft())
    harness.append()
    harness.append(harness.draft())
    spans = [(head.first, head.last) for head, _ in read_heads(harness.tx(), NODE, INCARNATION)]
    assert spans == [(1, 2), (3, 3)]


def test_chain_verifies_group_by_group(harness: OutboxHarness) -> None:
    for size in (1, 3, 2):
        harness.append(*(harness.draft() for _ in range(size)))
    assert harness.verify() == 3


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE outbox SET digest = zeroblob(32) WHERE seq = 2",
        "DELETE FROM outbox WHERE seq = 3",
        "UPDATE head SET chain = zeroblob(32) WHERE last_seq = 4",
        "UPDATE head SET signature = zeroblob(64) WHERE last_seq = 2",
        "DELETE FROM head WHERE last_seq = 2",
    ],
)
def test_tampering_is_detected(harness: OutboxHarness, tampering: str) -> None:
    for _ in range(3):
        harness.append(harness.draft(), harness.draft())
    harness.connection.execute("DROP TRIGGER outbox_is_append_only")
    harness.connection.execute(tampering)
    with pytest.raises(ChainError):
        harness.verify()


def test_digest_is_of_the_event_as_stored(harness: OutboxHarness) -> None:
    harness.append(harness.draft())
    ((body, digest),) = harness.connection.execute("SELECT body, digest FROM outbox").fetchall()
    assert isinstance(body, bytes)
    assert event_digest(body) == digest


def test_outbox_is_append_only(harness: OutboxHarness) -> None:
    harness.append(harness.draft())
    for change in ("seq = 7", "body = x'00'", "digest = x'00'", "kind = 'ack'"):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            harness.connection.execute(f"UPDATE outbox SET {change}")


def test_each_event_names_the_one_before_it_for_the_same_node(harness: OutboxHarness) -> None:
    harness.append(
        harness.draft("n1"), harness.draft("n2"), harness.draft("n1"), harness.draft(None)
    )
    harness.append(harness.draft("n2"), harness.draft("n1"))
    assert [event.prev_seq_to for event in read_events(harness.tx())] == [0, 0, 1, 0, 2, 3]


def test_journey_is_an_event_and_what_refers_to_it(harness: OutboxHarness) -> None:
    first = harness.draft()
    harness.append(first, harness.draft())
    harness.append(harness.draft(ref=first.event_id))
    assert [event.seq for event in read_journey(harness.tx(), first.event_id)] == [1, 3]


def test_events_are_stamped_with_the_time_of_their_group(harness: OutboxHarness) -> None:
    harness.append(harness.draft())
    harness.clock.advance(5)
    harness.append(harness.draft())
    times = [event.created_at for event in read_events(harness.tx())]
    assert times == [1_700_000_000_000, 1_700_000_000_005]


def test_chain_goes_on_after_a_restart(harness: OutboxHarness) -> None:
    harness.append(harness.draft())
    outbox = Outbox(NODE, INCARNATION, harness.key)
    harness.writer = Writer(
        harness.connection, harness.clock, lambda outcomes: None, participants=(outbox,)
    )
    harness.append(harness.draft())
    assert harness.verify() == 2
