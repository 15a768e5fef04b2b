"""Attacks of an admitted edge node against a real gateway: it harms nobody but itself."""

import contextlib
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from gatepost.client import SyncClient
from gatepost.delivery.frames import (
    BlobPiece,
    BlobRequest,
    EventsFrame,
    FollowFrame,
    HelloFrame,
    LinkFrame,
    TraceAnswer,
    TraceRequest,
    encode_frame,
)
from gatepost.events import (
    PayloadRef,
    Receipt,
    Signal,
    decode_event,
)
from gatepost.links.connections.connection import LINK_PREFIX
from gatepost.room import CoordinationRecord, CoordinatorTerm, EligibilityRecord, SignedRecord
from gatepost.room.sync_protocol import STEP_1
from gatepost.room.yjs_update import encode_state_vector
from simulation.hostile import HostileConnection, HostileNode
from tests.gateway.tools import client
from tests.security.siege import Siege, spy_of
from tests.waiting import wait_until

HUGE = 2**53 - 1
BLOB_BYTES = 300_000


# -- stops the gateway


@pytest.mark.parametrize("signal", ["pair_closed", "status_request", "expire"])
def test_a_number_near_the_limit_stops_nothing(
    siege: Siege, mallory: HostileNode, signal: str
) -> None:
    # A node may say what it likes about its own pair.
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        for number in (HUGE, HUGE - 1, 2**52):
            said = Signal(
                signal=signal,
                through=number,
                pair_seq=number,
                from_agent=spy_of(mallory),
                to_agent="al",
            )
            mallory.outbox.add_signal("ann", mallory.outbox.next_id(), said)
        connection.deliver()
    assert siege.ann.get("/v1/status")


def test_a_held_event_with_a_number_near_the_limit_stops_nothing(
    siege: Siege, mallory: HostileNode
) -> None:
    # A node may say what it likes about its own pair.
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        held = mallory.outbox.add_message(
            "ann", mallory.host_key, "al", pair_seq=HUGE, source_agent_id=spy_of(mallory)
        )
        asked = Signal(signal="status_request")
        mallory.outbox.add_signal("ann", held.event_id, asked)
        connection.deliver()
    _empty_mailbox(siege)


@pytest.mark.parametrize("payload", [b'1,"from":"boss"', b"[" * 50_000])
def test_a_payload_that_is_no_json_reaches_nobody(
    siege: Siege, mallory: HostileNode, payload: bytes
) -> None:
    with siege.expect_no_harm(mallory), siege.linked(mallory) as connection:
        mallory.outbox.add_message(
            "ann", mallory.host_key, "al", payload, source_agent_id=spy_of(mallory)
        )
        honest = mallory.outbox.add_message(
            "ann", mallory.host_key, "al", source_agent_id=spy_of(mallory)
        )
        connection.deliver()
    assert _empty_mailbox(siege) == [(spy_of(mallory), honest.event_id)]


def test_a_reply_that_is_no_json_reaches_nobody(siege: Siege, mallory: HostileNode) -> None:
    with siege.expect_no_harm(mallory), siege.linked(mallory) as connection:
        asked = _ask_spy(siege, mallory, connection)
        mallory.outbox.add_message(
            "ann",
            mallory.host_key,
            "al",
            b'1,"from":"boss"',
            kind="reply",
            ref_event_id=asked,
            source_agent_id=spy_of(mallory),
        )
        connection.deliver()
    assert _empty_mailbox(siege) == []


def test_unread_answers_to_sync_do_not_fill_memory(siege: Siege, mallory: HostileNode) -> None:
    with mallory.connect() as connection:
        connection.send_records(*(_bulky_record(mallory, f"pad{n}") for n in range(250)))
        connection.read_room()
    with siege.expect_no_harm(mallory, grow_mib=32), contextlib.ExitStack() as ends:
        for _ in range(4):
            connection = ends.enter_context(mallory.connect())
            _say_until_closed(connection, (mallory.step_1_message() for _ in range(250)))


def _bulky_record(node: HostileNode, id: str) -> SignedRecord:
    """A record of about 3 KB."""
    agents = tuple(f"{'x' * 100}{n}" for n in range(28))
    record = EligibilityRecord(eligible_agent_ids=agents, updated_at=1, policy_version=1)
    return node.sign("capabilities.index", f"{id}@{node.name}", record)


def test_repeated_follows_that_nobody_reads_do_not_fill_memory(siege: Siege) -> None:
    """Only a backbone node may follow at all."""
    node = siege.admit("backbone-follower", "backbone")
    for _ in range(20):
        siege.send("bo", "x" * 50_000)
    with siege.expect_no_harm(node), siege.linked(node) as connection:
        frame = encode_frame(FollowFrame([], 4 << 20))
        _say_until_closed(connection, (LINK_PREFIX + frame for _ in range(100_000)))


def test_nobody_follows_an_outbox_without_being_a_relay(siege: Siege, mallory: HostileNode) -> None:
    # The room has a minute to show that it is a relay; only then it is named.
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        connection.send_frame(FollowFrame([], 4 << 20))
        connection.send_frame(TraceRequest(7, [mallory.outbox.next_id()]))
        # Frames are answered in their order, and the trace is the later one.
        while not isinstance(frame := connection.receive_frame(LinkFrame), TraceAnswer):
            assert not isinstance(frame, EventsFrame), "an edge node reads all metadata"


# -- takes what is not its own


def test_mail_in_the_name_of_an_agent_elsewhere_is_refused(
    siege: Siege, mallory: HostileNode
) -> None:
    # The room has 15 s to show that the agent lives there; only then it is named.
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        mallory.outbox.add_message("ann", mallory.host_key, "al", source_agent_id="bo")
        connection.deliver()
    assert _empty_mailbox(siege) == []


def test_a_reply_of_a_node_that_was_not_asked_reaches_nobody(
    siege: Siege, mallory: HostileNode
) -> None:
    sent = siege.send("bo", "a question", wait="processed")
    with siege.expect_no_harm(mallory), siege.linked(mallory) as connection:
        mallory.outbox.add_message(
            "ann",
            mallory.host_key,
            "al",
            kind="reply",
            ref_event_id=sent.event_id,
            source_agent_id=spy_of(mallory),
        )
        mallory.outbox.add_receipt("ann", sent.event_id, Receipt(status="processed", outcome="ok"))
        connection.deliver()
    assert _empty_mailbox(siege) == []


def test_a_claim_does_not_take_an_agent(siege: Siege) -> None:
    node = siege.admit("claimant")
    with siege.expect_no_harm(node), node.connect() as connection:
        connection.send_records(
            node.sign_agent("bo", epoch=2**31 - 1), node.sign_agent("al", epoch=7)
        )
        wait_until(lambda: "agents bo@claimant" in siege.bob.records())


def test_an_agent_that_is_served_is_not_given_away(siege: Siege, mallory: HostileNode) -> None:
    # Signals of later versions are ignored, and so are invented ones.
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        for name in ("transfer_request", "transfer_ask", "ask_agent", "claim"):
            said = Signal(signal=name, from_agent=spy_of(mallory), to_agent="al", through=1)
            mallory.outbox.add_signal("ann", None, said)
        connection.deliver()


@pytest.mark.parametrize("reader", [None, "bob"])
def test_a_blob_is_given_to_its_receiver_only(
    siege: Siege, mallory: HostileNode, reader: str | None
) -> None:
    digest = _send_blob(siege, "bo")
    # In its own name it may ask for any blob, and gets nothing.
    with (
        siege.expect_no_harm(mallory, named=reader is not None),
        siege.linked(mallory) as connection,
    ):
        connection.send_frame(BlobRequest("ann", digest, 0, 65_536, reader))
        try:
            piece = connection.receive_frame(BlobPiece)
        except ConnectionClosed:
            return
        assert (piece.total, piece.data) == (0, b"")


def test_unread_pieces_of_blobs_do_not_fill_memory(siege: Siege, mallory: HostileNode) -> None:
    digest = _send_blob(siege, spy_of(mallory))
    with siege.expect_no_harm(mallory), siege.linked(mallory) as connection:
        ask = LINK_PREFIX + encode_frame(BlobRequest("ann", digest, 0, 262_144))
        with client(siege.ann) as http:
            for _ in range(100):
                _say_until_closed(connection, (ask for _ in range(4)))
                # The answer of another door shows that the gateway has come to these requests.
                http.get("/healthz")


def _send_blob(siege: Siege, agent: str) -> str:
    siege.send(agent, "b" * BLOB_BYTES)
    blobs = siege.ann.state_dir / "blobs"
    newest = max((f for f in blobs.rglob("*") if f.is_file()), key=lambda f: f.stat().st_mtime_ns)
    return f"sha256:{newest.name}"


# -- spoils the room


def test_no_epoch_makes_rotation_impossible(siege: Siege) -> None:
    node = siege.admit("epochal")
    claim = CoordinationRecord(
        coordinator="epochal",
        term=CoordinatorTerm(counter=2**30, node="epochal"),
        sweep_every_seconds=60,
        room_epoch=2**31 - 1,
    )
    with siege.expect_no_harm(node), node.connect() as connection:
        connection.send_records(node.sign("coordination", "coordinator@epochal", claim))
        connection.wait_for_close()
    siege.expect_named("epochal")


def test_a_version_that_it_signs_twice_is_one_record_everywhere_and_names_it_at_both_gateways(
    siege: Siege, mallory: HostileNode
) -> None:
    twin = HostileNode(siege.bob.url, mallory.name, mallory.key)
    place = f"nodes {mallory.name}"
    with mallory.connect() as to_ann, twin.connect() as to_bob:
        to_ann.send_records(mallory.sign_node(9, status="offline"))
        to_bob.send_records(mallory.sign_node(9, status="degraded"))
        siege.expect_named(mallory.name)
        wait_until(lambda: siege.naming(mallory.name, siege.bob))
    wait_until(lambda: siege.ann.records()[place] == siege.bob.records()[place])
    for gateway in (siege.ann, siege.bob):
        assert gateway.records()[place]["version"] == 9
        (named,) = siege.naming(mallory.name, gateway)
        assert "signed version 9" in named["detail"]


def test_the_awareness_id_of_another_is_of_no_use(siege: Siege) -> None:
    node, victim = siege.admit("squatter"), siege.admit("squatted")
    with node.connect() as first, victim.connect() as second:
        first.send_message(node.awareness_message(4242, 2**31, "{}"))
        first.send_message(node.awareness_query())
        first.receive_message()
        second.send_message(victim.awareness_message(4242, 1, '{"nodeId":"squatted"}'))
        second.send_message(victim.awareness_message(4242, 2**31 + 1, '{"nodeId":"squatted"}'))
        second.greet()


def test_messages_that_keep_every_rule_do_not_burn_the_event_loop(
    siege: Siege, mallory: HostileNode
) -> None:
    vector = mallory.sync_message(_long_state_vector(), STEP_1)
    with siege.expect_no_harm(mallory, named=False), mallory.connect() as connection:
        _say_until_closed(connection, (vector for _ in range(6)))


def _long_state_vector() -> bytes:
    return encode_state_vector([(n << 20, n) for n in range(1, 200_000)])


# -- exhausts


def test_references_to_blobs_that_never_come_keep_nobody_from_theirs(
    siege: Siege, mallory: HostileNode
) -> None:
    # A source may be slow with its blobs; the quota is its own.
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        for n in range(400):
            ref = PayloadRef(f"sha256:{n:064x}", 1000, {"x": b"k"})
            mallory.outbox.add_message(
                "ann",
                mallory.host_key,
                "al",
                payload_ref=ref,
                source_agent_id=spy_of(mallory),
            )
        connection.deliver()
        with SyncClient("bo", state_dir=siege.bob.state_dir) as bo:
            sent = bo.send("al", "b" * BLOB_BYTES, wait="accepted", timeout=30)
            assert sent.state == "accepted"
    _empty_mailbox(siege)


def test_events_for_unknown_agents_are_not_held(siege: Siege, mallory: HostileNode) -> None:
    before = _held_events(siege)
    # An honest sender may not have heard yet that an agent is gone.
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        for n in range(50):
            mallory.outbox.add_message(
                "ann",
                mallory.host_key,
                f"nobody{n}",
                b'"' + b"x" * 50_000 + b'"',
                pair_seq=n + 5,
                source_agent_id=spy_of(mallory),
            )
        connection.deliver()
    assert _held_events(siege) <= before


def _held_events(siege: Siege) -> float:
    with client(siege.ann) as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("gatepost_held{"))


# -- leaks


def test_its_words_stay_on_one_line_of_the_log(siege: Siege) -> None:
    node = siege.admit("scribe")
    with node.connect() as connection:
        connection.introduce()
        line = "x\n12:00:00 error   the disk is on fire \x1b[31m"
        connection.send_frame(HelloFrame(line[:100], [("i", 1)], 0, 0))
        connection.wait_for_close()
    log = siege.ann.log.read_text()
    assert not [each for each in log.splitlines() if each.startswith("12:00:00 error   the disk")]
    assert "\x1b[31m" not in log


def _say_until_closed(connection: HostileConnection, messages: Iterator[bytes]) -> None:
    with contextlib.suppress(ConnectionClosed):
        for message in messages:
            connection.send_message(message)


def _ask_spy(siege: Siege, node: HostileNode, connection: HostileConnection) -> str:
    """A message of `al` that really was routed to the hostile node."""
    connection.subscribe()
    sent = siege.send(spy_of(node), "a question")
    while True:
        frame = connection.receive_frame(EventsFrame)
        if sent.event_id in [decode_event(body).event_id for body in frame.events]:
            return str(sent.event_id)


def _empty_mailbox(siege: Siege) -> list[tuple[str, str]]:
    """Take everything from the mailbox of `al`: sender and id."""
    taken = siege.ann.call("POST", "/mailboxes/al/dequeue", {"limit": 100})["messages"]
    if taken:
        receipts = [each["receipt"] for each in taken]
        siege.ann.call("POST", "/mailboxes/al/ack", {"receipts": receipts})
    return [(each["from"], each["msg_id"]) for each in taken]
