"""The tolerant edge: however a record is spelled, it means one thing or has a reason."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.migration.legacy_records import (
    AgentNames,
    LegacyItem,
    LegacyKind,
    RejectedItem,
    parse_legacy_record,
    sort_by_age,
    unmapped_fields,
)
from tests.migration.test_json_values import values
from tests.migration.tools import item_of, message

names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")
NAMES = AgentNames()

SENDERS = ["fromAgentId", "from_agent", "from", "fromAgent", "sender", "FROM_AGENT_ID"]
RECIPIENTS = ["toAgentId", "to", "to_agent", "toAgents", "to_agents", "recipients"]
BODIES = ["content", "text", "body", "payload"]
CORRS = ["corrId", "correlationId", "corr_id", "correlation_id"]
TIMES = ["createdAt", "created_at", "timestamp"]


def one(kind: LegacyKind, record: Any, names: AgentNames = NAMES) -> LegacyItem | RejectedItem:
    (found,) = parse_legacy_record(kind, "1", record, names)
    return found


def code(record: Any, kind: LegacyKind = "messages") -> str:
    found = one(kind, record)
    assert isinstance(found, RejectedItem), found
    assert found.record == record or found.record is record
    assert found.reason
    return found.code


@given(
    st.sampled_from(SENDERS),
    st.sampled_from(RECIPIENTS),
    st.sampled_from(BODIES),
    st.sampled_from(CORRS),
    st.sampled_from(TIMES),
    names,
    names,
    values.filter(lambda v: v is not None),
    st.integers(1_000_000_000, 4_000_000_000),
    st.sampled_from([1, 1000]),
    st.booleans(),
)
def test_every_spelling_means_the_same(
    sender: str,
    to: str,
    body: str,
    corr: str,
    time: str,
    ann: str,
    bob: str,
    content: Any,
    at: int,
    unit: int,
    in_list: bool,
) -> None:
    record = {sender: ann, to: [bob] if in_list else bob, body: content, corr: "c-1"}
    found = one("messages", record | {time: at * unit})
    usual = {"fromAgentId": ann, "toAgentId": bob, "content": content, "corrId": "c-1"}
    expected = one("messages", usual | {"createdAt": at * 1000})
    assert isinstance(found, LegacyItem) and isinstance(expected, LegacyItem)
    assert found.payload == content
    assert (found.sender, found.to, found.corr_id) == (ann, bob, "c-1")
    assert (found.created_at, found.done) == (at * 1000, False)
    assert (found.key, found.digest) == (expected.key, expected.digest)


@given(
    st.sampled_from(["messages", "tasks"]),
    st.text(),
    values
    | st.dictionaries(
        st.sampled_from([*SENDERS, *RECIPIENTS, *BODIES, *CORRS, *TIMES])
        | st.sampled_from(["status", "title", "assignedTo", "readBy", "gatepostEventId"]),
        values | names | st.lists(names) | st.sampled_from(["pending", "read", "completed"]),
    ),
)
def test_any_record_becomes_items_or_one_reject(kind: LegacyKind, id: str, record: Any) -> None:
    found = parse_legacy_record(kind, id, record, NAMES)
    assert found
    assert len({one.to for one in found}) == len(found)
    assert len(found) == 1 or all(isinstance(one, LegacyItem) for one in found)


@pytest.mark.parametrize("status", [None, "pending", "Pending", " queued ", "unread"])
def test_undelivered_messages_are_open(status: Any) -> None:
    assert not item_of(status=status).done


@pytest.mark.parametrize("status", ["delivered", "read", "ACKED", "processed"])
def test_delivered_messages_are_done(status: str) -> None:
    assert item_of(status=status).done


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ("pending", False),
        ("in_progress", False),
        ("claimed", False),
        ("completed", True),
        ("failed", True),
        ("cancelled", True),
    ],
)
def test_a_task_is_done_when_it_is_finished(status: str, done: bool) -> None:
    task = {"title": "build", "description": "it", "assignedTo": "bob", "status": status}
    found = one("tasks", task)
    assert isinstance(found, LegacyItem)
    assert found.done == done
    assert found.payload == {"legacyTask": {"id": "1", **task}}
    assert (found.sender, found.to) == ("legacy", "bob")


def test_status_and_result_may_change_without_making_another_task() -> None:
    task = {"title": "build", "assignedTo": "bob", "status": "pending"}
    before, after = one("tasks", task), one("tasks", task | {"status": "claimed", "result": 1})
    edited = one("tasks", task | {"description": "faster"})
    assert (
        isinstance(before, LegacyItem)
        and isinstance(after, LegacyItem)
        and isinstance(edited, LegacyItem)
    )
    assert before.digest == after.digest != edited.digest
    assert before.key == edited.key


def test_each_recipient_is_an_item_and_those_who_read_it_are_done() -> None:
    record = {"from": "ann", "toAgents": ["bob", "cat"], "text": "x", "readBy_agents": ["cat"]}
    found = parse_legacy_record("messages", "1", record, NAMES)
    assert [(i.to, i.done) for i in found if isinstance(i, LegacyItem)] == [
        ("bob", False),
        ("cat", True),
    ]
    assert len({i.key for i in found if isinstance(i, LegacyItem)}) == 2


def test_names_can_be_mapped_and_the_key_stays() -> None:
    record = message(1, "Jane's Mac")
    assert code(record) == "bad_agent"
    mapped = one("messages", record, AgentNames({"Jane's Mac": "mbp-jane"}))
    again = one("messages", record, AgentNames({"Jane's Mac": "jane"}))
    assert isinstance(mapped, LegacyItem) and isinstance(again, LegacyItem)
    assert mapped.to == "mbp-jane"
    assert mapped.key == again.key


def test_two_names_that_became_one_agent_get_one_copy() -> None:
    record = {"from": "ann", "toAgents": ["old", "older"], "text": "x"}
    found = one("messages", record, AgentNames({"old": "bob", "older": "bob"}))
    assert isinstance(found, LegacyItem) and found.to == "bob"


def test_a_node_stands_in_where_no_agent_is_named() -> None:
    found = one("messages", {"fromNodeId": "n1", "toNodeId": "n2", "content": "x"})
    assert isinstance(found, LegacyItem)
    assert (found.sender, found.to) == ("n1", "n2")
    named = one("messages", {"fromNodeId": "n1", "fromAgentId": "ann", "to": "bob", "text": "x"})
    assert isinstance(named, LegacyItem) and named.sender == "ann"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("text", "not_a_record"),
        (None, "not_a_record"),
        ({"from": "ann", "to": "bob", "content": float("inf")}, "not_json"),
        ({"from": "ann", "content": "x"}, "no_recipient"),
        ({"from": "ann", "to": [], "content": "x"}, "no_recipient"),
        ({"from": "ann", "to": "bob"}, "no_content"),
        ({"from": "ann", "to": "bob", "content": None}, "no_content"),
        ({"from": "ann", "to": "*", "content": "x"}, "bad_agent"),
        ({"from": 7, "to": "bob", "content": "x"}, "bad_agent"),
        ({"from": "ann", "to": [{}], "content": "x"}, "bad_agent"),
        ({"from": "ann", "to": "bob", "toAgents": ["cat"], "content": "x"}, "ambiguous"),
        ({"from": "ann", "to": "bob", "content": "x", "text": "y"}, "ambiguous"),
        ({"from": "ann", "fromAgentId": "eve", "to": "bob", "content": "x"}, "ambiguous"),
        (message(1, status="lost"), "bad_status"),
        (message(1, status=["pending"]), "bad_status"),
        (message(1, readBy="bob"), "bad_status"),
        (message(1, createdAt="yesterday"), "bad_time"),
        (message(1, createdAt=-1), "bad_time"),
        (message(1, createdAt=True), "bad_time"),
        (message(1, createdAt=1.7e15), "bad_time"),
        (message(1, corrId="two words"), "bad_corr_id"),
        (message(1, corrId={}), "bad_corr_id"),
    ],
)
def test_what_is_not_understood_has_its_reason(record: Any, expected: str) -> None:
    assert code(record) == expected


def test_an_id_that_is_half_a_character_is_rejected() -> None:
    (found,) = parse_legacy_record("messages", "\ud800", message(1), NAMES)
    assert isinstance(found, RejectedItem) and found.code == "not_json"


def test_a_task_for_nobody_or_about_nothing_is_rejected() -> None:
    assert code({"title": "x"}, "tasks") == "no_recipient"
    assert code({"assignedTo": "bob"}, "tasks") == "no_content"


@pytest.mark.parametrize("value", ["2023-11-14T22:13:20Z", "1700000000", 1_700_000_000.0])
def test_times_are_told_by_their_size_and_form(value: Any) -> None:
    expected = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC).timestamp() * 1000
    assert item_of(createdAt=value).created_at == expected


def test_spellings_that_agree_are_no_conflict() -> None:
    record = {"from": "ann", "sender": "ann", "to": "bob", "toAgents": ["bob"], "text": ""}
    found = one("messages", record)
    assert isinstance(found, LegacyItem) and found.payload == ""


def test_fields_nobody_looks_at_are_named() -> None:
    assert unmapped_fields("messages", message(1, id="1", priority=3, from_node="x")) == [
        "priority"
    ]
    assert unmapped_fields("tasks", {"anything": 1}) == []
    assert unmapped_fields("messages", "text") == []


def test_oldest_first_and_undated_last_in_their_order() -> None:
    undated = [item_of(id, createdAt=None) for id in ("x", "a")]
    dated = [item_of(str(at), createdAt=at) for at in (1_700_000_009, 1_700_000_001)]
    order = [item.id for item in sort_by_age([undated[0], *dated, undated[1]])]
    assert order == ["1700000001", "1700000009", "x", "a"]
