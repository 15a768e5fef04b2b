"""Dead letters: kept, found, replayed, discarded; and purging, which makes them."""

import pytest

from gatepost.errors import UnknownMessage
from gatepost.journal import Tx
from gatepost.mailbox import MailboxPolicy, NewMail, dead_letters, sweep
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.wire import DeadLetter, EnqueueAck
from tests.mailbox.post import START, Post


def dead_post(*msg_ids: str, by: str = "alice") -> Post:
    post = Post(MailboxPolicy(max_retries=0))
    for msg_id in msg_ids:
        kill(post, msg_id, by=by)
    return post


def kill(post: Post, msg_id: str, by: str = "alice", reason: str = "boom") -> None:
    post.send(msg_id, by=by, payload=f'"{msg_id}"'.encode())
    post.nack(*post.dequeue(), reason=reason)
    post.clock.advance(1_000)


def names(letters: list[DeadLetter]) -> list[str]:
    return [letter.msg_id for letter in letters]


def discard(post: Post, wanted: DeadLetterFilter, limit: int = 100) -> int:
    return post.do(
        lambda tx: dead_letters.discard_dead_letters(
            tx, post.dispatcher.mailbox_ref(tx, "bob").id, wanted, limit, "olga"
        )
    )


def replay(post: Post, wanted: DeadLetterFilter, limit: int = 100) -> list[EnqueueAck]:
    def resend(tx: Tx, letter: DeadLetter, meta: bytes | None) -> EnqueueAck:
        mail = NewMail(f"{letter.msg_id}-again", bytes(letter.payload))  # type: ignore[arg-type]
        return post.dispatcher.enqueue(tx, letter.to, letter.from_, [mail])[0]

    return post.do(
        lambda tx: dead_letters.replay_dead_letters(
            tx, post.dispatcher.mailbox_ref(tx, "bob").id, wanted, limit, resend, "olga"
        )
    )


def audits(post: Post) -> list[tuple[object, ...]]:
    return post.sql("SELECT actor, action, subject, detail FROM audit ORDER BY id")


def test_dead_letter_keeps_everything() -> None:
    post = dead_post("a")
    (letter,) = post.dead()
    assert (letter.msg_id, letter.from_, letter.to, letter.created_at, letter.failed_at) == (
        "a", "alice", "bob", START // 1000, START // 1000,
    )  # fmt: skip
    assert (letter.attempts, letter.attempt, letter.replayed_as) == (1, 0, None)
    assert bytes(letter.payload) == b'"a"'  # type: ignore[arg-type]


def test_dead_letters_have_no_ttl() -> None:
    post = dead_post("a")
    post.tick(10 * 365 * 86_400_000)
    post.do(lambda tx: sweep.forget_settled_mail(tx, tx.now, tx.now, 100))
    assert names(post.dead()) == ["a"]


def test_dead_letters_are_listed_oldest_first_in_pages() -> None:
    post = Post(MailboxPolicy(max_retries=0))
    for n, by in enumerate(["zoe", "alice", "zoe", "bert", "alice"]):
        kill(post, f"m{n}", by=by)
    found, after = [], ""
    while page := names(post.dead(limit=2, after=after)):
        found += page
        after = page[-1]
    assert found == [f"m{n}" for n in range(5)]


def test_page_goes_on_behind_a_dead_letter_that_was_discarded() -> None:
    post = dead_post("a", "b", "c")
    discard(post, DeadLetterFilter(msg_ids=["b"]))
    assert names(post.dead(after="b")) == ["c"]


def test_page_behind_an_unknown_message_is_refused() -> None:
    post = dead_post("a")
    post.send("waiting")
    for msg_id in ("nobody", "waiting"):
        with pytest.raises(UnknownMessage):
            post.dead(after=msg_id)


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
    post = Post(MailboxPolicy(max_retries=0))
    kill(post, "a", reason="boom")
    kill(post, "b", reason="no time")
    kill(post, "c", by="carol")
    replay(post, DeadLetterFilter(msg_ids=["a"]))
    assert names(post.dead(wanted)) == expected


def test_replay_is_a_new_message_and_keeps_the_dead_letter() -> None:
    post = dead_post("a")
    (ack,) = replay(post, DeadLetterFilter())
    assert (ack.msg_id, ack.queued) == ("a-again", True)
    (letter,) = post.dead()
    assert (letter.msg_id, letter.replayed_as) == ("a", "a-again")
    (message,) = post.dequeue()
    assert (message.msg_id, message.from_, message.attempt) == ("a-again", "alice", 0)
    assert message.created_at == START // 1000 + 1
    assert bytes(message.payload) == b'"a"'
    assert post.states() == {"a": "dead_letter", "a-again": "in_flight"}


def test_replay_takes_no_more_than_its_limit() -> None:
    post = dead_post("a", "b", "c")
    assert [ack.msg_id for ack in replay(post, DeadLetterFilter(replayed=False), 2)] == [
        "a-again",
        "b-again",
    ]
    assert [ack.msg_id for ack in replay(post, DeadLetterFilter(replayed=False), 2)] == ["c-again"]


def test_replay_wakes_a_waiter() -> None:
    post = dead_post("a")
    _, got = post.waiter()
    replay(post, DeadLetterFilter())
    assert [message.msg_id for message in got] == ["a-again"]


def test_replay_into_a_full_mailbox_leaves_the_dead_letter_as_it_was() -> None:
    post = Post(MailboxPolicy(max_retries=0, max_pending=1))
    kill(post, "a")
    post.send("b")
    (ack,) = replay(post, DeadLetterFilter())
    assert ack.error is not None
    assert ack.error.code == "mailbox_full"
    assert post.dead()[0].replayed_as is None
    assert audits(post) == []


def test_discard_drops_the_payload_and_remembers_the_id() -> None:
    post = dead_post("a", "b")
    assert discard(post, DeadLetterFilter(msg_ids=["a"])) == 1
    assert names(post.dead()) == ["b"]
    assert post.sql("SELECT count(*) FROM body") == [(1,)]
    assert post.counts() == (0, 0, 1)
    assert post.send("a", payload=b'"a"') == [False]


def test_discarded_id_is_forgotten_with_the_others() -> None:
    post = dead_post("a")
    discard(post, DeadLetterFilter())
    post.do(lambda tx: sweep.forget_settled_mail(tx, tx.now - 1, tx.now - 1, 100))
    assert post.states() == {"a": "dead_letter"}
    post.do(lambda tx: sweep.forget_settled_mail(tx, tx.now, tx.now, 100))
    assert post.states() == {}


def test_every_act_is_audited() -> None:
    post = dead_post("a", "b")
    replay(post, DeadLetterFilter(msg_ids=["a"]))
    discard(post, DeadLetterFilter(msg_ids=["b"]))
    post.purge()
    assert audits(post) == [
        ("olga", "dead_letter.replay", "a", "as a-again"),
        ("olga", "dead_letter.discard", "b", "max_retries exhausted: boom"),
        ("operator", "mailbox.purge", "bob", "1 messages"),
    ]


def test_purge_keeps_mail_as_dead_letters() -> None:
    post = Post()
    post.send("a", "b", meta=b"{}")
    post.nack(*post.dequeue())
    assert post.purge() == 2
    assert post.counts() == (0, 0, 2)
    assert [(x.msg_id, x.reason, x.attempts) for x in post.dead()] == [
        ("a", "purged by operator", 1),
        ("b", "purged by operator", 0),
    ]
    assert [(c.msg_id, c.outcome, c.reason) for c in post.closed] == [
        ("a", "dead_letter", "purged"),
        ("b", "dead_letter", "purged"),
    ]


def test_purge_leaves_what_is_leased() -> None:
    post = Post()
    post.send("a", "b", "c")
    (a,) = post.dequeue()
    assert post.purge() == 2
    assert post.states() == {"a": "in_flight", "b": "dead_letter", "c": "dead_letter"}
    post.send("d")
    assert post.ack(a).settled == 1
    assert post.take() == ["d"]


def test_purge_goes_in_batches_and_stops_when_nothing_waits() -> None:
    post = Post()
    for by in ("alice", "carol"):
        post.send(*(f"{by}{n}" for n in range(4)), by=by)
    post.dequeue()
    assert [post.purge(3) for _ in range(4)] == [3, 3, 1, 0]
    assert len(audits(post)) == 3
    assert post.counts() == (0, 1, 7)


def test_purge_in_batches_behind_a_lease() -> None:
    post = Post()
    post.send("a", "b", "c", "d")
    post.dequeue()
    assert [post.purge(2), post.purge(2)] == [2, 1]
    # Nobody steps over what was purged ever again.
    assert post.sql("SELECT behind = (SELECT max(id) + 1 FROM mail) FROM lease") == [(1,)]


def test_partial_purge_wakes_a_waiter_for_what_it_uncovers() -> None:
    post = Post()
    post.send("a", "b")
    _, got = post.waiter(1)
    post.nack(*got)
    assert post.purge(1) == 1
    assert [message.msg_id for message in got] == ["a", "b"]


def test_purge_of_one_mailbox_leaves_the_others() -> None:
    post = Post()
    post.send("a", to="bob")
    post.send("b", to="carol")
    post.purge()
    assert post.states() == {"a": "dead_letter", "b": "pending"}
