"""Sending between agents of one gateway: receipts, replies, expiry and replay."""

import asyncio
import json

import msgspec
import pytest
from msgspec import UNSET, Raw

from gatepost.errors import MailboxFull, UnknownAgent
from gatepost.events import genesis_chain, verify_group
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.testing import ManualClock
from gatepost.wire.operations import Enqueue, NewMessage, Sent
from tests.delivery.post import Post
from tests.journal.outbox_reader import read_heads

pytestmark = pytest.mark.anyio


async def _kill(post: Post, clock: ManualClock) -> Sent:
    sent = await post.send("fragile", corr_id="talk:1")
    for delay in (5, 10, 20, 0):
        (mail,) = await post.take()
        await post.nack(mail)
        clock.advance(delay * 1000)
    status = await post.status(sent.event_id)
    assert status.outcome == "dead_letter"
    return sent


async def test_sending_appends_the_event_and_its_first_receipt(post: Post) -> None:
    sent = await post.send({"n": 1})
    message, receipt = await post.outbox()
    assert (message.kind, message.event_id, message.pair_seq) == ("message", sent.event_id, 1)
    assert (receipt.kind, receipt.ref_event_id) == ("ack", sent.event_id)
    assert msgspec.json.decode(receipt.payload) == {"status": "accepted"}
    assert b'"n"' not in bytes(message.payload), "payloads are encrypted"
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


async def test_a_reply_for_a_caller_that_waits_is_no_mail(post: Post) -> None:
    sent = await post.send("question", replies="caller")
    waiting = asyncio.create_task(post.status(sent.event_id, 10))
    await post.wait_for_callers(sent.event_id, 1)
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


async def test_a_reply_that_meets_a_full_mailbox_waits_and_the_turn_ends(post: Post) -> None:
    sent = await post.send()
    (mail,) = await post.take()
    for n in range(5):
        new = NewMessage("x", "al", Raw(b"1"), msg_id=f"fill:{n}")
        await post.operations.perform(Enqueue(messages=[new]))
    await post.ack(mail, "answer")
    assert (await post.status(sent.event_id)).state == "replied"
    filling = await post.take("al", 5)
    await post.ack(filling[0])
    (reply,) = await post.take("al", 6)
    assert (reply.from_, bytes(reply.payload)) == ("bob", b'"answer"')


async def test_a_message_to_an_unknown_agent_is_an_error(post: Post) -> None:
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
    ((key,),) = await post.core.read(lambda tx: tx.fetch_all("SELECT key FROM blob"))
    content = b"".join(post.core.blobs.read_payload(info["payload_ref"], key))
    assert json.loads(content) == large
    event = (await post.outbox())[0]
    assert event.payload_ref is not None
    assert event.payload_ref.digest == info["payload_ref"]


async def test_expiry_is_told_to_the_sender(post: Post, clock: ManualClock) -> None:
    sent = await post.send(ttl_secs=10)
    waiting = asyncio.create_task(post.status(sent.event_id, 10))
    await post.wait_for_callers(sent.event_id, 1)
    clock.advance(11_000)
    post.core.submit(lambda tx: None)
    status = await waiting
    assert (status.state, status.outcome) == ("processed", "expired")


async def test_replaying_a_dead_event_is_a_new_event_caused_by_the_old(
    post: Post, clock: ManualClock
) -> None:
    sent = await _kill(post, clock)
    (ack,) = await post.operations.dead_letters.replay(
        "bob", DeadLetterFilter(), 10, None, "operator"
    )
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
    (ack,) = await post.operations.dead_letters.replay(
        "bob", DeadLetterFilter(), 10, None, "operator"
    )
    assert ack.error is not None
    assert ack.error.code == "mailbox_full"
    await post.take("bob", 5)
    (ack,) = await post.operations.dead_letters.replay(
        "bob", DeadLetterFilter(), 10, None, "operator"
    )
    assert ack.queued


async def test_replaying_to_a_removed_agent_is_refused(post: Post, clock: ManualClock) -> None:
    await _kill(post, clock)
    await post.core.commit(lambda tx: post.core.agents.remove(tx, "bob", "operator"))
    (ack,) = await post.operations.dead_letters.replay(
        "bob", DeadLetterFilter(), 10, None, "operator"
    )
    assert ack.error is not None
    assert ack.error.code == "unknown_agent"


async def test_a_replayed_blob_is_still_there(post: Post, clock: ManualClock) -> None:
    await post.send("x" * 70_000)
    await post.operations.mailboxes.purge("bob", "operator")
    await post.operations.dead_letters.replay("bob", DeadLetterFilter(), 10, None, "operator")
    (mail,) = await post.take()
    assert b'"payload_ref"' in bytes(msgspec.json.encode(mail.event))


async def test_the_outbox_of_all_this_is_one_signed_chain(post: Post, clock: ManualClock) -> None:
    await _kill(post, clock)
    await post.operations.dead_letters.replay("bob", DeadLetterFilter(), 10, None, "operator")
    node = post.core.node
    groups = await post.core.read(lambda tx: list(read_heads(tx, node.id, node.incarnation)))
    chain = genesis_chain(node.id, node.incarnation)
    for head, digests in groups:
        chain = verify_group(chain, digests, head, node.key.public)
    events = await post.outbox()
    assert groups[-1][0].last == len(events)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_a_reply_over_the_inline_limit_becomes_a_blob(post: Post) -> None:
    sent = await post.send("question")
    answer = "y" * 70_000
    await post.ack((await post.take())[0], answer)
    status = await post.status(sent.event_id)
    assert (status.state, status.reply) == ("replied", UNSET)
    (mail,) = await post.take("al")
    info = msgspec.json.decode(bytes(msgspec.json.encode(mail.event)))
    assert (info["kind"], info["payload_ref"]) == ("reply", status.reply_ref)
    ((key,),) = await post.core.read(lambda tx: tx.fetch_all("SELECT key FROM blob"))
    content = b"".join(post.core.blobs.read_payload(info["payload_ref"], key))
    assert json.loads(content) == answer


async def test_a_reply_that_no_agent_takes_is_no_turn(post: Post) -> None:
    await post.send("question", from_agent="stranger")
    await post.ack((await post.take())[0], "answer")
    events = await post.outbox()
    (reply,) = (event.event_id for event in events if event.kind == "reply")
    receipts = [event.payload for event in events if event.ref_event_id == reply]
    ends = [msgspec.json.decode(bytes(payload)) for payload in receipts]
    assert [end.get("outcome") for end in ends] == [None, "kept"]
