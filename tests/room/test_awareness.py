"""Who is connected: one state per connection, in its own name, and no more than a state."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import RoomViolation
from gatepost.room import ConnectionPresence, RoomAwareness
from gatepost.room import awareness as protocol
from gatepost.room.awareness import (
    MAX_ENTRIES,
    MAX_STATE_BYTES,
    AwarenessEntry,
    bind_client,
    decode_state,
    shorten_reason,
)


def hub() -> RoomAwareness:
    return RoomAwareness("hub", 1)


def says(client: int, clock: int, **state: object) -> AwarenessEntry:
    return AwarenessEntry(client, clock, json.dumps(state))


HUB, BEN, CAT = bind_client("hub", 1), bind_client("ben", 5), bind_client("cat", 6)


def test_entries_are_read_as_they_were_written() -> None:
    entries = [says(5, 1, nodeId="ben"), AwarenessEntry(2**53 - 1, 0, "null")]
    assert protocol.decode_awareness(protocol.encode_awareness(entries)) == entries


def test_a_member_is_present_until_it_leaves() -> None:
    here, heard = hub(), list[AwarenessEntry]()
    here.on_change(lambda entry, speaker: heard.append(entry))
    here.receive_entries([says(5, 3, nodeId="ben")], "conn", "ben")
    assert here.present_entries() == [says(BEN, 3, nodeId="ben")]
    here.remove_connection("conn")
    assert here.present_entries() == []
    assert heard == [says(BEN, 3, nodeId="ben"), AwarenessEntry(BEN, 4, "null")]


def test_nobody_takes_the_id_of_another_nodes_client() -> None:
    """Neither before the other comes, nor after."""
    here = hub()
    here.receive_entries([says(5, 2**53 - 1, nodeId="mallory")], "mallorys", "mallory")
    here.receive_entries([says(5, 3, nodeId="ben")], "bens", "ben")
    here.receive_entries([says(5, 4, nodeId="ben")], "bens", "ben")
    assert here.present_entries() == [
        says(bind_client("mallory", 5), 2**53 - 1, nodeId="mallory"),
        says(BEN, 4, nodeId="ben"),
    ]
    with pytest.raises(RoomViolation):
        here.receive_entries([says(BEN, 9)], "others", "mallory")


def test_the_gateway_announces_itself_with_a_rising_clock() -> None:
    here = hub()
    here.announce_presence(ConnectionPresence(node_id="hub", status="online"))
    here.announce_presence(ConnectionPresence(node_id="hub", status="degraded"))
    assert here.own_entries() == [AwarenessEntry(HUB, 2, '{"nodeId":"hub","status":"degraded"}')]


def two_members() -> RoomAwareness:
    here = hub()
    here.announce_presence(ConnectionPresence(node_id="hub"))
    here.receive_entries([says(5, 3)], "bens", "ben")
    here.receive_entries([says(6, 3)], "cats", "cat")
    return here


@pytest.mark.parametrize(
    "entry",
    [
        says(BEN, 4),
        AwarenessEntry(BEN, 4, "null"),
        says(HUB, 9),
        says(7, 1),
        says(6, 4, nodeId="ben"),
        says(6, 4, payload="x"),
        AwarenessEntry(6, 4, "[]"),
        AwarenessEntry(6, 4, "{"),
        AwarenessEntry(6, 4, '"payload"'),
    ],
)
def test_forged_awareness_is_a_violation_and_changes_nothing(entry: AwarenessEntry) -> None:
    here = two_members()
    before = here.present_entries()
    with pytest.raises(RoomViolation) as caught:
        here.receive_entries([says(6, 5), entry], "cats", "cat")
    assert caught.value.rule == "awareness"
    assert here.present_entries() == before


def test_a_connection_does_not_start_by_speaking_for_somebody_else() -> None:
    for client in (HUB, BEN):
        with pytest.raises(RoomViolation):
            two_members().receive_entries([says(client, 9)], "dans", "dan")


@pytest.mark.parametrize(
    "entry",
    [
        says(BEN, 3),
        says(BEN, 1, nodeId="zoe"),
        AwarenessEntry(BEN, 3, "null"),
        AwarenessEntry(77, 8, "null"),
    ],
)
def test_an_echo_is_passed_over(entry: AwarenessEntry) -> None:
    here = two_members()
    before = here.present_entries()
    here.receive_entries([entry], "cats", "cat")
    assert here.present_entries() == before


def test_an_echo_of_somebody_who_left_is_passed_over() -> None:
    here = two_members()
    here.remove_connection("bens")
    here.receive_entries([says(BEN, 3)], "cats", "cat")
    assert BEN not in {entry.client for entry in here.present_entries()}


def test_a_member_that_comes_back_over_a_new_connection_is_the_same_member() -> None:
    here = two_members()
    here.receive_entries([says(5, 4)], "bens again", "ben")
    here.remove_connection("bens")
    assert says(BEN, 4) in here.present_entries()


def test_a_member_may_leave_with_the_clock_it_has() -> None:
    here = two_members()
    here.receive_entries([AwarenessEntry(6, 3, "null")], "cats", "cat")
    assert CAT not in {entry.client for entry in here.present_entries()}


def test_what_is_remembered_of_those_who_left_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_MAX_KNOWN_CLIENTS", 10)
    here = hub()
    for client in range(100, 200):
        here.receive_entries([says(client, 1)], client, "ben")
        here.remove_connection(client)
    assert len(here._known_clients) == 10
    for client in range(200, 220):
        here.receive_entries([says(client, 1)], client, "ben")
    assert len(here.present_entries()) == 20


def test_oversized_awareness_is_a_violation() -> None:
    for data in (
        protocol.encode_awareness([AwarenessEntry(5, 1, json.dumps({"nodeId": "x" * 600}))]),
        protocol.encode_awareness([says(n, 1) for n in range(MAX_ENTRIES + 1)]),
        bytes(protocol.MAX_AWARENESS_BYTES + 1),
    ):
        with pytest.raises(RoomViolation):
            protocol.decode_awareness(data)


@given(st.binary(max_size=100))
def test_random_bytes_raise_nothing_but_violations(data: bytes) -> None:
    with contextlib.suppress(RoomViolation):
        hub().receive_entries(protocol.decode_awareness(data), "conn", "ben")


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("the outbox was not archived", "the outbox was not archived"),
        ("the policy is not used: line 3 of /home/jane/policy.cedar", "the policy is not used"),
        (
            "the backlog of mailbox b\u00fcro\n[red] grows",
            "the backlog of mailbox b?ro??red? grows",
        ),
        ("x" * 400, "x" * 100),
    ],
)
def test_other_gateways_are_told_one_short_reason_without_its_details(
    problem: str, told: str
) -> None:
    """What follows the colon can be a path or a line of a file of this machine."""
    assert shorten_reason(problem) == told
    presence = ConnectionPresence(node_id="n" * 128, status="degraded", reason=told, seen_at=2**52)
    assert decode_state(msgspec.json.encode(presence).decode()) == presence
    assert len(msgspec.json.encode(presence)) <= MAX_STATE_BYTES


@pytest.mark.parametrize("reason", ["", " x", "x" * 101, "red\u001b[31m", "a\nb", "<b>", 7])
def test_a_reason_that_is_no_short_plain_text_is_refused(reason: object) -> None:
    state = msgspec.json.encode({"nodeId": "hub", "status": "degraded", "reason": reason})
    with pytest.raises(RoomViolation):
        decode_state(state.decode())
