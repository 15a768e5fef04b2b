"""Sending between agents: receipts, replies, idempotency, replay, and who waits for the end."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from msgspec import Raw

from gatepost.errors import GatepostError, IdempotencyConflict, MailboxFull, UnknownAgent
from gatepost.events import EventIds, decode, genesis, verify_group
from gatepost.gateway.operations import Operations
from gatepost.journal.outbox import heads
from gatepost.mailbox.deadletters import Filter
from gatepost.testing import ManualClock
from gatepost.wire import (
    Ack,
    Await,
    Dequeue,
    Enqueue,
    Message,
    Nack,
    NewMessage,
    NewSend,
    Register,
    Send,
    Sent,
)
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
async def post(tmp_path: Path, clock: ManualClock) -> AsyncIterator["Post"]:
    async with opened(tmp_path / "state", clock, mailbox__max_pending=5) as operations:
        found = Post(operations)
        for agent in ("al", "bob"):
            await operations.perform(Register(agent=agent))
        yield found


class Post:
    """Two agents, `al` and `bob`, and what they do with each other's mail."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.core = operations.core

    async def send(self, payload: object = "hi", **fields: Any) -> Sent:
        given = {"from_agent": "al", "to_agent": "bob"} | fields
        if "payload_ref" not in fields:
            given["payload"] = Raw(json.dumps(payload).encode())
        reply = await self.operations.perform(Send(messages=[NewSend(**given)]))
        (sent,) = reply.results
        if sent.error is not None:
            raise sent.error.error()
        assert isinstance(sent, Sent)
        return sent

    async def take(self, agent: str = "bob", limit: int = 1) -> list[Message]:
        reply = await self.operations.perform(Dequeue(mailbox=agent, limit=limit))
        messages: list[Message] = reply.messages
        return messages

    async def ack(self, message: Message, reply: object = None) -> None:
        replies = {} if reply is None else {message.receipt: Raw(json.dumps(reply).encode())}
        op = Ack(mailbox=message.to, receipts=[message.receipt], replies=replies)
        assert (await self.operations.perform(op)).settled == 1

    async def nack(self, message: Message) -> None:
        op = Nack(mailbox=message.to, receipts=[message.receipt], reason="broken")
        assert (await self.operations.perform(op)).settled == 1

    async def status(self, event_id: str, wait: float = 0.0) -> Sent:
        reply = await self.operations.perform(Await(event_id=event_id, wait_secs=wait))
        assert isinstance(reply.result, Sent)
        return reply.result

    async def outbox(self) -> list[Any]:
        rows = await self.core.read(lambda tx: tx.rows("SELECT body FROM outbox ORDER BY seq"))
        return [decode(row[0]) for row in rows]


async def test_sending_appends_the_event_and_its_first_receipt(post: Post) -> None:
    sent = await post.send({"n": 1})
    message, receipt = await post.outbox()
    assert (message.kind, message.event_id, message.pair_seq) == ("message", sent.event_id, 1)
    assert (receipt.kind, receipt.ref_event_id) == ("ack", sent.event_id)
    assert msgspec.json.decode(receipt.payload) == {"status": "accepted"}
    assert b'"n"' not in bytes(message.payload), "payloads are sealed"
    (mail,) = await post.take()
    assert (mail.msg_id, bytes(mail.payload)) == (sent.event_id, b'{"n": 1}')


async def test_the_end_of_a_turn_is_the_second_receipt(post: Post) -> None:
    sent = await post.send()
    await post.ack((await post.take())[0])
    status = await post.status(sent.event_id)
    assert (status.state, status.outcome) == ("processed", "ok")
    last = (await post.outbox())[-1]
    assert msgspec.json.decode(last.payload) == {"status": "processed", "outcome": "ok"}


async def test_a_reply_is_mail_for_the_sender(post: Post) -> None:
    sent = await post.send("question")
    await post.ack((await post.take())[0], {"answer": 42})
    (reply,) = await post.take("al")
    info = msgspec.json.decode(bytes(msgspec.json.encode(reply.event)))
    assert (reply.from_, bytes(reply.payload)) == ("bob", b'{"answer": 42}')
    assert (info["kind"], info["ref_event_id"], info["corr_id"]) == (
        "reply",
        sent.event_id,
        sent.corr_id,
    )


async def test_a_reply_for_a_caller_who_waits_is_no_mail(post: Post) -> None:
    sent = await post.send("question", replies="caller")
    waiting = asyncio.create_task(post.status(sent.event_id, 10))
    await asyncio.sleep(0.05)
    await post.ack((await post.take())[0], "answer")
    assert bytes(msgspec.json.encode((await waiting).reply)) == b'"answer"'
    assert await post.take("al") == []
    kinds = [event.kind for event in await post.outbox()]
    assert kinds == ["message", "ack", "reply", "ack", "ack", "ack"]


async def test_a_reply_to_somebody_unregistered_is_kept_with_the_status(post: Post) -> None:
    sent = await post.send("question", from_agent="stranger")
    await post.ack((await post.take())[0], "answer")
    status = await post.status(sent.event_id)
    assert bytes(msgspec.json.encode(status.reply)) == b'"answer"'
    assert await post.take("stranger") == []


async def test_an_ack_whose_reply_finds_no_room_changes_nothing(post: Post) -> None:
    await post.send()
    (mail,) = await post.take()
    for n in range(5):
        new = NewMessage("x", "al", Raw(b"1"), msg_id=f"fill:{n}")
        await post.operations.perform(Enqueue(messages=[new]))
    with pytest.raises(MailboxFull):
        await post.ack(mail, "answer")
    await post.take("al", 5)
    await post.ack(mail, "answer")


async def test_the_conversation_is_named_after_its_first_message(post: Post) -> None:
    first = await post.send()
    assert first.corr_id == first.event_id
    assert (await post.send(corr_id="talk:1")).corr_id == "talk:1"


async def test_the_same_key_and_body_is_the_same_message(post: Post) -> None:
    first = await post.send("hi", idempotency_key="k")
    again = await post.send("hi", idempotency_key="k")
    assert again.event_id == first.event_id
    assert len(await post.take("bob", 5)) == 1


async def test_the_same_key_with_a_large_body_is_the_same_message(post: Post) -> None:
    large = "x" * 100_000
    first = await post.send(large, idempotency_key="k")
    assert (await post.send(large, idempotency_key="k")).event_id == first.event_id
    with pytest.raises(IdempotencyConflict):
        await post.send(large + "y", idempotency_key="k")


async def test_the_same_key_with_another_body_or_receiver_is_a_conflict(post: Post) -> None:
    await post.send("hi", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await post.send("ho", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await post.send("hi", idempotency_key="k", to_agent="al")
    other = await post.send("ho", idempotency_key="k", from_agent="bob", to_agent="al")
    assert other.state == "accepted", "a key belongs to its sender"


async def test_an_event_id_makes_a_send_repeatable(post: Post, clock: ManualClock) -> None:
    id = EventIds(clock).next()
    await post.send("hi", event_id=id)
    assert (await post.send("hi", event_id=id)).event_id == id
    assert len(await post.take("bob", 5)) == 1
    with pytest.raises(IdempotencyConflict):
        await post.send("hi", event_id=id, to_agent="al")
    with pytest.raises(IdempotencyConflict):
        await post.send("ho", event_id=id)
    with pytest.raises(IdempotencyConflict):
        await post.send("hi", event_id=id, to_agent="al", idempotency_key="new")


async def test_nothing_is_sent_to_nobody(post: Post) -> None:
    with pytest.raises(UnknownAgent):
        await post.send(to_agent="nobody")
    assert await post.outbox() == []


async def test_a_full_mailbox_refuses_and_leaves_no_trace(post: Post) -> None:
    for _ in range(5):
        await post.send()
    events = len(await post.outbox())
    with pytest.raises(MailboxFull):
        await post.send(idempotency_key="k")
    assert len(await post.outbox()) == events
    await post.take("bob", 5)
    await post.send("other", idempotency_key="k")


async def test_a_payload_over_the_inline_limit_becomes_a_blob(post: Post) -> None:
    large = "x" * 70_000
    await post.send(large)
    (mail,) = await post.take()
    info = msgspec.json.decode(bytes(msgspec.json.encode(mail.event)))
    assert bytes(mail.payload) == b"null"
    ((key,),) = await post.core.read(lambda tx: tx.rows("SELECT key FROM blob"))
    content = b"".join(post.core.blobs.read(info["payload_ref"], key))
    assert json.loads(content) == large
    event = (await post.outbox())[0]
    assert event.payload_ref is not None
    assert event.payload_ref.digest == info["payload_ref"]


async def test_expiry_is_told_to_the_sender(post: Post, clock: ManualClock) -> None:
    sent = await post.send(ttl_secs=10)
    waiting = asyncio.create_task(post.status(sent.event_id, 10))
    await asyncio.sleep(0.05)
    clock.advance(11_000)
    post.core.writer.wake()
    status = await waiting
    assert (status.state, status.outcome) == ("processed", "expired")


async def _kill(post: Post, clock: ManualClock) -> Sent:
    sent = await post.send("fragile", corr_id="talk:1")
    for delay in (5, 10, 20, 0):
        (mail,) = await post.take()
        await post.nack(mail)
        clock.advance(delay * 1000)
    status = await post.status(sent.event_id)
    assert status.outcome == "dead_letter"
    return sent


async def test_replaying_a_dead_event_is_a_new_event_caused_by_the_old(
    post: Post, clock: ManualClock
) -> None:
    sent = await _kill(post, clock)
    (ack,) = await post.operations.replay("bob", Filter(), 10, None, "operator")
    assert (ack.queued, ack.pending) == (True, 1)
    assert ack.msg_id != sent.event_id
    event = next(e for e in await post.outbox() if e.event_id == ack.msg_id)
    assert (event.causation_id, event.corr_id, event.kind) == (sent.event_id, "talk:1", "message")
    (mail,) = await post.take()
    assert (mail.msg_id, bytes(mail.payload), mail.attempt) == (ack.msg_id, b'"fragile"', 0)
    await post.ack(mail)
    assert (await post.status(ack.msg_id)).outcome == "ok"
    assert (await post.status(sent.event_id)).outcome == "dead_letter"


async def test_replaying_into_a_full_mailbox_says_so_and_loses_nothing(
    post: Post, clock: ManualClock
) -> None:
    await _kill(post, clock)
    for _ in range(5):
        await post.send()
    (ack,) = await post.operations.replay("bob", Filter(), 10, None, "operator")
    assert ack.error is not None
    assert ack.error.code == "mailbox_full"
    await post.take("bob", 5)
    (ack,) = await post.operations.replay("bob", Filter(), 10, None, "operator")
    assert ack.queued


async def test_replaying_to_a_removed_agent_is_refused(post: Post, clock: ManualClock) -> None:
    await _kill(post, clock)
    await post.core.commit(lambda tx: post.core.agents.remove(tx, "bob", "operator"))
    (ack,) = await post.operations.replay("bob", Filter(), 10, None, "operator")
    assert ack.error is not None
    assert ack.error.code == "unknown_agent"


async def test_a_replayed_blob_is_still_there(post: Post, clock: ManualClock) -> None:
    await post.send("x" * 70_000)
    await post.operations.purge("bob", "operator")
    await post.operations.replay("bob", Filter(), 10, None, "operator")
    (mail,) = await post.take()
    assert b'"payload_ref"' in bytes(msgspec.json.encode(mail.event))


async def test_whoever_waits_hears_of_the_end_once_and_is_forgotten(post: Post) -> None:
    sent = await post.send()
    waiting = [asyncio.create_task(post.status(sent.event_id, 10)) for _ in range(3)]
    await asyncio.sleep(0.05)
    await post.ack((await post.take())[0])
    assert [status.state for status in await asyncio.gather(*waiting)] == ["processed"] * 3
    assert post.core.delivery.sent._waiting == {}


async def test_who_stops_waiting_leaves_nothing_behind(post: Post) -> None:
    sent = await post.send()
    await post.status(sent.event_id)
    await post.status(sent.event_id, 0.01)
    for pause in (0, 0, 0.05):
        waiting = asyncio.create_task(post.status(sent.event_id, 10))
        await asyncio.sleep(pause)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await post.core.commit(lambda tx: None)
    assert post.core.delivery.sent._waiting == {}


async def test_a_group_that_fails_wakes_nobody_and_forgets_no_one(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await post.send()
    (mail,) = await post.take()
    waiting = asyncio.create_task(post.status(sent.event_id, 10))
    while sent.event_id not in post.core.delivery.sent._waiting:
        await asyncio.sleep(0.01)

    def fail(tx: object) -> None:
        monkeypatch.undo()
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(post.core.coordinator, "before_commit", fail)
    with pytest.raises(GatepostError):
        await post.ack(mail)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    post.core.writer.wake()
    while post.core.writer.failure is not None:
        await asyncio.sleep(0.01)
    await post.ack(mail)
    assert (await waiting).state == "processed"


async def test_the_outbox_of_all_this_is_one_signed_chain(post: Post, clock: ManualClock) -> None:
    await _kill(post, clock)
    await post.operations.replay("bob", Filter(), 10, None, "operator")
    node = post.core.node
    groups = await post.core.read(lambda tx: list(heads(tx, node.id, node.incarnation)))
    chain = genesis(node.id, node.incarnation)
    for head, digests in groups:
        chain = verify_group(chain, digests, head, node.key.public)
    events = await post.outbox()
    assert groups[-1][0].last == len(events)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
