"""One connection between gateways, with a socket that does as the test says."""

import asyncio
import time
import tracemalloc
from collections.abc import Callable

import pytest

from gatepost.errors import DeadlineExceeded, RateLimited, Revoked
from gatepost.links.connections import connection as under_test
from gatepost.links.connections.connection import PeerConnection
from gatepost.room import RoomAwareness
from tests.room.sample_records import ROOT, agent, author, claim, entry, room
from tests.waiting import async_assert_stays_true, async_wait_until

pytestmark = pytest.mark.anyio
BEN = author("ben")
STEP_1 = b"\x00\x00\x01\x00"


class Wire:
    """What comes in is put into `inbox`; `open` lets what goes out through."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.open = asyncio.Event()
        self.open.set()

    async def receive(self) -> bytes | None:
        return await self.inbox.get()

    async def send(self, message: bytes) -> None:
        await self.open.wait()
        self.sent.append(message)


def _connection(wire: Wire, **limits: int) -> tuple[PeerConnection, Callable[[], None]]:
    replica = room(entry(ROOT), of=ROOT)
    connection = PeerConnection(
        replica, RoomAwareness("root", 1), wire, "ben", BEN.key.public, "dialer", **limits
    )
    numbers = iter(range(1000))

    def change() -> None:
        replica.accept_drafts([claim(ROOT, "agents", f"a{next(numbers)}", agent("root"))])

    return connection, change


async def test_it_greets_answers_and_ends_when_the_other_side_does() -> None:
    wire = Wire()
    connection, _ = _connection(wire)
    for message in (STEP_1, None):
        wire.inbox.put_nowait(message)
    await connection.run()
    assert wire.sent[0][:2] == b"\x00\x00"


async def test_what_changes_while_the_peer_takes_nothing_goes_out_as_one() -> None:
    wire = Wire()
    connection, change = _connection(wire)
    running = asyncio.create_task(connection.run())
    await connection.idle.wait()
    wire.open.clear()
    change()
    await asyncio.sleep(0)
    for _ in range(99):
        change()
    before = len(wire.sent)
    wire.open.set()
    await connection.idle.wait()
    assert len(wire.sent) - before <= 2
    wire.inbox.put_nowait(None)
    await running


async def test_who_asks_again_and_again_and_takes_nothing_is_cut_off() -> None:
    wire = Wire()
    connection, _ = _connection(wire)
    wire.open.clear()
    for _ in range(20):
        wire.inbox.put_nowait(STEP_1)
    with pytest.raises(RateLimited):
        await connection.run()


async def test_answers_are_made_as_the_peer_takes_them() -> None:
    """Eight of them, each as large as the room, were kept in memory: 460 MiB."""
    wire = Wire()
    records = [claim(ROOT, "agents", f"a{n}", agent("root")) for n in range(3000)]
    replica = room(entry(ROOT), *records, of=ROOT)
    whole = sum(len(each.text) for each in records)
    connection = PeerConnection(
        replica, RoomAwareness("root", 1), wire, "ben", BEN.key.public, "dialer"
    )
    running = asyncio.create_task(connection.run())
    await connection.idle.wait()
    wire.open.clear()
    tracemalloc.start()
    for _ in range(7):
        wire.inbox.put_nowait(STEP_1)
    await async_wait_until(lambda: len(connection._answers) == 6, 5)
    assert tracemalloc.get_traced_memory()[1] < 2 * whole
    tracemalloc.stop()
    wire.open.set()
    await connection.idle.wait()
    assert sum(message[:2] == b"\x00\x01" for message in wire.sent) == 7
    wire.inbox.put_nowait(None)
    await running


async def test_answers_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_FREE_ANSWER_BYTES", 1)
    monkeypatch.setattr(under_test, "_ANSWER_BYTES_PER_SEC", 0.001)
    wire = Wire()
    connection, _ = _connection(wire)
    running = asyncio.create_task(connection.run())
    for _ in range(20):
        wire.inbox.put_nowait(STEP_1)
        await async_wait_until(lambda: running.done() or wire.inbox.empty(), 5)
        await asyncio.sleep(0)
    with pytest.raises(RateLimited):
        await running
    assert sum(message[:2] == b"\x00\x01" for message in wire.sent) < 12


def test_a_budget_fills_again() -> None:
    budget = under_test.AnswerBudget()
    for now in (100.0, 100.0, 100.0):
        assert budget.allows_answer(now)
        budget.add_answer(10 << 20)
    assert not budget.allows_answer(100.0)
    assert budget.allows_answer(101.0)


async def test_a_flood_of_small_frames_lets_others_have_their_turn() -> None:
    """All that waited in the socket were handled at once."""
    wire, frames, turns = Wire(), list[bytes](), list[int]()
    connection, _ = _connection(wire)

    def take(frame: bytes) -> None:
        frames.append(frame)
        time.sleep(0.0005)

    async def take_turns() -> None:
        while len(frames) < 200:
            turns.append(len(frames))
            await asyncio.sleep(0)

    connection.on_frame = take
    for _ in range(200):
        wire.inbox.put_nowait(under_test.LINK_PREFIX + b"x")
    wire.inbox.put_nowait(None)
    await asyncio.gather(connection.run(), take_turns())
    assert len(set(turns)) > 20


async def test_a_link_that_queues_too_much_for_its_peer_is_cut_off() -> None:
    wire = Wire()
    connection, _ = _connection(wire, max_queued_bytes=1 << 20)
    running = asyncio.create_task(connection.run())
    await connection.idle.wait()
    wire.open.clear()
    for _ in range(16):
        connection.send_frame(bytes(65_535))
    await asyncio.sleep(0)
    assert connection.is_congested and not running.done()
    connection.send_frame(b"1")
    with pytest.raises(RateLimited, match="ben asks for more than it takes"):
        await running


async def test_a_link_is_told_when_its_peer_has_taken_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, drained = Wire(), list[int]()
    connection, _ = _connection(wire)
    connection.on_drained = lambda: drained.append(connection.queued_bytes)
    running = asyncio.create_task(connection.run())
    await connection.idle.wait()
    wire.open.clear()
    for _ in range(10):
        connection.send_frame(bytes(100_000))
    wire.open.set()
    await connection.idle.wait()
    assert drained == [2 * 100_001] and connection.queued_bytes == 0
    wire.inbox.put_nowait(None)
    await running


async def test_who_takes_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_SEND_SECS", 0.01)
    wire = Wire()
    connection, _ = _connection(wire)
    wire.open.clear()
    with pytest.raises(DeadlineExceeded):
        await connection.run()


async def test_it_can_be_ended_from_outside_and_then_listens_no_more() -> None:
    wire = Wire()
    connection, change = _connection(wire)
    running = asyncio.create_task(connection.run())
    await connection.idle.wait()
    connection.end(Revoked("out"))
    connection.end(Revoked("again"))
    with pytest.raises(Revoked, match="out"):
        await running
    sent = len(wire.sent)
    change()
    await async_assert_stays_true(lambda: len(wire.sent) == sent, 0.01)


async def test_frames_that_waited_while_the_gateway_stood_still_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may have expired meanwhile; the peer sends them again on the next connection."""
    now = 100.0
    monkeypatch.setattr(under_test, "read_boot_clock", lambda: now)
    wire, frames = Wire(), list[bytes]()
    connection, _ = _connection(wire)
    connection.on_frame = frames.append
    running = asyncio.ensure_future(connection.run())
    now += 30
    wire.inbox.put_nowait(under_test.LINK_PREFIX + b"in time")
    await async_wait_until(lambda: bool(frames), 5)
    now += 1
    wire.inbox.put_nowait(under_test.LINK_PREFIX + b"too late")
    with pytest.raises(DeadlineExceeded, match="stood still for 31 s"):
        await running
    assert frames == [b"in time"]


async def test_a_gateway_notices_by_itself_that_it_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([100.0, 105.0, 105.0, 200.0])
    monkeypatch.setattr(under_test, "read_boot_clock", lambda: next(clock))
    monkeypatch.setattr(under_test, "_LOOK_SECS", 0.001)
    connection, _ = _connection(Wire())
    with pytest.raises(DeadlineExceeded, match="stood still for 95 s"):
        await connection.run()
