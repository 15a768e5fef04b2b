"""A room does not grow with time, and a newcomer to a large one does not wait."""

import time
from collections.abc import Callable

from msgspec.structs import replace

from gatepost.room import Author, Awareness, Peer, Room, Signed
from gatepost.room.signing import sign
from tests.room.cast import (
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
)

Count = Callable[[int, int], int]


def size(of: Room) -> int:
    return sum(map(len, of.missing(b"\x00")))


def test_heartbeats_and_cursor_moves_leave_the_room_small(count: Count) -> None:
    """Ten gateways beat every ten seconds, and each record that they publish reaches the others."""
    gateways = [author(f"gateway-{n}", "backbone") for n in range(10)]
    rooms = [Room(GENESIS, author=who, records=[entry(ROOT)]) for who in gateways]
    hub = Room(GENESIS, records=[entry(ROOT)])
    for beat in range(count(200, 10_000)):
        now = NOW + beat * 10_000
        for who, own in zip(gateways, rooms, strict=True):
            hub.accept(beating(own, who, now, beat))
    assert len(hub.document) == 21
    assert size(hub) < 32 * 1024


def beating(own: Room, who: Author, now: int, beat: int) -> tuple[Signed, ...]:
    alive = own.put("nodes", who.node, replace(node(who), last_heartbeat_at=now), now)
    moved = own.put("delivery", who.node, delivery(beat), now)
    return alive.changed + moved.changed


def test_a_key_written_without_end_costs_as_much_as_one_written_once() -> None:
    once, often = room_of(entry(ROOT)), room_of(entry(ROOT, 2_000_000_000))
    assert size(often) - size(once) < 64


def room_of(*records: Signed) -> Room:
    return Room(GENESIS, records=records)


def crowd(nodes: int, agents: int) -> list[Signed]:
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
    host = Peer(resident, Awareness("root", 1), "late", "guest")
    late = room_of()
    guest = Peer(late, Awareness("late", 2), "root", "host")
    start = time.process_time()
    for hello in guest.connected():
        for message in host.receive(hello):
            guest.receive(message)
    assert len(late.view.agents) == 5000
    took = time.process_time() - start
    assert contents(late) == contents(resident)
    assert took < 2


def test_a_record_that_says_little_is_little() -> None:
    who = author("gateway-1")
    assert len(sign(who, "delivery", who.node, 1, NOW, delivery(5)).text) < 500
    assert len(entry(who).text) < 700
