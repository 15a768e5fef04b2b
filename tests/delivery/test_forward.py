"""Agents that move: their mail follows them, once, in order, and its senders hear of its end."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.delivery.forward import ReturnDelays
from gatepost.delivery.frames import EventsFrame
from gatepost.delivery.intake import Intake, confirm_offer
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.send_request import fingerprint_send
from gatepost.events import Signal, decode_payload, parse_event_id
from gatepost.journal import Tx
from gatepost.mailbox import NewMail
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory
from gatepost.wire.operations import LeasedMessage, NewSend
from tests.delivery.mesh import Mesh
from tests.delivery.tools import online
from tests.delivery.world import Box, World


@pytest.fixture
def a(world: World) -> Box:
    return world.boxes["a"]


@pytest.fixture
def b(world: World) -> Box:
    return world.boxes["b"]


@pytest.fixture
def c(world: World) -> Box:
    return world.boxes["c"]


def payloads(messages: list[LeasedMessage]) -> list[Any]:
    return [msgspec.json.decode(message.payload) for message in messages]


def test_accepted_mail_follows_its_agent_and_its_sender_hears_of_the_turn(
    world: World, a: Box, b: Box, c: Box
) -> None:
    sent = a.send("job", 1, corr_id="talk", traceparent="00-trace")
    world.flow()
    assert a.status(sent).state == "accepted"
    world.moves("c")
    (mail,) = c.take()
    info = msgspec.json.decode(mail.event)  # type: ignore[arg-type]
    assert (mail.from_, payloads([mail])) == ("al", [1])
    assert (info["corr_id"], info["traceparent"]) == ("talk", "00-trace")
    (event,) = b.events()
    assert (event.causation_id, event.to_node_id, event.source_agent_id) == (
        sent.event_id,
        "c",
        "al",
    )
    assert a.status(sent).state == "accepted", "nobody has processed it"
    c.ack(mail)
    world.flow()
    assert (a.status(sent).state, a.status(sent).outcome) == ("processed", "ok")


def test_mail_of_an_operator_names_its_gateway_wherever_it_goes_and_its_reply_comes_back(
    world: World, a: Box, c: Box
) -> None:
    local, sent = a.send("al", 0, sender="operator"), a.send("job", 1, sender="operator")
    assert [mail.from_ for mail in a.take("al")] == ["operator"]
    world.flow()
    world.moves("c")
    (mail,) = c.take()
    assert (mail.from_, local.event_id != sent.event_id) == ("operator@a", True)
    c.ack(mail, reply="answer")
    world.flow()
    assert a.status(sent).state == "replied"


def test_a_replayed_dead_letter_of_another_operator_comes_from_the_gateway(
    world: World, a: Box, b: Box
) -> None:
    a.send("job", 1, sender="operator")
    world.flow()
    for _ in range(b.dispatcher.policy.max_retries + 1):
        b.nack(*b.take())
    (ack,) = b.run(
        lambda tx: b.coordinator.replay(
            tx, "job", DeadLetterFilter(sender="operator@a"), 10, "operator"
        )
    )
    assert ack.queued
    assert [mail.from_ for mail in b.take()] == ["gateway"]


def test_the_reply_finds_its_way_back(world: World, a: Box, c: Box) -> None:
    sent = a.send("job", "question")
    world.flow()
    world.moves("c")
    c.ack(*c.take(), reply="answer")
    world.flow()
    assert a.status(sent).state == "replied"
    (reply,) = a.take("al")
    info = msgspec.json.decode(reply.event)  # type: ignore[arg-type]
    assert (reply.from_, payloads([reply]), info["ref_event_id"]) == (
        "job",
        ["answer"],
        sent.event_id,
    )


def test_a_failed_turn_is_reported_as_it_is(world: World, a: Box, b: Box, c: Box) -> None:
    sent = a.send("job")
    world.flow()
    world.moves("c")
    c.nack(*c.take())
    world.flow()
    status = a.status(sent)
    assert (status.state, status.outcome, status.reason) == ("processed", "dead_letter", "broken")
    dead = b.run(lambda tx: tx.fetch_all("SELECT * FROM dead_letter"))
    assert dead == [], "it lies where the agent lives"


def test_forwarded_mail_that_expires_is_reported_as_expired(world: World, a: Box, c: Box) -> None:
    sent = a.send("job", ttl_secs=20)
    world.flow()
    world.moves("c")
    world.clock.advance(21_000)
    world.settle()
    c.run()
    world.flow()
    assert (a.status(sent).state, a.status(sent).outcome) == ("processed", "expired")


def test_order_holds_between_forwarded_mail_and_mail_that_comes_straight(
    world: World, a: Box, c: Box
) -> None:
    for n in range(5):
        a.send("job", n)
    world.flow()
    world.moves("c")
    for n in range(5, 10):
        a.send("job", n)
    world.flow()
    seen = []
    while mail := c.take(limit=2):
        seen += payloads(mail)
        c.ack(*mail)
        world.flow()
    assert seen == list(range(10))


def test_the_old_owners_own_senders_keep_their_order_too(world: World, b: Box, c: Box) -> None:
    sent = [b.send("job", n, "bo") for n in range(300)]
    world.register("c", "job")
    world.move("c")
    b.run(lambda tx: b.agents.remove(tx, "job", "transfer"))
    world.know("b", "c")
    sent += [b.send("job", 300, "bo")]
    world.know("a")
    world.settle()
    world.flow()
    sent += [b.send("job", n, "bo") for n in range(301, 310)]
    world.flow()
    seen = []
    while mail := c.take(limit=50):
        seen += payloads(mail)
        c.ack(*mail)
        world.flow()
    assert seen == list(range(310))
    assert {b.status(each).outcome for each in sent} == {"ok"}


def test_mail_a_consumer_has_in_hand_is_left_to_it(world: World, a: Box, b: Box, c: Box) -> None:
    sent = [a.send("job", n) for n in range(3)]
    world.flow()
    (first,) = b.take(limit=1)
    world.moves("c")
    assert c.take() == [], "the others of its pair wait for it"
    b.ack(first)
    world.settle()
    world.flow()
    rest = c.take()
    assert payloads(rest) == [1, 2]
    c.ack(*rest)
    world.flow()
    assert {a.status(each).outcome for each in sent} == {"ok"}


def test_mail_whose_consumer_never_came_back_is_forwarded_when_its_lease_ends(
    world: World, a: Box, b: Box, c: Box
) -> None:
    b.dispatcher.policy = replace(b.dispatcher.policy, max_retries=1, base_backoff=0)
    a.send("job", 1)
    world.flow()
    b.take()
    world.moves("c")
    world.clock.advance(6_000)
    for _ in range(3):
        b.run()
    world.flow()
    assert payloads(c.take()) == [1]


def test_plain_mail_is_forwarded_as_an_event(world: World, b: Box, c: Box) -> None:
    b.run(lambda tx: b.dispatcher.enqueue(tx, "job", "bo", [NewMail("old", b'"before"')]))
    world.moves("c")
    b.run(lambda tx: b.dispatcher.enqueue(tx, "job", "bo", [NewMail("new", b'"after"')]))
    world.flow()
    mail = c.take()
    assert payloads(mail) == ["before", "after"]
    c.ack(*mail)
    world.flow()
    assert b.waiting() == 0
    assert b.run(lambda tx: tx.fetch_all("SELECT * FROM forwarded")) == []


@pytest.mark.parametrize("killed", ["b", "c"])
def test_a_gateway_that_restarts_at_any_moment_forwards_once(world: World, killed: str) -> None:
    a, b, c = (world.boxes[id] for id in "abc")
    sent = [a.send("job", n) for n in range(20)]
    world.flow()
    world.register("c", "job")
    world.move("c")
    b.run(lambda tx: b.agents.remove(tx, "job", "transfer"))
    world.know(*"abc")
    seen = []
    for _ in range(60):
        for wire in world.wires.values():
            if wire:
                wire.popleft()
        world.restart(killed)
        mail = c.take(limit=1)
        seen += payloads(mail)
        if mail:
            c.ack(*mail)
    world.flow()
    assert seen == list(range(20))
    assert {a.status(each).outcome for each in sent} == {"ok"}


def test_an_agent_that_comes_back_finds_its_mail(world: World, a: Box, b: Box) -> None:
    sent = [a.send("job", n) for n in range(3)]
    world.flow()
    world.moves("c")
    world.moves("b")
    mail = b.take()
    assert payloads(mail) == [0, 1, 2]
    b.ack(*mail)
    world.flow()
    assert {a.status(each).outcome for each in sent} == {"ok"}


def test_mail_that_arrives_late_is_refused_as_moved_and_follows(
    world: World, a: Box, c: Box
) -> None:
    world.register("c", "job")
    world.move("c")
    b = world.boxes["b"]
    b.run(lambda tx: b.agents.remove(tx, "job", "transfer"))
    world.know("b", "c")
    sent = [a.send("job", n) for n in range(3)]
    assert sent[0].node == "b", "a has not heard yet"
    world.flow()
    status = a.status(sent[0])
    assert (status.state, status.reason) == ("retry_pending", "moved")
    world.know("a")
    world.settle()
    world.flow()
    mail = c.take()
    assert payloads(mail) == [0, 1, 2]
    c.ack(*mail)
    world.flow()
    assert {a.status(each).outcome for each in sent} == {"ok"}


def test_a_status_request_while_mail_is_forwarded_is_not_answered_with_processed(
    world: World, a: Box, b: Box, c: Box
) -> None:
    sent = a.send("job")
    world.flow()
    world.moves("c")
    ask = Signal(signal="status_request")
    a.run(lambda tx: OutboxWriter(a.node, a.core.outbox).append_signal(tx, "b", sent.event_id, ask))
    world.flow()
    assert a.status(sent).state == "accepted"
    c.ack(*c.take())
    world.flow()
    a.run(lambda tx: OutboxWriter(a.node, a.core.outbox).append_signal(tx, "b", sent.event_id, ask))
    world.flow()
    said = [decode_payload(each, dict) for each in b.events("ack")]
    assert [each["status"] for each in said] == ["accepted", "processed", "processed"]


def test_a_reply_for_an_agent_that_moved_is_mail_where_it_lives(world: World, b: Box) -> None:
    a, c = world.boxes["a"], world.boxes["c"]
    a.send("job", "question")
    world.flow()
    world.moves("c", "al")
    b.ack(*b.take(), reply="answer")
    world.flow()
    world.settle()
    world.flow()
    assert payloads(c.take("al")) == ["answer"]


def test_a_reply_taken_together_with_a_message_that_is_refused_is_not_sent_to_both(
    world: World, a: Box, b: Box, c: Box
) -> None:
    a.send("job", "question")
    world.flow()
    world.register("c", "al")
    world.move("c", "al")
    a.run(lambda tx: a.agents.remove(tx, "al", "transfer"))
    b.ack(*b.take(), reply="answer")
    sent = b.send("al", "news", sender="job")
    assert sent.node == "a", "b has not heard yet"
    world.know(*"abc")
    world.connect()
    said = [decode_payload(each, dict)["status"] for each in a.events("ack")]
    assert said == ["accepted", "refused"], "in the order of the pair"
    seen = []
    while mail := c.take("al"):
        seen += payloads(mail)
        c.ack(*mail)
        world.flow()
    assert seen == ["answer", "news"]
    assert b.status(sent).outcome == "ok"


def test_a_standby_keeps_the_mail_it_accepted(world: World, a: Box, b: Box) -> None:
    a.send("job", 1)
    world.flow()
    b.run(lambda tx: b.agents.register(tx, "job", standby=True))
    world.register("c", "job")
    world.move("c")
    world.know(*"abc")
    world.settle()
    world.flow()
    assert payloads(b.take()) == [1]


def test_a_large_payload_follows_as_a_blob_and_one_that_is_gone_is_told_of(
    world: World, b: Box, c: Box
) -> None:
    digest = f"sha256:{'0' * 64}"
    b.run(
        lambda tx: tx.execute(
            "INSERT INTO blob VALUES (?, ?, 5, 0, NULL, NULL)", (digest, b"k" * 32)
        )
    )
    new = NewSend("bo", "job", payload_ref=digest)
    kept = b.run(lambda tx: b.coordinator.send(tx, new, fingerprint_send(new)))
    world.moves("c")
    (event,) = [event for event in b.events() if event.causation_id == kept.event_id]
    assert event.payload_ref.digest == digest
    world.moves("b")
    again = NewSend("other", "job", payload_ref=digest)
    lost = b.run(lambda tx: b.coordinator.send(tx, again, fingerprint_send(again)))
    last = b.send("job", "last", "other")
    b.run(lambda tx: tx.execute("DELETE FROM blob_use"))
    b.run(lambda tx: tx.execute("DELETE FROM blob"))
    world.moves("c")
    assert (b.status(lost).outcome, b.status(last).state) == ("dead_letter", "accepted")
    incidents = b.run(lambda tx: tx.fetch_all("SELECT class, subject FROM incident"))
    assert incidents == [("forward_failed", lost.event_id)]
    assert payloads(c.take()) == ["last"], "nothing waits for it"


def test_a_local_event_that_is_forwarded_keeps_its_pair_number(
    world: World, b: Box, c: Box
) -> None:
    world.moves("c")
    first = b.send("job", 1, "bo")
    world.flow()
    (message,) = c.take()
    world.moves("b")
    second = b.send("job", 2, "bo")
    world.flow()
    c.ack(message)
    world.flow()
    assert [b.status(sent).state for sent in (first, second)] == ["processed", "accepted"]
    world.moves("c")
    (message,) = c.take()
    assert payloads([message]) == [2], "it does not wait for what it stands for"
    c.ack(message)
    world.flow()
    assert b.status(second).state == "processed"


def test_forwarded_mail_keeps_its_priority(world: World, a: Box, b: Box, c: Box) -> None:
    for box, sender in ((a, "al"), (b, "bo")):
        box.send("job", 1, sender, priority=7)
    world.flow()
    world.moves("c")
    sent = [event for event in b.events() if event.causation_id is not None]
    assert [(event.kind, event.priority) for event in sent] == [("message", 7), ("message", 7)]
    assert [message.event is not None for message in c.take()] == [True, True]


def test_nothing_is_forwarded_to_a_gateway_that_is_not_in_the_room(world: World, b: Box) -> None:
    b.send("job", 1, "bo")
    world.move("stranger")
    world.know("b")
    world.settle()
    assert b.waiting() == 1


def test_a_message_no_node_can_take_is_a_dead_letter_at_once(world: World, a: Box) -> None:
    world.move("stranger")
    world.know("a")
    sent = a.send("job", {"keep": "me"}, idempotency_key="k")
    assert (sent.state, sent.reason) == ("dead_letter", "no_route")
    again = a.send("job", {"keep": "me"}, idempotency_key="k")
    assert (again.event_id, again.state) == (sent.event_id, "dead_letter")
    ((payload, reason),) = a.run(lambda tx: tx.fetch_all("SELECT payload, reason FROM undelivered"))
    assert (msgspec.json.decode(payload), reason) == ({"keep": "me"}, "no_route")
    incidents = a.run(lambda tx: tx.fetch_all("SELECT class, subject FROM incident"))
    assert incidents == [("dead_letter", sent.event_id)]
    (message,), (letter,) = a.events(), a.events("dead_letter")
    assert (message.event_id, letter.ref_event_id) == (sent.event_id, sent.event_id)
    assert message.to_node_id is None


def test_mail_that_comes_back_to_its_sender_keeps_its_numbers(world: World, a: Box, b: Box) -> None:
    """Mail waits at b, the agent moves to its sender's gateway a, and back again."""
    ids = [a.send("job", number) for number in range(5)]
    world.flow()
    world.moves("a")
    ids += [a.send("job", number) for number in (5, 6)]
    world.flow()
    world.moves("b")
    for expected in ([0, 1, 2, 3, 4], [5, 6]):
        mail = b.take()
        assert payloads(mail) == expected
        b.ack(*mail)
        world.flow()
    assert {a.status(sent).state for sent in ids} == {"processed"}


def test_mail_that_comes_back_by_a_detour_is_not_overtaken(
    world: World, a: Box, b: Box, c: Box
) -> None:
    """Forwarded from b to c, it returns to b while its sender sends straight to b."""
    ids = [a.send("job", number) for number in range(3)]
    world.flow()
    world.moves("c")
    world.moves("b")
    ids.append(a.send("job", 3))
    world.flow()
    for expected in ([0, 1, 2], [3]):
        mail = b.take()
        assert payloads(mail) == expected
        b.ack(*mail)
        world.flow()
    assert {a.status(sent).state for sent in ids} == {"processed"}


def test_mail_may_go_back_and_forth_any_number_of_times(world: World, a: Box, b: Box) -> None:
    ids = [a.send("job", number) for number in range(3)]
    world.flow()
    for home in "abcacbab":
        world.moves(home)
        ids.append(a.send("job", len(ids)))
        world.flow()
    done: list[Any] = []
    while mail := b.take():
        done += payloads(mail)
        b.ack(*mail)
        world.flow()
    assert done == list(range(len(ids)))
    assert {a.status(sent).state for sent in ids} == {"processed"}


def test_two_gateways_that_forward_mail_of_each_other_do_not_wait_for_each_other(
    world: World, a: Box, b: Box, c: Box
) -> None:
    """Sender and receiver move: a forwards mail of b, and b forwards earlier mail of a."""
    b.dispatcher.policy = replace(b.dispatcher.policy, max_retries=1, base_backoff=0)
    first = a.send("job", "of a")
    world.flow()
    (in_hand,) = b.take()
    world.moves("a")
    world.moves("b", "al")
    second = b.send("job", "of b")
    world.flow()
    world.moves("c")
    b.nack(in_hand)
    world.settle()
    world.flow()
    done: list[Any] = []
    while mail := c.take():
        done += payloads(mail)
        c.ack(*mail)
        world.flow()
    assert sorted(done) == ["of a", "of b"]
    assert (a.status(first).outcome, b.status(second).outcome) == ("ok", "ok")


def test_forwarded_mail_is_numbered_by_its_origin(world: World, a: Box, b: Box, c: Box) -> None:
    a.send("job", "of a")
    b.send("job", "of b")
    b.send("job", "of b", sender="bo")
    world.flow()
    world.moves("c")
    numbers = {(e.source_agent_id, e.origin_node_id, e.pair_seq) for e in b.events()}
    assert ("al", "a", 1) in numbers
    assert {each for each in numbers if each[1] is None} == {("al", None, 1), ("bo", None, 1)}
    keys = c.run(lambda tx: tx.fetch_all("SELECT source, sender, origin_node FROM inbox_pair"))
    assert sorted(keys) == [("b", "al", ""), ("b", "al", "a"), ("b", "bo", "")]
    world.moves("a")
    (came_back,) = [e for e in c.events() if e.origin_node_id == "a"]
    assert came_back.to_node_id == "a"
    world.moves("b")
    (own,) = [e for e in a.events() if e.origin_event_id is not None and e.origin_node_id is None]
    assert (own.source_agent_id, own.pair_seq) == ("al", 1), "it has its first number again"


def test_gateways_that_disagree_about_a_home_send_mail_to_and_fro_ever_less_often(
    world: World, a: Box, b: Box, c: Box
) -> None:
    """b believes that the agent lives behind c, and c has not heard of it."""
    sent = a.send("job", 1)
    world.flow()
    world.register("c", "job")
    world.move("c")
    world.know("b")
    counts = []
    for passed in (0, 100, 100, 100, 300, 100):
        world.clock.advance(passed)
        world.settle()
        world.flow()
        counts.append(len(b.events()) + len(c.events()))
    assert counts == [4, 6, 6, 8, 8, 10]
    world.know("c")
    world.clock.advance(10_000)
    world.settle()
    world.flow()
    mail = c.take()
    assert payloads(mail) == [1]
    c.ack(*mail)
    world.flow()
    assert a.status(sent).outcome == "ok"


def test_mail_that_came_back_waits_no_longer_once_its_agent_has_another_home(
    world: World, a: Box, b: Box, c: Box
) -> None:
    a.send("job", 1)
    world.flow()
    world.register("c", "job")
    world.move("c")
    world.know("b")
    world.settle()
    world.flow()
    assert b.waiting() == 1, "it came back twice"
    world.register("a", "job")
    world.move("a")
    world.know("a", "b")
    world.settle()
    world.flow()
    assert payloads(a.take()) == [1]


def test_mail_that_came_back_and_waits_expires_in_time(world: World, a: Box, b: Box) -> None:
    sent = a.send("job", 1, ttl_secs=20)
    world.flow()
    world.register("c", "job")
    world.move("c")
    world.know("b")
    for _ in range(22):
        world.settle()
        world.flow()
        world.clock.advance(1_000)
        b.run()
    world.settle()
    world.flow()
    assert a.status(sent).outcome == "expired"


def test_the_delay_of_mail_that_comes_back_is_bounded() -> None:
    delays, now = ReturnDelays(), 0
    waited = []
    for _ in range(9):
        delays.begin_delay("job", now)
        due = delays.next_due(now)
        assert due is not None
        assert delays.must_wait("job", due - 1)
        assert delays.take_ended(due - 1) == []
        assert delays.take_ended(due) == ["job"]
        waited.append(due - now)
        now = due
    assert waited == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
    assert delays.next_due(now) is None


def test_a_clock_that_goes_back_does_not_prolong_the_delay() -> None:
    delays = ReturnDelays()
    delays.begin_delay("job", 1_000_000)
    assert not delays.must_wait("job", 1_000)
    assert delays.next_due(1_000) == 1_100
    delays.forget(["job"])
    assert delays.next_due(1_000) is None


def test_delayed_mail_goes_away_and_back_behind_the_mail_before_it(
    world: World, a: Box, b: Box
) -> None:
    """If it stayed, the mail before it would come back behind it."""
    due = (world.clock.now() + 30_000) / 1000
    ids = [a.send("job", 0), a.send("job", 1, not_before=due), a.send("job", 2)]
    world.flow()
    world.moves("c")
    world.moves("b")
    ids.append(a.send("job", 3))
    world.flow()
    first = b.take()
    assert payloads(first) == [0]
    b.ack(*first)
    world.flow()
    world.clock.advance(30_001)
    done: list[Any] = []
    while mail := b.take():
        done += payloads(mail)
        b.ack(*mail)
        world.flow()
    assert done == [1, 2, 3]
    assert {a.status(sent).state for sent in ids} == {"processed"}


def test_delayed_mail_follows_its_agent_and_is_still_delayed(
    world: World, a: Box, b: Box, c: Box
) -> None:
    due = (world.clock.now() + 30_000) / 1000
    sent = a.send("job", 1, not_before=due, order="none", max_retries=7)
    world.flow()
    mail = NewMail("plain", b"2", ordered=False, not_before=world.clock.now() + 30_000)
    b.run(lambda tx: b.dispatcher.enqueue(tx, "job", "zoe", [mail]))
    world.moves("c")
    assert b.run(lambda tx: tx.fetch_all("SELECT waiting FROM mailbox WHERE name = 'job'")) == [
        (0,)
    ]
    assert c.take() == []
    world.clock.advance(30_000)
    taken = c.take()
    assert sorted(bytes(message.payload) for message in taken) == [b"1", b"2"]
    info = [msgspec.json.decode(message.event) for message in taken]  # type: ignore[arg-type]
    assert {each["order"] for each in info} == {"none"}
    assert 7 in [each.get("max_retries") for each in info]
    c.ack(*taken)
    world.flow()
    assert a.status(sent).state == "processed"


def test_an_offer_that_is_confirmed_behind_forwarded_mail_goes_the_same_way_at_once() -> None:
    """Its agent may still be connected here, and must not do it before the earlier mail."""
    mesh = Mesh("a", "b", "c")
    a, b = mesh["a"], mesh["b"]
    online(mesh, "a", "b", "c", fallback=True)
    wire = mesh.link("a", "b")
    # No acceptance reaches a, so it confirms nothing.
    wire.end_of(b).tamper = lambda frame: None if isinstance(frame, EventsFrame) else frame
    first, second = a.send_many(b, 2)
    mesh.flow()
    assert b.rows("SELECT state FROM inbox") == [("offered",), ("offered",)]

    def confirm(id: str) -> int:
        """How much mail waits for agent B when it is confirmed."""

        def operation(tx: Tx) -> int:
            intake = Intake(b.core.parts, "a", a.node.incarnation, tx.now)
            confirm_offer(intake, tx, parse_event_id(id))
            b.coordinator.apply_decisions(tx, intake.finish(tx))
            return int(tx.fetch_all("SELECT waiting FROM mailbox WHERE name = 'B'")[0][0])

        waiting: int = b.do(operation)
        return waiting

    assert confirm(first) == 1
    gateways = {id: GatewayEntry(gate.key.public) for id, gate in mesh.gates.items()}
    b.see(RoutingDirectory(gateways, {"A": AgentHome("a"), "B": AgentHome("c")}))
    assert b.rows("SELECT count(*) FROM forwarded") == [(1,)]
    assert confirm(second) == 0
    assert b.rows("SELECT count(*) FROM forwarded") == [(2,)]
