"""The wire operations without a transport."""

import asyncio
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import Raw
from msgspec.structs import replace

from gatepost.errors import InvalidRequest, PayloadTooLarge, RateLimited
from gatepost.gateway.api.operations import Operations, operation_weight
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import (
    Ack,
    Await,
    Dequeue,
    Enqueue,
    Extend,
    Failed,
    Nack,
    NewMessage,
    NewSend,
    Operation,
    Peek,
    PeekDeadLetter,
    Purge,
    PurgeDeadLetter,
    Register,
    Send,
    Sent,
    Subscribe,
    Unsubscribe,
)
from tests.gateway.tools import dump, opened
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio
_LARGE = Raw(b'"' + b"x" * 70_000 + b'"')


async def _enqueue(operations: Operations, box: str, *ids: str) -> None:
    news = [NewMessage("al", box, Raw(b"1"), msg_id=id) for id in ids]
    await operations.perform(Enqueue(messages=news))


async def _send(operations: Operations, *news: NewSend) -> list[Any]:
    results: list[Any] = (await operations.perform(Send(messages=list(news)))).results
    return results


async def _lease(operations: Operations, box: str, **options: Any) -> list[Any]:
    messages: list[Any] = (await operations.perform(Dequeue(mailbox=box, **options))).messages
    return messages


async def test_every_operation_but_those_of_a_session_is_implemented(state: Path) -> None:
    async with opened(state) as operations:
        known = operations._planners.keys() | operations._performers.keys()
    assert set(get_args(Operation)) - known == {Subscribe, Unsubscribe}


async def test_enqueued_messages_are_answered_in_their_order_across_pairs(state: Path) -> None:
    async with opened(state) as operations:
        pairs = [("al", "x"), ("bo", "y"), ("al", "x"), ("al", "y")]
        news = [
            NewMessage(sender, to, Raw(b"1"), msg_id=f"m:{n}")
            for n, (sender, to) in enumerate(pairs)
        ]
        reply = await operations.perform(Enqueue(messages=news))
        assert [ack.msg_id for ack in reply.results] == ["m:0", "m:1", "m:2", "m:3"]
        assert [ack.pending for ack in reply.results] == [1, 1, 2, 2]


async def test_a_large_payload_is_refused_by_enqueue_and_stored_as_a_blob_by_send(
    state: Path,
) -> None:
    async with opened(state) as operations:
        await operations.perform(Register(agent="bob"))
        with pytest.raises(PayloadTooLarge):
            operations.plan_transaction(Enqueue(messages=[NewMessage("al", "bob", _LARGE, "m:1")]))
        send = Send(messages=[NewSend("al", "bob", _LARGE)])
        assert operations.plan_transaction(send) is None
        (sent,) = (await operations.perform(send)).results
        assert sent.state == "accepted"
        assert len(dump(operations.core)["blob"]) == 1


async def test_one_refused_message_does_not_undo_the_others_of_its_batch(state: Path) -> None:
    async with opened(state) as operations:
        await operations.perform(Register(agent="bob"))
        same = {"event_id": "01890a5d-ac96-774b-bcce-b302099a8057"}
        news = [NewSend("al", "bob", Raw(b"1"), **same), NewSend("al", "bob", Raw(b"2"), **same)]  # type: ignore[arg-type]
        first, second = await _send(operations, *news)
        assert first.state == "accepted"
        assert second.error is not None and second.error.code == "idempotency_conflict"
        assert [m.payload for m in await _lease(operations, "bob", limit=10)] == [Raw(b"1")]


async def test_a_waiting_dequeue_gets_the_mail_that_comes(state: Path) -> None:
    async with opened(state) as operations:
        waiting = asyncio.create_task(_lease(operations, "b", wait_secs=10))
        await async_wait_until(lambda: operations.waits.open_waits)
        await _enqueue(operations, "b", "m:1")
        assert [m.msg_id for m in await waiting] == ["m:1"]
        assert operations.waits.open_waits == 0


async def test_stopping_ends_waits_with_the_reply_for_a_timeout(state: Path) -> None:
    async with opened(state) as operations:
        waiting = asyncio.create_task(_lease(operations, "b", wait_secs=60))
        await async_wait_until(lambda: operations.waits.open_waits)
        operations.waits.end_waits()
        assert await waiting == []
        assert await asyncio.wait_for(_lease(operations, "b", wait_secs=60), 5) == []


async def test_no_wait_is_longer_than_the_limit(state: Path) -> None:
    async with opened(state, limits__long_poll_max_secs=0.05) as operations:
        assert await asyncio.wait_for(_lease(operations, "b", wait_secs=3600), 5) == []


async def test_mail_for_a_dequeue_that_was_given_up_is_there_for_the_next(state: Path) -> None:
    async with opened(state) as operations:
        waiting = asyncio.create_task(_lease(operations, "b", wait_secs=60))
        await async_wait_until(lambda: operations.waits.open_waits)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await _enqueue(operations, "b", "m:1")
        assert [m.msg_id for m in await _lease(operations, "b")] == ["m:1"]


async def test_leases_are_extended_and_settled_by_their_handles(state: Path) -> None:
    async with opened(state) as operations:
        await _enqueue(operations, "b", "m:1")
        (message,) = await _lease(operations, "b")
        handles = [message.receipt]
        assert (await operations.perform(Extend(mailbox="b", receipts=handles))).settled == 1
        assert (await operations.perform(Ack(mailbox="b", receipts=handles))).settled == 1
        again = await operations.perform(Nack(mailbox="b", receipts=handles))
        assert (again.settled, [f.code for f in again.failures]) == (0, ["stale_receipt"])
        stale = await operations.perform(Extend(mailbox="b", receipts=handles))
        assert (stale.settled, [f.code for f in stale.failures]) == (0, ["stale_receipt"])


@pytest.mark.parametrize("kind", [Ack, Nack])
async def test_settling_names_at_least_one_message(state: Path, kind: Any) -> None:
    async with opened(state) as operations:
        with pytest.raises(InvalidRequest, match="at least one"):
            operations.plan_transaction(kind(mailbox="b"))


async def test_dead_letters_are_found_replayed_and_discarded_in_batches(state: Path) -> None:
    async with opened(state, journal__sweep_batch=2) as operations:
        letters, everything = operations.dead_letters, DeadLetterFilter()
        await _enqueue(operations, "b", *(f"m:{n}" for n in range(5)))
        assert (await operations.perform(Purge(mailbox="b"))).count == 5
        found = (await operations.perform(PeekDeadLetter(mailbox="b"))).messages
        assert [letter.msg_id for letter in found] == [f"m:{n}" for n in range(5)]
        acks = await letters.replay("b", DeadLetterFilter(), 3, None, "operator")
        assert len(acks) == 3
        assert len((await operations.perform(Peek(mailbox="b"))).messages) == 3
        assert len(await letters.find("b", DeadLetterFilter(replayed=False), 10)) == 2
        assert await letters.discard("b", DeadLetterFilter(replayed=False), "operator") == 2
        assert (await operations.perform(PurgeDeadLetter(mailbox="b"))).count == 3
        assert await letters.find("b", everything, 10) == []


async def test_an_unknown_mailbox_is_empty_and_stays_unknown(state: Path) -> None:
    async with opened(state) as operations:
        assert await _lease(operations, "nowhere") == []
        assert (await operations.perform(Peek(mailbox="nowhere"))).messages == []
        assert (await operations.perform(Purge(mailbox="nowhere"))).count == 0
        assert (await operations.perform(PeekDeadLetter(mailbox="nowhere"))).messages == []
        assert (await operations.perform(PurgeDeadLetter(mailbox="nowhere"))).count == 0
        assert dump(operations.core)["mailbox"] == []


async def test_await_returns_when_the_turn_has_ended_or_time_is_up(state: Path) -> None:
    async with opened(state) as operations:
        await operations.perform(Register(agent="bob"))
        (sent,) = await _send(operations, NewSend("al", "bob", Raw(b"1")))
        early = await operations.perform(Await(event_id=sent.event_id, wait_secs=0.01))
        assert early.result.state == "accepted"
        waiting = asyncio.create_task(
            operations.perform(Await(event_id=sent.event_id, wait_secs=30))
        )
        (message,) = await _lease(operations, "bob")
        await operations.perform(Ack(mailbox="bob", receipts=[message.receipt]))
        assert (await waiting).result.state == "processed"


async def test_a_wait_that_runs_out_tells_how_far_the_message_is_by_then(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations:
        await operations.perform(Register(agent="bob"))
        (sent,) = await _send(operations, NewSend("al", "bob", Raw(b"1")))
        sent_messages, wait = operations.core.delivery.sent, operations.core.delivery.sent.wait

        def wait_since_before_it_was_accepted(*arguments: Any) -> Sent:
            return replace(wait(*arguments), state="emitted", accepted_at=None)

        monkeypatch.setattr(sent_messages, "wait", wait_since_before_it_was_accepted)
        awaited = await operations.perform(Await(event_id=sent.event_id, wait_secs=0.01))
        assert (awaited.result.state, awaited.result.accepted_at) == ("accepted", sent.accepted_at)


async def test_waiting_for_receipts_covers_every_copy(state: Path) -> None:
    async with opened(state) as operations:
        for agent in ("bob", "eve"):
            await operations.perform(Register(agent=agent))
        (sent,) = await _send(
            operations, NewSend("al", payload=Raw(b"1"), to_agents=["bob", "eve"])
        )
        waiting = asyncio.create_task(operations.sends.wait_for_receipts(sent, "processed", 30))
        for agent in ("bob", "eve"):
            (message,) = await _lease(operations, agent)
            await operations.perform(Ack(mailbox=agent, receipts=[message.receipt]))
        copies = (await waiting).copies
        assert [(c.to_agent, c.state) for c in copies] == [
            ("bob", "processed"),
            ("eve", "processed"),
        ]


async def test_an_answer_reports_errors_and_hides_unexpected_ones(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations:
        refused = await operations.answer(Ack(mailbox="b", id=7))
        assert isinstance(refused, Failed)
        assert (refused.re, refused.error.code) == (7, "invalid_request")

        async def fail(query: object) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr(operations.core, "read", fail)
        failed = await operations.answer(Peek(mailbox="b", id=8))
        assert isinstance(failed, Failed)
        assert (failed.re, failed.error.code) == (8, "internal")
        assert "secret" not in failed.error.message


@pytest.mark.parametrize(
    ("op", "weight"),
    [
        (Peek(mailbox="b"), 1),
        (Enqueue(messages=[NewMessage("al", "b", Raw(b"1"), "m:1")] * 3), 3),
        (Send(messages=[NewSend("al", to_agents=["b", "c"]), NewSend("al", "b")]), 3),
    ],
)
async def test_an_operation_costs_a_token_per_message(state: Path, op: Op, weight: int) -> None:
    assert operation_weight(op) == weight
    async with opened(state, limits__rate_per_sec=0.001, limits__burst=weight) as operations:
        operations.admit(op)
        with pytest.raises(RateLimited):
            operations.admit(op)
