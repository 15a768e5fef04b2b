"""Two ends of a connection, and the standard clients that may be at one of them."""

import contextlib
from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycrdt import (
    Doc,
    Map,
    YMessageType,
    create_sync_message,
    handle_sync_message,
)

from gatepost.errors import Forbidden, RoomViolation
from gatepost.room import (
    MAX_MESSAGE_BYTES,
    ConnectionPresence,
    RecordAuthor,
    RoomAwareness,
    SharedRoom,
    SyncPeer,
    lib0,
)
from gatepost.room.document import CHUNK_BYTES
from tests.conftest import choose
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    agent,
    author,
    claim,
    contents,
    delivery,
    entry,
    node,
    publish,
    room,
    shown,
    update,
)

BEN, CAT = author("ben"), author("cat")


class Gateway:
    """A room, its awareness, and connections to others."""

    def __init__(self, who: RecordAuthor, *records: Any) -> None:
        self.who = who
        self.room = SharedRoom(GENESIS, author=who, records=records)
        self.awareness = RoomAwareness(who.node, Random(who.node).randrange(2**32))
        self.awareness.announce_presence(ConnectionPresence(node_id=who.node, status="online"))

    def meets(self, other: "Gateway", role: Any) -> SyncPeer:
        return SyncPeer(self.room, self.awareness, other.who.node, role)


class Link:
    """A connection in memory: messages wait on either side until they are carried."""

    def __init__(self, dialler: Gateway, listener: Gateway) -> None:
        self.ends = (dialler.meets(listener, "listener"), listener.meets(dialler, "dialer"))
        self.wires = (deque[bytes](), deque[bytes]())
        for end, wire in zip(self.ends, self.wires, strict=True):
            wire.extend(end.first_messages())

    def carry(self) -> bool:
        """One message each way; whether there was any."""
        busy = False
        for side in (0, 1):
            self.wires[side].extend(self.ends[side].pending_messages())
            if self.wires[side]:
                busy = True
                answer = self.ends[1 - side].receive_message(self.wires[side].popleft())
                self.wires[1 - side].extend(answer)
        return busy

    def settle(self) -> None:
        while self.carry():
            pass

    def cut(self) -> None:
        for end in self.ends:
            end.close()


def settle(*links: Link) -> None:
    while sum(link.carry() for link in links):
        pass


def test_both_sides_end_up_with_what_either_had() -> None:
    ben = Gateway(BEN, entry(BEN), entry(ROOT, 2))
    cat = Gateway(CAT, entry(CAT), entry(ROOT, 5))
    link = Link(ben, cat)
    link.settle()
    assert contents(ben.room) == contents(cat.room)
    assert contents(ben.room) == {entry(BEN).text, entry(CAT).text, entry(ROOT, 5).text}
    assert all(end.synced for end in link.ends)


def test_a_change_reaches_everyone_through_a_relay_and_comes_back_to_nobody() -> None:
    root, ben, cat = Gateway(ROOT, entry(ROOT)), Gateway(BEN, entry(BEN)), Gateway(CAT, entry(CAT))
    links = [Link(ben, root), Link(cat, root)]
    settle(*links)
    publish(ben.room, "agents", "job@ben", agent("ben"), NOW)
    assert len(list(links[0].ends[0].pending_messages())) == 1
    publish(ben.room, "agents", "job@ben", agent(None), NOW)
    settle(*links)
    assert cat.room.effective.agents["job"].gateway is None
    assert [list(end.pending_messages()) for link in links for end in link.ends] == [[]] * 4


def test_what_a_peer_brought_is_not_sent_back_to_it() -> None:
    root = Gateway(ROOT, entry(ROOT))
    ben, cat = (root.meets(Gateway(who), "dialer") for who in (BEN, CAT))
    ben.receive_message(b"\x00\x02" + lib0.encode_bytes(update(entry(BEN))))
    assert list(ben.pending_messages()) == []
    assert len(list(cat.pending_messages())) == 1


def test_what_went_out_with_step_2_does_not_go_out_again() -> None:
    root = Gateway(ROOT, entry(ROOT))
    peer = root.meets(Gateway(BEN), "dialer")
    publish(root.room, "delivery", "root", delivery(1), NOW)
    (answer,) = peer.receive_message(b"\x00\x00\x01\x00")
    assert b"inboxCursorAcked" in answer
    assert list(peer.pending_messages()) == []


def test_a_slow_peer_is_sent_each_key_once_however_often_it_changed() -> None:
    ben, cat = Gateway(BEN, entry(BEN)), Gateway(CAT, entry(CAT))
    link = Link(ben, cat)
    link.settle()
    for number in range(500):
        publish(ben.room, "delivery", "ben", delivery(number), NOW + number * 60_000)
    waiting = list(link.ends[0].pending_messages())
    assert sum(map(len, waiting)) < 1000
    assert cat.room.document.record_at(("delivery", "ben", BEN.key.public)) is None
    for message in waiting:
        link.ends[1].receive_message(message)
    assert cat.room.effective.delivery["ben"] == delivery(499)


def test_a_large_room_goes_over_in_pieces_and_step_2_is_the_last() -> None:
    many = [claim(BEN, "agents", f"a{n}", agent("ben")) for n in range(2500)]
    ben = Gateway(BEN, entry(BEN), *many)
    peer = ben.meets(Gateway(CAT), "dialer")
    messages = list(peer.receive_message(b"\x00\x00\x01\x00"))
    assert len(messages) > 2
    assert [message[1] for message in messages] == [2] * (len(messages) - 1) + [1]
    assert max(map(len, messages)) < CHUNK_BYTES + 20_000 < MAX_MESSAGE_BYTES
    cat = Gateway(CAT)
    for message in messages:
        cat.meets(ben, "listener").receive_message(message)
    assert contents(cat.room) == contents(ben.room)


def test_dialling_peers_hear_of_each_other_and_a_listener_only_of_its_own() -> None:
    root, ben, cat = Gateway(ROOT), Gateway(BEN), Gateway(CAT)
    far = Gateway(author("far"))
    links = [Link(ben, root), Link(cat, root), Link(root, far)]
    settle(*links)
    assert {len(root.awareness.present_entries()), len(far.awareness.present_entries())} == {3, 2}
    links[1].cut()
    told = list(links[0].ends[1].pending_messages())
    assert [message[0] for message in told] == [YMessageType.AWARENESS]
    assert list(links[2].ends[0].pending_messages()) == []
    assert len(root.awareness.present_entries()) == 2


def test_asking_for_awareness_is_answered() -> None:
    root = Gateway(ROOT)
    (answer,) = root.meets(Gateway(BEN), "dialer").receive_message(b"\x03")
    assert b'{"nodeId":"root","status":"online"}' in answer


def test_a_host_that_refuses_is_heard() -> None:
    peer = Gateway(BEN).meets(Gateway(ROOT), "listener")
    with pytest.raises(Forbidden, match="root refused the room: revoked"):
        peer.receive_message(b"\x02\x00" + lib0.encode_text("revoked"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x04",
        b"\x00",
        b"\x00\x03\x00",
        b"\x00\x02\x01",
        b"\x00\x00\x01\x00more",
        b"\x00\x02" + lib0.encode_bytes(update(entry(BEN))) + b"more",
        b"\x01" + lib0.encode_bytes(b"\x01\x05\x01" + lib0.encode_text("{}")) + b"more",
        b"\x03more",
        b"\x02\x00" + lib0.encode_text("no"),
        b"\x01\x00\x00",
        b"\x00\x02" + lib0.encode_bytes(b"nonsense"),
        bytes(MAX_MESSAGE_BYTES + 1),
    ],
)
def test_a_message_that_is_none_is_a_violation(message: bytes) -> None:
    root = Gateway(ROOT, entry(ROOT))
    before = contents(root.room), root.awareness.present_entries()
    with pytest.raises(RoomViolation):
        root.meets(Gateway(BEN), "dialer").receive_message(message)
    assert (contents(root.room), root.awareness.present_entries()) == before


def test_a_forged_state_is_a_violation_from_a_peer() -> None:
    root = Gateway(ROOT)
    ben, cat = (root.meets(Gateway(who), "dialer") for who in (BEN, CAT))
    state = b"\x01" + lib0.encode_bytes(b"\x01\x05\x01" + lib0.encode_text('{"nodeId":"ben"}'))
    ben.receive_message(state)
    with pytest.raises(RoomViolation):
        cat.receive_message(state.replace(b"\x05\x01", b"\x05\x02"))


@given(st.binary(max_size=60))
def test_random_messages_raise_nothing_but_violations(message: bytes) -> None:
    with contextlib.suppress(RoomViolation):
        Gateway(ROOT, entry(ROOT)).meets(Gateway(BEN), "dialer").receive_message(message)


def test_a_standard_client_reads_the_room_and_sees_live_changes() -> None:
    root = Gateway(ROOT, entry(ROOT), entry(BEN, 8))
    peer = root.meets(Gateway(CAT), "dialer")
    doc: Doc[Any] = Doc()
    nodes = doc.get("nodes", type=Map)
    answers = peer.receive_message(create_sync_message(doc))
    for message in [*answers, *peer.first_messages()]:
        if message[0] == YMessageType.SYNC:
            reply = handle_sync_message(message[1:], doc)
            if reply is not None:
                assert peer.receive_message(reply) == []
    assert nodes["ben"]["record"] == entry(BEN, 8).text
    root.room.accept_drafts([entry(BEN, 9)])
    for message in peer.pending_messages():
        handle_sync_message(message[1:], doc)
    assert nodes["ben"]["record"] == entry(BEN, 9).text
    assert peer.synced


def test_a_peer_that_left_is_not_kept() -> None:
    root = Gateway(ROOT, entry(ROOT))
    peer = root.meets(Gateway(BEN), "dialer")
    peer.close()
    peer.close()
    publish(root.room, "delivery", "root", delivery(1), NOW)
    assert list(peer.pending_messages()) == []


@settings(max_examples=choose(25, 500))
@given(st.randoms(use_true_random=False))
def test_three_gateways_converge_through_drops_and_reconnects(random: Random) -> None:
    """Writes, deliveries, cuts and reconnects in any order; then all links heal."""
    everyone = [Gateway(who, entry(who)) for who in (ROOT, BEN, CAT)]
    pairs = [(0, 1), (1, 2), (2, 0)]
    links = [Link(everyone[a], everyone[b]) for a, b in pairs]
    for step in range(60):
        number = random.randrange(3)
        action = random.choice(["write", "carry", "carry", "cut"])
        if action == "write":
            write(everyone[number], random, step)
        elif action == "carry":
            links[number].carry()
        else:
            links[number].cut()
            links[number] = Link(*(everyone[i] for i in pairs[number]))
    settle(*links)
    assert len({frozenset(contents(gateway.room)) for gateway in everyone}) == 1
    assert shown(everyone[0].room) == shown(everyone[1].room) == shown(everyone[2].room)


def write(gateway: Gateway, random: Random, step: int) -> None:
    name, now = gateway.who.node, NOW + step * 60_000
    what = random.randrange(3)
    if what == 0:
        publish(gateway.room, "delivery", name, delivery(step), now)
    elif what == 1:
        publish(gateway.room, "agents", f"job@{name}", agent(random.choice([name, None])), now)
    else:
        publish(gateway.room, "agents", f"job@{name}", None, now)


def test_records_of_a_node_are_taken_before_its_own_record() -> None:
    late = room(entry(ROOT))
    late.apply_update(update(claim(BEN, "agents", "job", agent("ben"))))
    assert dict(late.effective.agents) == {}
    late.apply_update(update(entry(BEN)))
    assert late.effective.agents["job"].gateway == "ben"
    assert late.effective.nodes["ben"].record == node(BEN)


def test_both_ends_know_what_the_other_says_about_itself_while_they_are_connected() -> None:
    ben, cat = Gateway(BEN, entry(BEN)), Gateway(CAT, entry(CAT))
    link = Link(ben, cat)
    link.settle()
    for gateway, other in ((ben, "cat"), (cat, "ben")):
        said = gateway.awareness.presence_of(other)
        assert said is not None and said.status == "online"
    cat.awareness.announce_presence(ConnectionPresence(node_id="cat", status="degraded"))
    link.settle()
    said = ben.awareness.presence_of("cat")
    assert said is not None and said.status == "degraded"
    link.cut()
    assert ben.awareness.presence_of("cat") is None
