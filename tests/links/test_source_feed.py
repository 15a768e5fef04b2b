"""The emitter's end of Follow: whole groups, with their heads, from wherever it is asked."""

from collections.abc import Callable
from typing import Any

import pytest

from gatepost.delivery.frames import (
    FRAME_BYTES,
    FRAME_EVENTS,
    EventsFrame,
    FollowFrame,
    IncarnationsFrame,
    LinkFrame,
    TakenFrame,
)
from gatepost.events import Envelope, event_digest, genesis_chain
from gatepost.journal.transaction import Tx
from gatepost.links.proof import check_group, check_incarnations
from gatepost.links.source_feed import SourceFeedPart
from tests.delivery.mesh import WINDOW, Gate, Mesh


class Follower:
    """Says Follow to a gate and keeps what it answers."""

    def __init__(self, gate: Gate, window: int = WINDOW) -> None:
        self.gate = gate
        self.window = window
        self.frames: list[LinkFrame] = []
        self.now = self.uptime = gate.clock.now
        self.is_congested = False
        self.part = SourceFeedPart(self, gate.node, gate.coordinator, window)
        gate.outbox.on_published = self.part.publish_group

    def commit(
        self, operation: Callable[[Tx], Any], done: Callable[[Any], None], weight: int = 1
    ) -> None:
        self.gate.commit(operation, lambda value, error: done(value))

    def send(self, frame: LinkFrame) -> None:
        self.frames.append(frame)

    def end(self, error: Exception) -> None:
        raise error

    def follow(self, *positions: tuple[str, str, int]) -> None:
        self.part.receive_frame(FollowFrame(list(positions), self.window))
        self.work()

    def work(self) -> None:
        while self.gate.work():
            pass

    def take(self) -> None:
        self.part.receive_frame(TakenFrame("a", "a-1", 0, 2**50, "follow"))
        self.work()

    def events(self) -> list[EventsFrame]:
        return [each for each in self.frames if isinstance(each, EventsFrame)]

    def spans(self) -> list[tuple[int, int]]:
        return [(group.first, group.last) for each in self.events() for group in each.groups]


@pytest.fixture
def a() -> Gate:
    mesh = Mesh("a", "b")
    mesh["a"].send_many(mesh["b"], 3)
    mesh["a"].note(None)
    mesh["a"].send_many(mesh["b"], 2)
    return mesh["a"]


def test_the_answer_starts_with_the_incarnations(a: Gate) -> None:
    follower = Follower(a)
    follower.follow()
    signed = follower.frames[0]
    assert isinstance(signed, IncarnationsFrame)
    check_incarnations(signed, a.key.public)
    assert signed.incarnations == [("a-1", 1)]


def test_every_group_goes_out_whole_and_verifies(a: Gate) -> None:
    follower = Follower(a)
    follower.follow()
    a.note("b")
    assert follower.spans() == [(1, 3), (4, 4), (5, 6), (7, 7)]
    digests = [event_digest(body) for each in follower.events() for body in each.events]
    chain = genesis_chain("a", "a-1")
    for frame in follower.events():
        for group in frame.groups:
            assert group.previous == chain
            check_group("a", "a-1", group, digests[group.first - 1 : group.last], a.key.public)
            chain = group.chain


def test_who_is_in_the_middle_of_a_group_gets_all_of_it(a: Gate) -> None:
    follower = Follower(a)
    follower.follow(("a", "a-1", 5))
    assert follower.spans() == [(5, 6)]


def test_it_starts_again_when_asked_again(a: Gate) -> None:
    follower = Follower(a)
    follower.follow(("a", "a-1", 4))
    follower.follow()
    assert follower.spans() == [(5, 6), (1, 3), (4, 4), (5, 6)]
    assert sum(isinstance(each, IncarnationsFrame) for each in follower.frames) == 2


def test_a_feed_that_was_replaced_while_it_read_says_nothing(a: Gate) -> None:
    follower = Follower(a)
    for _ in range(2):
        follower.part.receive_frame(FollowFrame([], WINDOW))
    follower.work()
    kinds = [type(each) for each in follower.frames]
    assert kinds == [IncarnationsFrame, IncarnationsFrame, EventsFrame]


def test_without_a_window_it_ends(a: Gate) -> None:
    follower = Follower(a)
    follower.follow()
    assert follower.part.is_followed
    follower.part.receive_frame(FollowFrame([], 0))
    follower.work()
    sent = len(follower.events())
    a.note("b")
    follower.work()
    assert len(follower.events()) == sent
    assert not follower.part.is_followed


def test_a_large_group_goes_out_in_parts_with_its_head_in_the_last(a: Gate) -> None:
    follower = Follower(a, window=1)
    follower.follow(("a", "a-1", 6))
    draft = Envelope(event_id=a.node.event_ids.next_id(), kind="notice", source_agent_id="gateway")
    for _ in range(FRAME_EVENTS + 1):
        a.commit(lambda tx: tx.append_event(draft), lambda value, error: None)
    a.work()
    for _ in range(5):
        follower.take()
    frames = follower.events()
    assert [len(each.events) for each in frames] == [FRAME_EVENTS, 1]
    assert [len(each.groups) for each in frames] == [0, 1]
    assert all(sum(map(len, each.events)) <= FRAME_BYTES for each in frames)


def test_what_was_forgotten_is_not_sent_half(a: Gate) -> None:
    """The first group that is left goes too if nobody knows what was before it."""
    a.connection.execute("DELETE FROM outbox WHERE seq <= 3")
    a.connection.execute("DELETE FROM head WHERE last_seq <= 3")
    follower = Follower(a)
    follower.follow()
    assert follower.spans() == [(5, 6)]
