"""Fuzzing the room: no message does more than break a rule, and none costs much."""

import time
from random import Random

import pytest

from gatepost.access.welcome_header import Welcome
from gatepost.errors import Forbidden, RoomViolation
from gatepost.room import (
    CoordinationRecord,
    CoordinatorTerm,
    RoomAwareness,
    RoutingRecord,
    SharedRoom,
    SyncPeer,
)
from gatepost.room.sync_protocol import SyncRole
from gatepost.testing import ManualClock
from simulation.hostile import HostileIdentity
from tests.room.sample_records import GENESIS, NOW, ROOT, author, entry, key
from tests.security.mutations import TIMEOUT_SECS, mutate_bytes, run_cases

pytestmark = pytest.mark.timeout(TIMEOUT_SECS)

# One message of 4 MiB may take this long on a slow machine; a hang takes for ever.
_LONGEST_SECS = 20.0


def _identity() -> HostileIdentity:
    node = HostileIdentity("mallory", key("mallory"), ManualClock(NOW))
    node.welcome(Welcome(GENESIS, 1, author("mallory", "backbone").chain))
    return node


def _valid_messages(node: HostileIdentity) -> list[bytes]:
    coordination = CoordinationRecord(
        coordinator="mallory",
        term=CoordinatorTerm(counter=1, node="mallory"),
        sweep_every_seconds=60,
    )
    route = RoutingRecord(owner_node_id="mallory", fallback_node_ids=("root",))
    records = [
        node.sign_node(),
        node.sign_node(),
        node.sign_agent("spy"),
        node.sign("agents", "spy@mallory", None),
        node.sign("routing", "spy@mallory", route),
        node.sign("coordination", "coordinator@mallory", coordination),
        node.admit("accomplice").sign_node(),
        entry(author("other")),
    ]
    room = SharedRoom(GENESIS, records=[records[0]])
    return [
        *(message for each in records for message in node.room_messages(each)),
        *node.room_messages(*records[2:5]),
        node.step_1_message(),
        node.step_1_message(room.state_vector()),
        node.awareness_message(7, 3, '{"nodeId":"mallory","status":"online","seenAt":5}'),
        node.awareness_query(),
        b"\x02\x00\x02no",
    ]


def test_mutated_room_messages_break_a_rule_or_none() -> None:
    node = _identity()
    samples = _valid_messages(node)
    untouched = {"root", "victim"}

    def try_case(number: int, random: Random) -> None:
        if number % 200 == 0:
            case.room = _new_room()
        message = mutate_bytes(random.choice(samples), random, samples)
        peer = SyncPeer(case.room, RoomAwareness("root", 1), "mallory", random.choice(_ROLES))
        before = {s.slot_key: s for s in case.room.document if s.writer in untouched}
        began = time.monotonic()
        try:
            peer.receive_message(message)
            peer.pending_messages()
        except (RoomViolation, Forbidden):
            pass
        finally:
            peer.close()
        assert time.monotonic() - began < _LONGEST_SECS
        assert {s.slot_key: s for s in case.room.document if s.writer in untouched} == before
        assert len(case.room.document) < 1000

    class case:
        room = _new_room()

    run_cases("room", try_case)


_ROLES: tuple[SyncRole, ...] = ("dialer", "listener")


def _new_room() -> SharedRoom:
    victim = author("victim")
    return SharedRoom(GENESIS, author=ROOT, records=[entry(ROOT), entry(victim)])
