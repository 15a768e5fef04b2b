"""A room does not grow with time, and a newcomer to a large one does not wait."""

import time
from collections.abc import Callable

from msgspec.structs import replace

from gatepost.room import RecordAuthor, RoomAwareness, SharedRoom, SignedRecord, SyncPeer
from gatepost.room.signed_record import sign_record
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
)

Count = Callable[[int, int], int]


def size(of: SharedRoom) -> int:
    return sum(map(len, of.missing_updates(b"\x00")))


def test_heartbeats_and_cursor_moves_leave_the_room_small(count: Count) -> None:
    """Ten gateways beat every ten seconds, and each record that they publish reaches the others."""
    gateways = [author(f"gateway-{n}", "backbone") for n in range(10)]
    rooms = [SharedRoom(GENESIS, author=who, records=[entry(ROOT)]) for who in gateways]
    hub = SharedRoom(GENESIS, records=[entry(ROOT)])
    for beat in range(count(200, 10_000)):
        now = NOW + beat * 10_000
        for who, own in zip(gateways, rooms, strict=True):
            hub.accept_drafts(beating(own, who, now, beat))
    assert len(hub.document) == 21
    assert size(hub) < 32 * 1024


def beating(own: SharedRoom, who: RecordAuthor, now: int, beat: int) -> tuple[SignedRecord, ...]:
    alive = publish(own, "nodes", who.node, replace(node(who), last_heartbeat_at=now), now)
    moved = publish(own, "delivery", who.node, delivery(beat), now)
    return alive + moved


def test_a_key_written_without_end_costs_as_much_as_one_written_once() -> None:
    once, often = room_of(entry(ROOT)), room_of(entry(ROOT, 2_000_000_000))
    assert size(often) - size(once) < 64


def room_of(*records: SignedRecord) -> SharedRoom:
    return SharedRoom(GENESIS, records=records)


def crowd(nodes: int, agents: int) -> list[SignedRecord]:
    records = []
    for number in range(nodes):
        who = author(f"node-{number:04}")
        records.append(entry(who))
        records += [
            claim(who, "agents", f"agent-{number}-{n}", agent(who.node)) for n in range(agents)
        ]
    return records


def test_a_newcomer_to_a_large_room_is_synced_in_two_seconds() -> None:
    """Signatures, view and all. It is the work that is timed, not what else the machine does."""
    resident = room_of(entry(ROOT), *crowd(1000, 5))
    host = SyncPeer(resident, RoomAwareness("root", 1), "late", "dialer")
    late = room_of()
    late_peer = SyncPeer(late, RoomAwareness("late", 2), "root", "listener")
    start = time.process_time()
    for hello in late_peer.first_messages():
        for message in host.receive_message(hello):
            late_peer.receive_message(message)
    assert len(late.effective.agents) == 5000
    took = time.process_time() - start
    assert contents(late) == contents(resident)
    assert took < 2


def test_a_record_that_says_little_is_little() -> None:
    who = author("gateway-1")
    assert len(sign_record(who, "delivery", who.node, 1, NOW, delivery(5)).text) < 500
    assert len(entry(who).text) < 700
