"""What time does: leases run out, mail expires, backoffs end, old mail is forgotten."""

from gatepost.mailbox import MailboxPolicy, sweep
from gatepost.testing import ManualClock
from tests.mailbox.post import START, Post, codes, ids


def test_lease_that_runs_out_is_a_nack() -> None:
    post = Post()
    post.send("a", "b")
    post.dequeue(2)
    post.tick(29_999)
    assert post.states() == {"a": "in_flight", "b": "in_flight"}
    post.tick(1)
    assert post.states() == {"a": "nacked", "b": "pending"}
    post.tick(5_000)
    assert [(m.msg_id, m.attempt) for m in post.dequeue(2)] == [("a", 1), ("b", 0)]


def test_leases_that_run_out_four_times_end_in_a_dead_letter() -> None:
    post = Post()
    post.send("a", meta=b"{}")
    for backoff in (5_000, 10_000, 20_000, 0):
        assert post.take() == ["a"]
        post.tick(30_000)
        post.clock.advance(backoff)
    (letter,) = post.dead()
    assert (letter.attempts, letter.reason) == (4, "max_retries exhausted: not acked in time")
    assert [(c.msg_id, c.outcome) for c in post.closed] == [("a", "dead_letter")]


def test_waiting_mail_expires() -> None:
    post = Post()
    post.send("a", ttl=1_000, meta=b"{}")
    post.tick(999)
    assert post.states() == {"a": "pending"}
    post.tick(1)
    assert post.states() == {"a": "expired"}
    assert post.counts() == (0, 0, 0)
    assert [(c.msg_id, c.outcome) for c in post.closed] == [("a", "expired")]


def test_default_ttl_is_a_day() -> None:
    post = Post()
    post.send("a")
    post.tick(86_400_000 - 1)
    assert post.states() == {"a": "pending"}
    post.tick(1)
    assert post.states() == {"a": "expired"}


def test_nacked_mail_expires_while_it_backs_off() -> None:
    post = Post()
    post.send("a", ttl=4_000)
    post.nack(*post.dequeue())
    post.tick(4_000)
    assert post.states() == {"a": "expired"}


def test_expiry_never_strikes_a_live_lease() -> None:
    post = Post()
    post.send("a", ttl=1_000)
    (message,) = post.dequeue()
    post.send("b", ttl=1_000, by="carol")
    post.tick(20_000)
    assert post.states() == {"a": "in_flight", "b": "expired"}
    assert post.ack(message).settled == 1


def test_nack_past_the_ttl_is_the_end() -> None:
    post = Post()
    post.send("a", ttl=1_000, meta=b"{}")
    (message,) = post.dequeue()
    post.clock.advance(2_000)
    (closed,) = post.nack(message).closed
    assert (closed.msg_id, closed.outcome) == ("a", "expired")
    assert post.states() == {"a": "expired"}


def test_release_past_the_ttl_is_the_end_of_those_behind() -> None:
    post = Post()
    post.send("a")
    post.send("b", ttl=1_000)
    a, _ = post.dequeue(2)
    post.clock.advance(2_000)
    post.nack(a)
    assert post.states() == {"a": "nacked", "b": "expired"}


def test_dequeue_sees_what_time_did() -> None:
    post = Post()
    post.send("a", ttl=1_000)
    post.send("b")
    post.clock.advance(1_000)
    assert post.take() == ["b"]


def test_expired_head_frees_its_pair() -> None:
    post = Post()
    post.send("a", ttl=4_000)
    post.send("b")
    post.nack(*post.dequeue())
    assert post.take() == []
    post.tick(4_000)
    assert post.take() == ["b"]


def test_expired_mail_behind_a_lease_is_stepped_over() -> None:
    post = Post()
    post.send("a")
    post.send("b", "c", ttl=1_000)
    post.send("d")
    (a,) = post.dequeue()
    post.tick(1_000)
    post.ack(a)
    assert post.take(10) == ["d"]


def test_run_never_reaches_over_mail_that_is_too_late() -> None:
    post = Post()
    post.send("a")
    post.send("b", ttl=1_000)
    post.send("c")
    post.clock.advance(1_000)
    post.dispatcher._sweep_due_at = None
    taken = post.group(
        lambda tx: post.dispatcher._take_mail(tx, post.dispatcher.mailbox_ref(tx, "bob"), "", 9)
    )
    assert ids(taken[0].messages) == ["a"]


def test_expired_message_cannot_be_acked() -> None:
    post = Post()
    post.send("a", ttl=5_000)
    (message,) = post.dequeue()
    post.nack(message)
    post.tick(5_000)
    assert codes(post.ack(message)) == ["stale_receipt"]


def test_sweep_goes_in_batches_and_is_due_again_at_once() -> None:
    post = Post()
    for start in range(0, 2_500, 500):
        post.send(*(f"m{n}" for n in range(start, start + 500)), ttl=1_000)
    post.clock.advance(1_000)
    sizes = []
    while post.counts()[0]:
        before = post.counts()[0]
        post.tick()
        sizes.append(before - post.counts()[0])
    assert sizes == [1_000, 1_000, 500]


def test_next_due_is_the_earliest_of_all_that_time_does() -> None:
    post = Post()
    post.tick()
    assert _due(post) is None
    post.send("a")
    assert _due(post) == START + 86_400_000
    (message,) = post.dequeue()
    assert _due(post) == START + 30_000
    post.nack(message)
    assert _due(post) == START + 5_000


def test_forget_drops_bodies_first_and_rows_much_later() -> None:
    post = Post()
    post.send("a")
    post.ack(*post.dequeue())
    post.clock.advance(10_000)
    assert _forget(post, START, START - 1) == 1
    assert post.sql("SELECT count(*) FROM body") == [(0,)]
    assert post.send("a") == [False]
    assert _forget(post, START, START) == 1
    assert post.sql("SELECT count(*) FROM mail") == [(0,)]
    assert post.send("a") == [True]


def test_forget_at_clock_zero() -> None:
    post = Post(clock=ManualClock(0))
    post.send("a")
    post.ack(*post.dequeue())
    assert _forget(post, 0, 0) == 2


def test_forget_leaves_unsettled_mail_and_dead_letters() -> None:
    post = Post(MailboxPolicy(max_retries=0))
    post.send("dead", "waits", "out")
    post.nack(*post.dequeue())
    post.send("in", by="carol")
    post.take()
    post.clock.advance(10_000)
    before = post.sql("SELECT * FROM mail"), post.sql("SELECT * FROM body")
    assert _forget(post, START + 9_000, START + 9_000) == 0
    assert before == (post.sql("SELECT * FROM mail"), post.sql("SELECT * FROM body"))


def test_forget_goes_in_batches() -> None:
    post = Post()
    for n in range(5):
        post.send(f"m{n}")
        post.ack(*post.dequeue())
        post.clock.advance(1)
    assert [_forget(post, START + 9, START + 9, batch=2) for _ in range(4)] == [4, 4, 2, 0]


def test_forgotten_pair_starts_anew_and_keeps_working() -> None:
    post = Post()
    post.send("a")
    post.ack(*post.dequeue())
    _forget(post, START, START)
    assert post.sql("SELECT * FROM pair") == []
    post.send("b", "c")
    assert post.take(10) == ["b", "c"]


def test_old_receipt_never_fits_new_mail() -> None:
    post = Post()
    post.send("a")
    (old,) = post.dequeue()
    post.ack(old)
    _forget(post, START, START)
    post.send("b")
    post.dequeue()
    assert codes(post.ack(old)) == ["unknown_message"]


def _due(post: Post) -> int | None:
    return post.writer._next_due_at


def _forget(post: Post, bodies: int, rows: int, batch: int = 1000) -> int:
    return post.do(lambda tx: sweep.forget_settled_mail(tx, bodies, rows, batch))


def test_a_backoff_is_no_longer_though_the_clock_was_set_back() -> None:
    post = Post()
    post.send("a")
    post.nack(*post.dequeue())
    post.clock.set(START - 3_600_000)
    post.tick()
    assert post.take() == []
    assert post.writer.idle_timeout() == 5.0
    post.tick(5_000)
    assert post.take() == ["a"]


def test_a_backoff_is_no_longer_though_the_clock_was_set_back_while_nobody_looked() -> None:
    post = Post()
    post.send("a")
    for _ in range(2):
        post.nack(*post.dequeue())
        post.tick(5_000)
    later = Post(clock=ManualClock(START - 3_600_000), connection=post.connection)
    later.tick(9_999)
    assert later.take() == []
    later.tick(10_000)
    assert later.take() == ["a"]


def test_what_was_given_back_does_not_wait_for_a_backoff_that_is_over() -> None:
    post = Post()
    post.send("a")
    post.nack(*post.dequeue())
    post.tick(5_000)
    waiter, got = post.waiter()
    assert [message.msg_id for message in got] == ["a"]
    post.clock.set(START - 3_600_000)
    post.do(lambda tx: post.dispatcher.release_waiter(tx, waiter))
    assert post.take() == ["a"]
