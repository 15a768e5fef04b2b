"""Reviews and ETA advice from sums of hours and a handful of cases."""

from typing import Any

from gatepost.pipeline.kernels.advice import compute_eta_advice, find_reviews
from gatepost.pipeline.kernels.groups import CodedColumns
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.arrow_schemas import rows_to_table
from gatepost.pipeline.tables.schemas import CASES, PACES

T = 1_772_490_600_000
OCR = {"capability_id": "ocr", "capability_version": "3", "executor_version": "7"}
Row = dict[str, Any]


def pace(took: dict[int, int], *, promises: dict[int, int] | None = None, **fields: Any) -> Row:
    counted = {
        "took": [{"ms": ms, "count": count} for ms, count in took.items()],
        "promises": [{"ms": ms, "count": count} for ms, count in (promises or {}).items()],
    }
    known = {"tasks": sum(took.values()), "completed": sum(took.values())}
    return OCR | known | {"promised": 0, "kept": 0} | counted | fields


def advised(*rows: Row) -> list[Row]:
    return list(compute_eta_advice(CodedColumns(rows_to_table(PACES, rows))).to_pylist())


def test_hours_and_versions_of_skills_add_up() -> None:
    (row,) = advised(
        pace({1000: 50, 3000: 4}),
        pace({2000: 45, 9000: 1}, executor_version="8", promises={5000: 3}, promised=4, kept=3),
    )
    assert (row["capability_id"], row["capability_version"]) == ("ocr", "3")
    assert (row["completed"], row["kept_rate"], row["promised_seconds"]) == (100, 0.75, 5.0)
    points = [row[f"{name}_seconds"] for name in ("p50", "p90", "p95", "p99")]
    assert points == [1.0, 2.0, 2.0, 3.0]
    assert row["recommended_eta_seconds"] == 2


def test_capabilities_are_apart_and_nothing_is_promised_for_what_never_ended() -> None:
    other = pace({}, capability_id="never", tasks=3)
    rows = advised(pace({1001: 1}), other, pace({7: 1}, capability_version="4"))
    assert [(row["capability_version"], row["p99_seconds"]) for row in rows] == [
        ("3", 1.001),
        ("4", 0.007),
    ]
    assert [row["recommended_eta_seconds"] for row in rows] == [2, 1]
    assert rows[0]["kept_rate"] is rows[0]["promised_seconds"] is None
    assert advised() == []


def case(number: int, state: str, **fields: Any) -> Row:
    at = T + number
    known = {"sent_at": at, "accepted_at": at, "ended_at": at, "corr_id": f"c{number}"}
    return OCR | known | {"node": "a", "task_state": state} | fields


def reviewed(*cases: Row, as_of: int = T + 10_000) -> dict[str, Row]:
    paces = CodedColumns(rows_to_table(PACES, [pace({1: 5}), pace({2: 3})]))
    made = find_reviews(CodedColumns(rows_to_table(CASES, cases)), paces, as_of, Objectives())
    rows = {row["class"]: row for row in made.to_pylist()}
    assert len(rows) == made.num_rows
    return rows


def test_a_misfire_is_counted_by_its_class() -> None:
    rows = reviewed(
        case(1, "failed", failure_class="contract_mismatch"),
        case(2, "failed", failure_class="boom"),
        case(4, "failed"),
        case(3, "completed", eta_at=T + 8, task_ended_at=T + 9),
        case(5, "running", eta_at=T + 9_999),
        case(6, "running", eta_at=T + 10_000),
        case(7, "cancelled", eta_at=T + 9, task_ended_at=T + 8),
        case(9, "cancelled", eta_at=T + 1, task_ended_at=T + 8),
        case(8, "completed", ended_at=T + 700_000),
        case(8, "completed") | {"task_state": None, "ended_at": T + 700_000},
    )
    assert {name: row["count"] for name, row in rows.items()} == {
        "contract_mismatch": 1,
        "terminal_error": 2,
        "eta_breach": 3,
        "sla_breach": 1,
    }
    errors = rows["terminal_error"]
    assert (errors["tasks"], errors["capability_id"], errors["delegation_version"]) == (
        8,
        "ocr",
        None,
    )
    assert (errors["first_at"], errors["last_at"]) == (T + 2, T + 4)
    assert errors["samples"] == ["c2", "c4"]


def test_one_miss_may_be_bad_luck() -> None:
    miss = {"reason": "no_route", "dead_at": T}
    assert reviewed(case(1, "dead_letter", **miss)) == {}
    (row,) = reviewed(case(1, "dead_letter", **miss), case(2, "dead_letter", **miss)).values()
    assert (row["class"], row["count"]) == ("routing_miss", 2)
