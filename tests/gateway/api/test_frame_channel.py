"""A session's promises: bounded, orderly, and nothing left behind when its client goes."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from gatepost.gateway.api import frame_channel as sessions
from gatepost.gateway.api.frame_channel import FrameChannel, run_channel
from gatepost.gateway.api.operations import Operations
from gatepost.wire.operations import Await, Dequeue, Enqueue, NewMessage, NewSend, Register, Send
from tests.gateway.tools import dump, opened
from tests.waiting import async_assert_stays_true, async_wait_until

pytestmark = pytest.mark.anyio


class Peer:
    """A client's end of a session, which takes its output only when told to."""

    def __init__(self, operations: Operations) -> None:
        self.woken = 0
        self.channel = FrameChannel(operations, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def send(self, *ops: Mapping[str, object]) -> None:
        self.channel.receive_frame(json.dumps(ops if len(ops) > 1 else ops[0]))

    def take(self) -> list[Any]:
        frames = [json.loads(frame) for frame in self.channel.take_output()]
        return [one for frame in frames for one in (frame if isinstance(frame, list) else [frame])]

    async def heard(self, count: int) -> list[Any]:
        found: list[Any] = []

        def enough() -> bool:
            found.extend(self.take())
            return len(found) >= count

        await async_wait_until(enough)
        return found


async def _fill(operations: Operations, box: str, count: int, size: int = 10) -> None:
    payload = Raw(json.dumps("x" * size).encode())
    news = [NewMessage(f"s{n}", box, payload, msg_id=f"m:{n}") for n in range(count)]
    await operations.perform(Enqueue(messages=news))


async def _has_room(channel: FrameChannel) -> bool:
    try:
        await asyncio.wait_for(channel.wait_for_capacity(), 0.05)
    except TimeoutError:
        return False
    return True


async def test_answers_of_one_group_leave_in_one_frame_and_in_order(state: Path) -> None:
    async with opened(state) as operations:
        peer = Peer(operations)
        peer.send(*({"op": "register", "id": n, "agent": f"a{n}"} for n in range(20)))
        await async_wait_until(lambda: not peer.channel._unanswered)
        (frame,) = peer.channel.take_output()
        assert [answer["re"] for answer in json.loads(frame)[1:]] == list(range(1, 20))


@pytest.mark.parametrize(
    ("frame", "answered"),
    [
        ('{"op": "peek", "id": 7, "mailbox": "b", "foo": 1}', [7]),
        ('{"id": 8, "op": "no_such_operation"}', [8]),
        ('[{"op": "purge", "id": 1, "mailbox": "b"}, {"op": "peek", "id": 2}]', [1, 2]),
        ('{"op": "peek", "id": "seven", "mailbox": "b"}', [None]),
        ("no JSON", [None]),
    ],
)
async def test_a_refused_frame_is_answered_under_the_ids_of_its_operations(
    state: Path, frame: str, answered: list[int | None]
) -> None:
    async with opened(state) as operations:
        peer = Peer(operations)
        peer.channel.receive_frame(frame)
        answers = await peer.heard(len(answered))
        assert [(each["op"], each.get("re")) for each in answers] == [
            ("failed", id) for id in answered
        ]
        assert not peer.channel.has_pending_replies


async def test_a_client_with_too_much_under_way_must_wait(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MAX_UNANSWERED", 3)
    async with opened(state) as operations:
        peer = Peer(operations)
        peer.send({"op": "register", "agent": "a"})
        await async_wait_until(lambda: peer.channel._replies)
        peer.send(*({"op": "peek", "mailbox": "b"} for _ in range(3)))
        assert not await _has_room(peer.channel), "its first answer is not taken yet"
        await peer.heard(2)
        assert await _has_room(peer.channel)


async def test_who_waits_may_still_ask_for_other_things_but_not_wait_without_end(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MAX_UNANSWERED", 3)
    monkeypatch.setattr(sessions, "_MAX_WAITS", 5)
    async with opened(state) as operations:
        peer = Peer(operations)
        await operations.perform(Register(agent="bob"))
        new = NewSend("al", "bob", Raw(b"1"))
        (sent,) = (await operations.perform(Send(messages=[new]))).results
        wait = {"op": "await", "event_id": sent.event_id, "wait_secs": 50}
        peer.send(*({"id": n, **wait} for n in range(5)))
        assert await _has_room(peer.channel)
        peer.send({"id": 9, **wait})
        (refused,) = await peer.heard(1)
        assert (refused["re"], refused["error"]["code"]) == (9, "unavailable")
        await operations.mailboxes.purge("bob", "operator")
        assert {answer["op"] for answer in await peer.heard(5)} == {"awaited"}


async def test_a_client_that_does_not_listen_must_wait(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MAX_UNSENT", 5)
    async with opened(state) as operations:
        peer = Peer(operations)
        peer.send(*({"op": "register", "id": n, "agent": "a"} for n in range(9)))
        await async_wait_until(lambda: not peer.channel._unanswered)
        assert not await _has_room(peer.channel)
        assert len(peer.take()) == 9
        assert await _has_room(peer.channel)


async def test_large_answers_are_made_one_at_a_time(state: Path) -> None:
    async with opened(state) as operations:
        await _fill(operations, "b", 10)
        await operations.mailboxes.purge("b", "operator")
        peer = Peer(operations)
        peer.send(*({"op": "peek_dead_letter", "id": n, "mailbox": "b"} for n in range(1, 6)))
        await async_wait_until(lambda: peer.channel._replies)
        await async_assert_stays_true(lambda: len(peer.channel._replies) == 1, 0.1)
        assert len(peer.take()) == 1, "the next is not made before this one is taken"
        assert [answer["re"] for answer in await peer.heard(4)] == [2, 3, 4, 5]


async def test_a_large_delivery_is_divided_into_frames(state: Path) -> None:
    async with opened(state) as operations:
        await _fill(operations, "b", 40, 60_000)
        peer = Peer(operations)
        peer.send({"op": "subscribe", "mailbox": "b", "credit": 100})
        frames: list[bytes] = []

        def last_arrived() -> bool:
            frames.extend(peer.channel.take_output())
            return b'"m:39"' in b"".join(frames)

        await async_wait_until(last_arrived)
        assert len(frames) > 3
        assert max(map(len, frames)) < 1024 * 1024


async def test_closing_leaves_no_waiter_and_no_task(state: Path) -> None:
    async with opened(state) as operations:
        peer = Peer(operations)
        for n in range(5):
            peer.send({"op": "subscribe", "mailbox": f"b{n}"})
            peer.send({"op": "dequeue", "mailbox": f"b{n}", "wait_secs": 50})
        peer.channel.close()
        later = Peer(operations)
        later.send({"op": "subscribe", "mailbox": "c"}, {"op": "await", "event_id": "x"})
        await later.heard(2)
        later.channel.close()
        await async_wait_until(lambda: not peer.channel._tasks | later.channel._tasks)
        await operations.core.commit(lambda tx: None)
        await async_wait_until(lambda: operations.core.dispatcher._waiters._waiters == set())
        await async_wait_until(lambda: operations.waits.open_waits == 0)


async def test_mail_that_comes_after_the_end_stays_where_it_is(state: Path) -> None:
    async with opened(state) as operations:
        peer = Peer(operations)
        peer.send({"op": "subscribe", "mailbox": "b"}, {"op": "dequeue", "mailbox": "c"})
        peer.channel.close()
        for box in ("b", "c"):
            await _fill(operations, box, 3)
        await operations.core.commit(lambda tx: None)
        assert {row[3] for row in dump(operations.core)["mail"]} == {0}
        assert dump(operations.core)["lease"] == []


@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("pause", [0, 0.0002, 0.0005, 0.001, 0.002, 0.004])
async def test_a_poll_broken_off_at_any_moment_gives_its_mail_back(
    state: Path, wait: float, pause: float
) -> None:
    """Before, during and after the transaction that leases, with and without waiting."""
    async with opened(state) as operations:
        await _fill(operations, "b", 1)
        peer = Peer(operations)
        peer.send({"op": "dequeue", "mailbox": "b", "wait_secs": wait})
        # The moments at which a poll is broken off are the subject.
        await asyncio.sleep(pause)
        answered = bool(peer.channel._replies)
        peer.channel.close()
        await async_wait_until(lambda: not peer.channel._tasks)
        for _ in range(3):
            # A lease is given back by a transaction that follows the one that was broken off.
            await asyncio.sleep(0.005)
            await operations.core.commit(lambda tx: None)
        rows = dump(operations.core)
        assert len(rows["lease"]) == answered
        assert rows["mail"][0][4] == 0, "no attempt was counted"


async def test_a_failing_journal_does_not_keep_a_session_from_closing(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations:
        peer = Peer(operations)
        peer.send({"op": "subscribe", "mailbox": "b"}, {"op": "subscribe", "mailbox": "c"})
        await peer.heard(2)
        waiters = [each.waiter for each in peer.channel._subscriptions._by_mailbox.values()]
        monkeypatch.setattr(operations.core.writer, "failure", "broken")
        peer.channel.close()
        assert [waiter and waiter.gone for waiter in waiters] == [True, True]
        monkeypatch.undo()


async def test_an_operation_that_fails_unexpectedly_is_answered(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(state) as operations:

        async def fail(query: object) -> None:
            raise RuntimeError("the secret inside")

        monkeypatch.setattr(operations.core, "read", fail)
        peer = Peer(operations)
        peer.send({"op": "peek", "id": 4, "mailbox": "b"})
        (answer,) = await peer.heard(1)
        assert (answer["re"], answer["error"]["code"]) == (4, "internal")
        assert "secret" not in json.dumps(answer)
        assert "the secret inside" in caplog.text


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("a bug")])
async def test_a_conversation_ends_when_either_side_does(
    state: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    async def wait_forever() -> None:
        await asyncio.Event().wait()

    async with opened(state) as operations:
        for receive, send in ((fail(), wait_forever()), (wait_forever(), fail())):
            peer = Peer(operations)
            await asyncio.wait_for(run_channel(peer.channel, receive, send), 5)
            assert peer.channel._closed
    assert ("a bug" in caplog.text) == isinstance(error, RuntimeError)


async def test_a_small_message_does_not_overtake_a_large_one(state: Path) -> None:
    async with opened(state) as operations:
        await operations.core.commit(lambda tx: operations.core.agents.register(tx, "bob"))
        peer = Peer(operations)
        for id, payload in ((1, "x" * 200_000), (2, "small")):
            new = {"from_agent": "ann", "to_agent": "bob", "payload": payload}
            peer.send({"op": "send", "id": id, "messages": [new]})
        answers = await peer.heard(2)
        assert [answer["re"] for answer in answers] == [1, 2]
        peer.channel.close()


async def test_those_who_wait_do_not_hold_up_the_others(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MAX_UNANSWERED", 3)
    async with opened(state) as operations:
        await operations.core.commit(lambda tx: operations.core.agents.register(tx, "bob"))
        peer = Peer(operations)
        peer.send(
            {"op": "send", "messages": [{"from_agent": "a", "to_agent": "bob", "payload": 1}]}
        )
        ((sent,),) = [answer["results"] for answer in await peer.heard(1)]
        peer.send(*({"op": "await", "event_id": sent["event_id"], "wait_secs": 5},) * 9)
        assert await _has_room(peer.channel)
        peer.send({"op": "register", "id": 7, "agent": "ann"})
        assert [answer["re"] for answer in await peer.heard(1)] == [7]
        peer.channel.close()


async def test_acks_behind_one_whose_reply_is_being_stored_keep_their_order(state: Path) -> None:
    async with opened(state) as operations:
        await operations.perform(Register(agent="bob"))
        news = [NewSend("al", "bob", Raw(b"1"), replies="caller") for _ in range(3)]
        sent = (await operations.perform(Send(messages=news))).results
        leased = (await operations.perform(Dequeue(mailbox="bob", limit=3))).messages
        peer = Peer(operations)
        replies = ["x" * 70_000, "small", None]
        for number, (mail, reply) in enumerate(zip(leased, replies, strict=True), 1):
            given = {} if reply is None else {mail.receipt: reply}
            ack = {"op": "ack", "mailbox": "bob", "receipts": [mail.receipt], "replies": given}
            peer.send({**ack, "id": number})
        answers = await peer.heard(3)
        assert [(each["re"], each["settled"]) for each in answers] == [(1, 1), (2, 1), (3, 1)]
        states = [(await operations.perform(Await(event_id=each.event_id))) for each in sent]
        assert [each.result.outcome for each in states] == ["ok", "ok", "ok"]
        assert states[0].result.reply_ref is not None
