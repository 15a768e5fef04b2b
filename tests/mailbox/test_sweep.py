"""What time does: leases run out, mail expires, backoffs end, old mail is forgotten."""

from gatepost.mailbox import MailboxPolicy, sweep
from gatepost.testing import ManualClock
from tests.mailbox.harness import START, MailboxHarness, codes, ids


def test_lease_that_runs_out_is_a_nack() -> None:
    harness = MailboxHarness()
    harness.send("a", "b")
    harness.dequeue(2)
    harness.tick(29_999)
    assert harness.states() == {"a": "in_flight", "b": "in_flight"}
    harness.tick(1)
    assert harness.states() == {"a": "nacked", "b": "pending"}
    harness.tick(5_000)
    assert [(m.msg_id, m.attempt) for m in harness.dequeue(2)] == [("a", 1), ("b", 0)]


def test_leases_that_run_out_four_times_end_in_a_dead_letter() -> None:
    harness = MailboxHarness()
    harness.send("a", meta=b"{}")
    for backoff in (5_000, 10_000, 20_000, 0):
        assert harness.take() == ["a"]
        harness.tick(30_000)
        harness.clock.advance(backoff)
    (letter,) = harness.dead()
    assert (letter.attempts, letter.reason) == (4, "max_retries exhausted: not acked in time")
    assert [(c.msg_id, c.outcome) for c in harness.closed] == [("a", "dead_letter")]


def test_waiting_mail_expires() -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=1_000, meta=b"{}")
    harness.tick(999)
    assert harness.states() == {"a": "pending"}
    harness.tick(1)
    assert harness.states() == {"a": "expired"}
    assert harness.counts() == (0, 0, 0)
    assert [(c.msg_id, c.outcome) for c in harness.closed] == [("a", "expired")]


def test_default_ttl_is_a_day() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.tick(86_400_000 - 1)
    assert harness.states() == {"a": "pending"}
    harness.tick(1)
    assert harness.states() == {"a": "expired"}


def test_nacked_mail_expires_while_it_backs_off() -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=4_000)
    harness.nack(*harness.dequeue())
    harness.tick(4_000)
    assert harness.states() == {"a": "expired"}


def test_expiry_never_strikes_a_live_lease() -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=1_000)
    (message,) = harness.dequeue()
    harness.send("b", ttl=1_000, by="carol")
    harness.tick(20_000)
    assert harness.states() == {"a": "in_flight", "b": "expired"}
    assert harness.ack(message).settled == 1


def test_nack_past_the_ttl_is_the_end() -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=1_000, meta=b"{}")
    (message,) = harness.dequeue()
    harness.clock.advance(2_000)
    (closed,) = harness.nack(message).closed
    assert (closed.msg_id, closed.outcome) == ("a", "expired")
    assert harness.states() == {"a": "expired"}


def test_release_past_the_ttl_is_the_end_of_those_behind() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.send("b", ttl=1_000)
    a, _ = harness.dequeue(2)
    harness.clock.advance(2_000)
    harness.nack(a)
    assert harness.states() == {"a": "nacked", "b": "expired"}


def test_dequeue_sees_what_time_did() -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=1_000)
    harness.send("b")
    harness.clock.advance(1_000)
    assert harness.take() == ["b"]


def test_expired_head_frees_its_pair() -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=4_000)
    harness.send("b")
    harness.nack(*harness.dequeue())
    assert harness.take() == []
    harness.tick(4_000)
    assert harness.take() == ["b"]


def test_expired_mail_behind_a_lease_is_stepped_over() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.send("b", "c", ttl=1_000)
    harness.send("d")
    (a,) = harness.dequeue()
    harness.tick(1_000)
    harness.ack(a)
    assert harness.take(10) == ["d"]


def test_run_never_reaches_over_mail_that_is_too_late() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.send("b", ttl=1_000)
    harness.send("c")
    harness.clock.advance(1_000)
    harness.dispatcher._sweep_due_at = None
    taken = harness.group(
        lambda tx: harness.dispatcher._take_mail(
            tx, harness.dispatcher.mailbox_ref(tx, "bob"), "", 9
        )
    )
    assert ids(taken[0].messages) == ["a"]


def test_expired_message_cannot_be_acked() -> None:
    harness = MailboxHarness()
    harness.send("a", ttl=5_000)
    (message,) = harness.dequeue()
    harness.nack(message)
    harness.tick(5_000)
    assert codes(harness.ack(message)) == ["stale_receipt"]


def test_sweep_goes_in_batches_and_is_due_again_at_once() -> None:
    harness = MailboxHarness()
    for start in range(0, 2_500, 500):
        harness.send(*(f"m{n}" for n in range(start, start + 500)), ttl=1_000)
    harness.clock.advance(1_000)
    sizes = []
    while harness.counts()[0]:
        before = harness.counts()[0]
        harness.tick()
        sizes.append(before - harness.counts()[0])
    assert sizes == [1_000, 1_000, 500]


def test_next_due_is_the_earliest_of_all_that_time_does() -> None:
    harness = MailboxHarness()
    harness.tick()
    assert _due(harness) is None
    harness.send("a")
    assert _due(harness) == START + 86_400_000
    (message,) = harness.dequeue()
    assert _due(harness) == START + 30_000
    harness.nack(message)
    assert _due(harness) == START + 5_000


def test_forget_drops_bodies_first_and_rows_much_later() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.ack(*harness.dequeue())
    harness.clock.advance(10_000)
    assert _forget(harness, START, START - 1) == 1
    assert harness.sql("SELECT count(*) FROM body") == [(0,)]
    assert harness.send("a") == [False]
    assert _forget(harness, START, START) == 1
    assert harness.sql("SELECT count(*) FROM mail") == [(0,)]
    assert harness.send("a") == [True]


def test_forget_at_clock_zero() -> None:
    harness = MailboxHarness(clock=ManualClock(0))
    harness.send("a")
    harness.ack(*harness.dequeue())
    assert _forget(harness, 0, 0) == 2


def test_forget_leaves_unsettled_mail_and_dead_letters() -> None:
    harness = MailboxHarness(MailboxPolicy(max_retries=0))
    harness.send("dead", "waits", "out")
    harness.nack(*harness.dequeue())
    harness.send("in", by="carol")
    harness.take()
    harness.clock.advance(10_000)
    before = harness.sql("SELECT * FROM mail"), harness.sql("SELECT * FROM body")
    assert _forget(harness, START + 9_000, START + 9_000) == 0
    assert before == (harness.sql("SELECT * FROM mail"), harness.sql("SELECT * FROM body"))


def test_forget_goes_in_batches() -> None:
    harness = MailboxHarness()
    for n in range(5):
        harness.send(f"m{n}")
        harness.ack(*harness.dequeue())
        harness.clock.advance(1)
    assert [_forget(harness, START + 9, START + 9, batch=2) for _ in range(4)] == [4, 4, 2, 0]


def test_forgotten_pair_starts_anew_and_keeps_working() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.ack(*harness.dequeue())
    _forget(harness, START, START)
    assert harness.sql("SELECT * FROM pair") == []
    harness.send("b", "c")
    assert harness.take(10) == ["b", "c"]


def test_old_receipt_never_fits_new_mail() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (old,) = harness.dequeue()
    harness.ack(old)
    _forget(harness, START, START)
    harness.send("b")
    harness.dequeue()
    assert codes(harness.ack(old)) == ["unknown_message"]


def _due(harness: MailboxHarness) -> int | None:
    return harness.writer._next_due_at


def _forget(harness: MailboxHarness, bodies: int, rows: int, batch: int = 1000) -> int:
    return harness.do(lambda tx: sweep.forget_settled_mail(tx, bodies, rows, batch))


def test_a_backoff_is_no_longer_though_the_clock_was_set_back() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.nack(*harness.dequeue())
    harness.clock.set(START - 3_600_000)
    harness.tick()
    assert harness.take() == []
    assert harness.writer.idle_timeout() == 5.0
    harness.tick(5_000)
    assert harness.take() == ["a"]


def test_a_backoff_is_no_longer_though_the_clock_was_set_back_while_nobody_looked() -> None:
    harness = MailboxHarness()
    harness.send("a")
    for _ in range(2):
        harness.nack(*harness.dequeue())
        harness.tick(5_000)
    later = MailboxHarness(clock=ManualClock(START - 3_600_000), connection=harness.connection)
    later.tick(9_999)
    assert later.take() == []
    later.tick(10_000)
    assert later.take() == ["a"]


def test_a_lease_is_no_longer_though_the_clock_was_set_back() -> None:
    harness = MailboxHarness()
    harness.send("a")
    (message,) = harness.dequeue()
    harness.clock.set(START - 3_600_000)
    harness.tick()
    harness.tick(29_999)
    assert harness.states()["a"] == "in_flight"
    harness.tick(1)
    assert harness.states()["a"] == "nacked"
    assert codes(harness.ack(message)) == ["stale_receipt"]


def test_a_lease_is_no_longer_though_the_clock_was_set_back_while_nobody_looked() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.dequeue()
    later = MailboxHarness(clock=ManualClock(START - 3_600_000), connection=harness.connection)
    later.tick()
    later.tick(30_000)
    assert later.states()["a"] == "nacked"


def test_what_was_given_back_does_not_wait_for_a_backoff_that_is_over() -> None:
    harness = MailboxHarness()
    harness.send("a")
    harness.nack(*harness.dequeue())
    harness.tick(5_000)
    waiter, got = harness.waiter()
    assert [message.msg_id for message in got] == ["a"]
    harness.clock.set(START - 3_600_000)
    harness.do(lambda tx: harness.dispatcher.release_waiter(tx, waiter))
    assert harness.take() == ["a"]
