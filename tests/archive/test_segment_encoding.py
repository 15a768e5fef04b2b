"""Rows of the outbox as columns: nothing is lost on the way that the archive promises to keep."""

from typing import Any

import pytest
from msgspec import Raw

from gatepost.archive.segment_encoding import SignedGroup, events_table, segment_path, utc_date
from gatepost.errors import ArchiveError
from gatepost.events import (
    DeadLetterNotice,
    PayloadCipher,
    PayloadRef,
    Receipt,
    Signal,
    TaskInfo,
    Trace,
    encode_payload,
    parse_event_id,
)
from tests.archive.harness import NOW, ArchiveHarness


def _row(harness: ArchiveHarness, **fields: Any) -> dict[str, Any]:
    """One event, all the way through archiving."""
    harness.group(harness.message(**fields))
    harness.archive_segments(harness.archive(rows=1))
    return harness.events()[-1]


def _said(row: dict[str, Any]) -> dict[str, Any]:
    """What is not null, 0, False or about the chain."""
    chain = ("digest", "group_first", "chain", "signature", "body", "incarnation", "seq")
    return {k: v for k, v in row.items() if v not in (None, 0, False) and k not in chain}


def test_an_envelope_in_full(harness: ArchiveHarness) -> None:
    cause, first = harness.ids.next_id(), harness.ids.next_id()
    draft = harness.message(
        to_node_id="node-2",
        pair_seq=7,
        pair_base=3,
        causation_id=cause,
        origin_event_id=first,
        expires_at=NOW + 5,
        attempt=2,
        priority=4,
        offer=1,
        trace=Trace(attempt=2, route_decision="owner", policy_version=3, traceparent="00-x"),
    )
    harness.group(harness.message(to_node_id="node-2"), draft)
    harness.archive_segments(harness.archive(rows=1))
    row = harness.events()[1]
    assert _said(row) == {
        "event_id": parse_event_id(draft.event_id),
        "kind": "message",
        "source_agent": "al",
        "to_node": "node-2",
        "to_agent": "bob",
        "pair_seq": 7,
        "pair_base": 3,
        "prev_seq_to": 1,
        "corr_id": draft.event_id,
        "causation_id": parse_event_id(cause),
        "origin_id": parse_event_id(first),
        "created_at": NOW,
        "expires_at": NOW + 5,
        "attempt": 2,
        "priority": 4,
        "offer": True,
        "route_decision": "owner",
        "policy_version": "3",
        "traceparent": "00-x",
    }
    assert (row["incarnation"], row["seq"], row["group_first"]) == ("first", 2, 1)


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        ("ack", Receipt(status="accepted"), {"status": "accepted"}),
        (
            "ack",
            Receipt(status="accepted", eta_at=9, eta_seconds=2, plan="soon"),
            {"status": "accepted", "eta_at": 9, "eta_seconds": 2},
        ),
        ("ack", Receipt(status="refused", reason="full"), {"status": "refused", "reason": "full"}),
        (
            "ack",
            Receipt(status="processed", outcome="dead_letter", reason="x"),
            {"status": "processed", "outcome": "dead_letter", "reason": "x"},
        ),
        (
            "dead_letter",
            DeadLetterNotice(reason="expired", attempts=3, pair_seq=8),
            {"reason": "expired", "dead_attempts": 3},
        ),
        (
            "signal",
            Signal(signal="settled", through=12, from_agent="al", to_agent="bob"),
            {"signal": "settled", "through": 12},
        ),
        ("signal", Signal(signal="withdraw", reason="y"), {"signal": "withdraw", "reason": "y"}),
        ("signal", {"unheard": "of"}, {}),
        ("signal", [1], {}),
    ],
)
def test_clear_payloads(
    harness: ArchiveHarness, kind: str, payload: object, said: dict[str, Any]
) -> None:
    ref, raw = harness.ids.next_id(), encode_payload(payload)
    row = _said(_row(harness, kind=kind, ref_event_id=ref, payload=raw))
    assert row.pop("payload_size") == len(raw)
    for field in ("event_id", "corr_id", "created_at", "source_agent", "to_agent"):
        del row[field]
    expected = {"kind": kind, "ref_id": parse_event_id(ref), "attempt": 1, "pair_base": 1}
    assert row == expected | said


def test_attempts_of_a_dead_letter_may_be_none(harness: ArchiveHarness) -> None:
    letter = _row(
        harness, kind="dead_letter", payload=encode_payload(DeadLetterNotice(reason="no_route"))
    )
    assert letter["dead_attempts"] == 0


def test_an_encrypted_payload_is_as_large_as_its_content(harness: ArchiveHarness) -> None:
    cipher = PayloadCipher(harness.key, harness.clock)
    for size in (0, 1, 2, 3, 1000, 65_536):
        id = harness.ids.next_id()
        encrypted, _ = cipher.encrypt(
            b"x" * size, [harness.key.public], event_id=id, source_node_id="n"
        )
        row = _row(harness, event_id=id, payload=encode_payload(encrypted))
        assert row["payload_size"] == size


def test_any_other_payload_is_as_large_as_its_text(harness: ArchiveHarness) -> None:
    assert _row(harness, payload=Raw(b'{"n": 1}'))["payload_size"] == 8


def test_large_payloads_are_named(harness: ArchiveHarness) -> None:
    digest = "sha256:" + "0" * 64
    row = _row(harness, payload_ref=PayloadRef(digest, 70_000, {}))
    assert (row["blob_digest"], row["blob_size"], row["payload_size"]) == (digest, 70_000, 0)


def test_tasks(harness: ArchiveHarness) -> None:
    task = TaskInfo(
        capability_id="ocr",
        capability_version="1",
        delegation_skill_version="2",
        executor_skill_version="3",
        task_type="image",
        eta_at=5,
        eta_seconds=6,
        progress=0.25,
        failure_class="terminal_error",
    )
    row = _row(harness, kind="task_update", task=task)
    expected = {
        "capability_id": "ocr",
        "capability_version": "1",
        "delegation_version": "2",
        "executor_version": "3",
        "task_type": "image",
        "eta_at": 5,
        "eta_seconds": 6,
        "progress": 0.25,
        "failure_class": "terminal_error",
    }
    assert {name: row[name] for name in expected} == expected


def test_mail_forwarded_for_another_gateway_is_outside_the_order_of_its_pair(
    harness: ArchiveHarness,
) -> None:
    origin = harness.ids.next_id()
    own = _row(harness, pair_seq=2, origin_event_id=origin)
    foreign = _row(harness, pair_seq=2, origin_event_id=origin, origin_node_id="node-3")
    assert (own["pair_seq"], foreign["pair_seq"]) == (2, 0)


def test_bodies_are_kept_only_if_wanted(harness: ArchiveHarness) -> None:
    harness.groups(2)
    harness.archive_segments(harness.archive(rows=1, bodies=False))
    assert [event["body"] for event in harness.events()] == [None, None]


def test_a_body_that_is_no_event_is_not_archived() -> None:
    with pytest.raises(ArchiveError, match="seq 4 to 4"):
        events_table("a", [(4, b"", None, b"{}", b"")], [SignedGroup(4, 4, b"", b"")], bodies=False)


def test_files_are_named_by_date_and_range() -> None:
    name = segment_path(1, 42, NOW)
    assert name == "date=2026-03-02/00000000000000000001-00000000000000000042.parquet"
    assert utc_date(NOW + 2 * 3_600_000) == "2026-03-03"
