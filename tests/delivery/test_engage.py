"""Replies: inline or as blobs, for mailboxes and for callers, here and at other gateways."""

from hashlib import sha256

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from gatepost.delivery.blob_records import keep_uploaded_blob
from gatepost.errors import MailboxFull
from gatepost.events import Blob, Receipt, decode_payload
from gatepost.mailbox import NewMail
from gatepost.mailbox.settle import Settlement
from gatepost.wire.operations import LeasedMessage
from tests.delivery.world import Box, World

DIGEST = "sha256:" + sha256(b"ciphertext").hexdigest()


@pytest.fixture
def a(world: World) -> Box:
    return world.boxes["a"]


@pytest.fixture
def b(world: World) -> Box:
    return world.boxes["b"]


@pytest.fixture
def c(world: World) -> Box:
    return world.boxes["c"]


def upload(box: Box, digest: str = DIGEST, content: bytes = b"plain") -> None:
    blob = Blob(digest, 9, content)
    box.run(lambda tx: keep_uploaded_blob(tx, blob, b"k" * 32))


def ack_with_blob(box: Box, message: LeasedMessage, digest: str = DIGEST) -> Settlement:
    handle = message.receipt
    settled: Settlement = box.run(
        lambda tx: box.coordinator.ack(tx, message.to, [handle], [], {}, {handle: digest})
    )
    return settled


def receipts_about(box: Box, event_id: str) -> list[Receipt]:
    events = [event for event in box.events("ack") if event.ref_event_id == event_id]
    return [decode_payload(event, Receipt) for event in events]


def fill_mailbox(box: Box, agent: str) -> None:
    box.dispatcher.policy = replace(box.dispatcher.policy, max_pending=1)
    filler = NewMail("filler", b"0")
    box.run(lambda tx: box.dispatcher.enqueue(tx, agent, "x", [filler]))


def test_a_delivery_waits_for_the_blob_of_its_reply(world: World, a: Box, b: Box) -> None:
    sent = a.send("job", replies="caller")
    world.flow()
    upload(b)
    ack_with_blob(b, b.take()[0])
    world.flow()
    assert a.status(sent).state == "accepted", "the turn has ended, and its reply is not here yet"
    a.run(lambda tx: a.coordinator.blob_arrived(tx, DIGEST))
    world.flow()
    status = a.status(sent)
    assert (status.state, status.outcome, status.reply_ref, status.reply_size) == (
        "replied",
        "ok",
        DIGEST,
        9,
    )
    (reply,) = b.events("reply")
    assert [receipt.outcome for receipt in receipts_about(a, reply.event_id)] == [None, "kept"]


def test_a_blob_reply_for_a_mailbox_is_mail_that_names_the_blob(
    world: World, a: Box, b: Box
) -> None:
    a.send("job")
    world.flow()
    upload(b)
    ack_with_blob(b, b.take()[0])
    world.flow()
    a.run(lambda tx: a.coordinator.blob_arrived(tx, DIGEST))
    (mail,) = a.take("al")
    info = msgspec.json.decode(mail.event)  # type: ignore[arg-type]
    assert (info["kind"], info["payload_ref"], info["size"]) == ("reply", DIGEST, 9)


def test_a_delivery_whose_reply_is_given_up_ends_when_the_owner_is_asked(
    world: World, a: Box, b: Box
) -> None:
    sent = a.send("job", replies="caller")
    world.flow()
    upload(b)
    ack_with_blob(b, b.take()[0])
    world.flow()
    ask = "UPDATE delivery SET next_at = 0 WHERE processed_at IS NULL"
    a.run(lambda tx: tx.execute(ask))
    world.settle()
    a.core.parts.deliveries.forget_due()
    a.run()
    world.flow()
    assert a.status(sent).processed_at is None, "the owner says that a reply is under way"
    end = "UPDATE delivery SET processed_at = 1, state = 'dead_letter' WHERE kind = 'reply'"
    b.run(lambda tx: tx.execute(end))
    a.run(lambda tx: tx.execute(ask))
    a.core.parts.deliveries.forget_due()
    a.run()
    world.flow()
    assert (a.status(sent).state, a.status(sent).outcome) == ("processed", "ok")
    a.run(lambda tx: a.coordinator.blob_arrived(tx, DIGEST))
    assert a.status(sent).reply_ref == DIGEST, "a late reply is kept all the same"


def test_a_blob_reply_comes_back_through_the_gateway_that_forwarded_its_message(
    world: World, a: Box, b: Box, c: Box
) -> None:
    sent = a.send("job", replies="caller")
    world.flow()
    world.moves("c")
    upload(c)
    ack_with_blob(c, c.take()[0])
    world.flow()
    b.run(lambda tx: b.coordinator.blob_arrived(tx, DIGEST))
    world.flow()
    a.run(lambda tx: a.coordinator.blob_arrived(tx, DIGEST))
    assert (a.status(sent).state, a.status(sent).reply_ref) == ("replied", DIGEST)


def test_a_forwarded_reply_that_meets_a_full_mailbox_is_held_and_its_batch_is_taken(
    world: World, b: Box, c: Box
) -> None:
    sent = b.send("job", "question", sender="bo")
    world.moves("c")
    fill_mailbox(b, "bo")
    c.ack(*c.take(), reply="answer")
    world.flow()
    assert b.status(sent).state == "replied"
    other = b.send("job", "more", sender="bo", replies="caller")
    world.flow()
    c.ack(*c.take(), reply="taken too")
    world.flow()
    assert b.status(other).state == "replied", "a reply for a caller needs no mailbox"
    (filler,) = b.take("bo")
    b.ack(filler)
    (reply,) = b.take("bo")
    assert bytes(reply.payload) == b'"answer"'


def test_a_held_reply_waits_for_no_number_that_was_delivered_locally(b: Box) -> None:
    for n in range(3):
        b.send("bo", n, sender="job")
    b.ack(*b.take("bo"))
    b.send("job", "question", sender="bo")
    fill_mailbox(b, "bo")
    b.ack(*b.take(), reply="held")
    b.send("job", "another", sender="bo")
    b.ack(*b.take(), reply="behind it")
    b.ack(*b.take("bo"))
    (first,) = b.take("bo")
    b.ack(first)
    (second,) = b.take("bo")
    assert [bytes(first.payload), bytes(second.payload)] == [b'"held"', b'"behind it"']


def test_a_message_does_not_overtake_a_held_reply_of_its_pair(b: Box) -> None:
    b.send("job", "question", sender="bo")
    fill_mailbox(b, "bo")
    b.ack(*b.take(), reply="held")
    with pytest.raises(MailboxFull):
        b.send("bo", "refused", sender="job")
    b.dispatcher.policy = replace(b.dispatcher.policy, max_pending=10)
    b.send("bo", "behind it", sender="job")
    assert [bytes(mail.payload) for mail in b.take("bo")[1:]] == [b'"held"', b'"behind it"']


def test_a_reply_for_a_caller_with_a_full_mailbox_is_not_held(world: World, a: Box, b: Box) -> None:
    sent = a.send("job", replies="caller")
    world.flow()
    fill_mailbox(a, "al")
    b.ack(*b.take(), reply="answer")
    world.flow()
    assert bytes(a.status(sent).reply) == b'"answer"'  # type: ignore[arg-type]


def test_a_repeated_ack_with_another_reply_is_a_conflict(world: World, a: Box, b: Box) -> None:
    a.send("job")
    world.flow()
    (mail,) = b.take()

    def ack(reply: bytes | None) -> list[str]:
        said = {} if reply is None else {mail.receipt: Raw(reply)}
        done = b.run(lambda tx: b.coordinator.ack(tx, "job", [mail.receipt], [], said))
        return [failure.code for failure in done.failures]

    assert ack(b'"yes"') == []
    assert ack(b'"yes"') == [], "the same ack again"
    assert ack(None) == [], "it says nothing else"
    assert ack(b'"no"') == ["idempotency_conflict"]
    world.flow()
    assert [bytes(reply.payload) for reply in a.take("al")] == [b'"yes"']


def test_a_reply_uploaded_again_is_the_same_reply(world: World, a: Box, b: Box) -> None:
    a.send("job")
    world.flow()
    (mail,) = b.take()
    again, other = DIGEST.replace("a", "b"), DIGEST.replace("1", "2")
    upload(b, DIGEST, b"plain")
    upload(b, again, b"plain")
    upload(b, other, b"other")
    assert ack_with_blob(b, mail).failures == []
    assert ack_with_blob(b, mail, again).failures == []
    assert [f.code for f in ack_with_blob(b, mail, other).failures] == ["idempotency_conflict"]


def test_an_ack_with_a_blob_that_is_not_here_fails_and_ends_no_turn(
    world: World, a: Box, b: Box
) -> None:
    sent = a.send("job")
    world.flow()
    (mail,) = b.take()
    assert [f.code for f in ack_with_blob(b, mail).failures] == ["unknown_blob"]
    world.flow()
    assert a.status(sent).state == "accepted"
    b.ack(mail, reply="small")


def test_a_kept_reply_of_a_local_pair_blocks_no_later_number_elsewhere(
    world: World, b: Box, c: Box
) -> None:
    asked = b.send("job", "question", sender="bo", replies="caller")
    world.moves("c", "bo")
    b.send("bo", 1, sender="job")
    world.flow()
    b.ack(*b.take(), reply="kept here")
    assert b.status(asked).state == "replied"
    b.send("bo", 2, sender="job")
    world.flow()
    assert [bytes(mail.payload) for mail in c.take("bo")] == [b"1", b"2"]


def test_mail_that_comes_back_does_not_wait_for_a_kept_reply_behind_it(
    world: World, a: Box, b: Box
) -> None:
    a.send("bo", 1)
    asked = b.send("al", "question", sender="bo", replies="caller")
    world.flow()
    a.ack(*a.take("al"), reply="kept")
    world.flow()
    assert b.status(asked).state == "replied"
    world.moves("c", "bo")
    world.moves("b", "bo")
    a.send("bo", 3)
    world.flow()
    (first,) = b.take("bo")
    b.ack(first)
    world.flow()
    (second,) = b.take("bo")
    assert [bytes(first.payload), bytes(second.payload)] == [b"1", b"3"]
