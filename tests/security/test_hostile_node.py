"""The hostile node itself: true by default, and able to lie."""

import pytest

from gatepost.delivery.frames import EventsFrame
from gatepost.errors import TokenAlreadyUsed
from gatepost.events import Receipt, decode_event, decode_payload
from simulation.hostile import HostileConnection, HostileIdentity, HostileNode
from tests.security.siege import Siege, spy_of
from tests.waiting import wait_until


def test_it_is_a_member_as_any_other(siege: Siege) -> None:
    node = siege.admit("member")
    assert siege.ann.nodes()["member"]["tier"] == "edge"
    with node.connect() as connection:
        room = connection.read_room()
    assert {"ann", "bob", "member"} <= room.effective.nodes.keys()


def test_an_invite_lets_it_in_once(siege: Siege) -> None:
    token = siege.ann.invite("once", "edge")
    HostileNode(siege.ann.url, "once").join(token).close()
    with pytest.raises(TokenAlreadyUsed):
        HostileNode(siege.ann.url, "once").join(token)


def test_a_true_message_reaches_its_agent_and_is_acknowledged(siege: Siege) -> None:
    node = siege.admit("writer")
    with siege.linked(node) as connection:
        connection.subscribe()
        sent = node.outbox.add_message(
            "ann", node.host_key, "al", b'"from afar"', source_agent_id=spy_of(node)
        )
        connection.send_events()
        assert _receipt_for(connection, sent.event_id).status == "accepted"
    mail = siege.ann.call("POST", "/mailboxes/al/dequeue", {"limit": 10})["messages"]
    assert [(each["from"], each["payload"]) for each in mail] == [("spy-writer", "from afar")]
    siege.ann.call("POST", "/mailboxes/al/ack", {"receipts": [mail[0]["receipt"]]})


def _receipt_for(connection: HostileConnection, event_id: str) -> Receipt:
    while True:
        frame = connection.receive_frame(EventsFrame)
        for event in map(decode_event, frame.events):
            if event.kind == "ack" and event.ref_event_id == event_id:
                return decode_payload(event, Receipt)


def test_a_record_that_is_not_its_own_ends_the_connection(siege: Siege) -> None:
    node = siege.admit("forger")
    with siege.expect_no_harm(node), node.connect() as connection:
        connection.send_records(node.sign("nodes", "bob", node.sign_node().data, 99))
        assert connection.wait_for_close() == (4403, "room_violation")


def test_an_accomplice_needs_no_gateway(siege: Siege) -> None:
    """Identities work without sockets, so that cores and codecs can be attacked directly."""
    node = siege.admit("recruiter", "backbone")
    accomplice = node.admit("recruit")
    assert isinstance(accomplice, HostileIdentity)
    with node.connect() as connection:
        connection.send_records(accomplice.sign_node())
        wait_until(lambda: "nodes recruit" in siege.ann.records())
