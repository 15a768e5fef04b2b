"""Dead letters: kept, found, replayed, discarded; and purging, which makes them."""

import pytest

from gatepost.errors import UnknownMessage
from gatepost.journal import Tx
from gatepost.mailbox import MailboxPolicy, NewMail, dead_letters, sweep
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.wire.operations import DeadLetter, EnqueueAck
from tests.mailbox.harness import START, MailboxHarness


def dead_post(*msg_ids: str, by: str = "alice") -> MailboxHarness:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    for msg_id in msg_ids:
        kill(harness, msg_id, by=by)
    return harness


def kill(harness: MailboxHarness, msg_id: str, by: str = "alice", reason: str = "boom") -> None:
    harness.send(msg_id, by=by, payload=f'"{msg_id}"'.encode())
    harness.nack(*harness.dequeue(), reason=reason)
    harness.clock.advance(1_000)


def names(letters: list[DeadLetter]) -> list[str]:
    return [letter.msg_id for letter in letters]


def discard(harness: MailboxHarness, wanted: DeadLetterFilter, limit: int = 100) -> int:
    return harness.do(
        lambda tx: dead_letters.discard_dead_letters(
            tx, harness.dispatcher.mailbox_ref(tx, "bob").id, wanted, limit, "olga"
        )
    )


def replay(harness: MailboxHarness, wanted: DeadLetterFilter, limit: int = 100) -> list[EnqueueAck]:
    def resend(tx: Tx, letter: DeadLetter, meta: bytes | None) -> EnqueueAck:
        mail = NewMail(f"{letter.msg_id}-again", bytes(letter.payload))  # type: ignore[arg-type]
        return harness.dispatcher.enqueue(tx, letter.to, letter.from_, [mail])[0]

    return harness.do(
        lambda tx: dead_letters.replay_dead_letters(
            tx, harness.dispatcher.mailbox_ref(tx, "bob").id, wanted, limit, resend, "olga"
        )
    )


def audits(harness: MailboxHarness) -> list[tuple[object, ...]]:
    return harness.sql("SELECT actor, action, subject, detail FROM audit ORDER BY id")


def test_dead_letter_keeps_everything() -> None:
    harness = dead_post("a")
    (letter,) = harness.dead()
    assert (letter.msg_id, letter.from_, letter.to, letter.created_at, letter.failed_at) == (
        "a", "alice", "bob", START // 1000, START // 1000,
    )  # fmt: skip
    assert (letter.attempts, letter.attempt, letter.replayed_as) == (1, 0, None)
    assert bytes(letter.payload) == b'"a"'  # type: ignore[arg-type]


def test_dead_letters_have_no_ttl() -> None:
    harness = dead_post("a")
    harness.tick(10 * 365 * 86_400_000)
    harness.do(lambda tx: sweep.forget_settled_mail(tx, tx.now, tx.now, 100))
    assert names(harness.dead()) == ["a"]


def test_dead_letters_are_listed_oldest_first_in_pages() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    for n, by in enumerate(["zoe", "alice", "zoe", "bert", "alice"]):
        kill(harness, f"m{n}", by=by)
    found, after = [], ""
    while page := names(harness.dead(limit=2, after=after)):
        found += page
        after = page[-1]
    assert found == [f"m{n}" for n in range(5)]


def test_page_goes_on_behind_a_dead_letter_that_was_discarded() -> None:
    harness = dead_post("a", "b", "c")
    discard(harness, DeadLetterFilter(msg_ids=["b"]))
    assert names(harness.dead(after="b")) == ["c"]


def test_page_behind_an_unknown_message_is_refused() -> None:
    harness = dead_post("a")
    harness.send("waiting")
    for msg_id in ("nobody", "waiting"):
        with pytest.raises(UnknownMessage):
            harness.dead(after=msg_id)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (DeadLetterFilter(), ["a", "b", "c"]),
        (DeadLetterFilter(msg_ids=["c", "a"]), ["a", "c"]),
        (DeadLetterFilter(msg_ids=[]), []),
        (DeadLetterFilter(sender="carol"), ["c"]),
        (DeadLetterFilter(reason_contains="time"), ["b"]),
        (DeadLetterFilter(failed_after=START // 1000), ["b", "c"]),
        (DeadLetterFilter(failed_before=START // 1000 + 2), ["a", "b"]),
        (DeadLetterFilter(replayed=True), ["a"]),
        (DeadLetterFilter(replayed=False), ["b", "c"]),
        (DeadLetterFilter(sender="alice", replayed=False), ["b"]),
    ],
)
def test_filter_finds_what_meets_all_conditions(
    wanted: DeadLetterFilter, expected: list[str]
) -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    kill(harness, "a", reason="boom")
    kill(harness, "b", reason="no time")
    kill(harness, "c", by="carol")
    replay(harness, DeadLetterFilter(msg_ids=["a"]))
    assert names(harness.dead(wanted)) == expected


def test_replay_is_a_new_message_and_keeps_the_dead_letter() -> None:
    harness = dead_post("a")
    (ack,) = replay(harness, DeadLetterFilter())
    assert (ack.msg_id, ack.queued) == ("a-again", True)
    (letter,) = harness.dead()
    assert (letter.msg_id, letter.replayed_as) == ("a", "a-again")
    (message,) = harness.dequeue()
    assert (message.msg_id, message.from_, message.attempt) == ("a-again", "alice", 0)
    assert message.created_at == START // 1000 + 1
    assert bytes(message.payload) == b'"a"'
    assert harness.states() == {"a": "dead_letter", "a-again": "in_flight"}


def test_replay_takes_no_more_than_its_limit() -> None:
    harness = dead_post("a", "b", "c")
    assert [ack.msg_id for ack in replay(harness, DeadLetterFilter(replayed=False), 2)] == [
        "a-again",
        "b-again",
    ]
    assert [ack.msg_id for ack in replay(harness, DeadLetterFilter(replayed=False), 2)] == [
        "c-again"
    ]


def test_replay_wakes_a_waiter() -> None:
    harness = dead_post("a")
    _, got = harness.waiter()
    replay(harness, DeadLetterFilter())
    assert [message.msg_id for message in got] == ["a-again"]


def test_replay_into_a_full_mailbox_leaves_the_dead_letter_as_it_was() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0, max_pending=1))
    kill(harness, "a")
    harness.send("b")
    (ack,) = replay(harness, DeadLetterFilter())
    assert ack.error is not None
    assert ack.error.code == "mailbox_full"
    assert harness.dead()[0].replayed_as is None
    assert audits(harness) == []


def test_discard_drops_the_payload_and_remembers_the_id() -> None:
    harness = dead_post("a", "b")
    assert discard(harness, DeadLetterFilter(msg_ids=["a"])) == 1
    assert names(harness.dead()) == ["b"]
    assert harness.sql("SELECT count(*) FROM body") == [(1,)]
    assert harness.counts() == (0, 0, 1)
    assert harness.send("a", payload=b'"a"') == [False]


def test_discarded_id_is_forgotten_with_the_others() -> None:
    harness = dead_post("a")
    discard(harness, DeadLetterFilter())
    harness.do(lambda tx: sweep.forget_settled_mail(tx, tx.now - 1, tx.now - 1, 100))
    assert harness.states() == {"a": "dead_letter"}
    harness.do(lambda tx: sweep.forget_settled_mail(tx, tx.now, tx.now, 100))
    assert harness.states() == {}


def test_every_act_is_audited() -> None:
    harness = dead_post("a", "b")
    replay(harness, DeadLetterFilter(msg_ids=["a"]))
    discard(harness, DeadLetterFilter(msg_ids=["b"]))
    harness.purge()
    assert audits(harness) == [
        ("olga", "dead_letter.replay", "a", "as a-again"),
        ("olga", "dead_letter.discard", "b", "max_retries exhausted: boom"),
        ("operator", "mailbox.purge", "bob", "1 messages"),
    ]


def test_purge_keeps_mail_as_dead_letters() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", meta=b"{}")
    harness.nack(*harness.dequeue())
    assert harness.purge() == 2
    assert harness.counts() == (0, 0, 2)
    assert [(x.msg_id, x.reason, x.attempts) for x in harness.dead()] == [
        ("a", "purged by operator", 1),
        ("b", "purged by operator", 0),
    ]
    assert [(c.msg_id, c.outcome, c.reason) for c in harness.closed] == [
        ("a", "dead_letter", "purged"),
        ("b", "dead_letter", "purged"),
    ]


def test_purge_leaves_what_is_leased() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c")
    (a,) = harness.dequeue()
    assert harness.purge() == 2
    assert harness.states() == {"a": "in_flight", "b": "dead_letter", "c": "dead_letter"}
    harness.send("d")
    assert harness.ack(a).settled == 1
    assert harness.take() == ["d"]


def test_purge_goes_in_batches_and_stops_when_nothing_waits() -> None:
    harness = MailboxHarness()
    for by in ("alice", "carol"):
        harness.send(*(f"{by}{n}" for n in range(4)), by=by)
    harness.dequeue()
    assert [harness.purge(3) for _ in range(4)] == [3, 3, 1, 0]
    assert len(audits(harness)) == 3
    assert harness.counts() == (0, 1, 7)


def test_purge_in_batches_behind_a_lease() -> None:
    harness = MailboxHarness()
    harness.send("a", "b", "c", "d")
    harness.dequeue()
    assert [harness.purge(2), harness.purge(2)] == [2, 1]
    # Nobody steps over what was purged ever again.
    assert harness.sql("SELECT behind = (SELECT max(id) + 1 FROM mail) FROM lease") == [(1,)]


def test_partial_purge_wakes_a_waiter_for_what_it_uncovers() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    _, got = harness.waiter(1)
    harness.nack(*got)
    assert harness.purge(1) == 1
    assert [message.msg_id for message in got] == ["a", "b"]


def test_purge_of_one_mailbox_leaves_the_others() -> None:
    harness = MailboxHarness()
    harness.send("a", to="bob")
    harness.send("b", to="carol")
    harness.purge()
    assert harness.states() == {"a": "dead_letter", "b": "pending"}
