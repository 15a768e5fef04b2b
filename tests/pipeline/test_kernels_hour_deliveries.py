"""What is made of an hour's deliveries, from a handful of events."""

from typing import Any

import pytest

from gatepost.pipeline.kernels.cases import select_cases
from gatepost.pipeline.kernels.hour_deliveries import HOUR_COLUMNS, HourDeliveries
from gatepost.pipeline.kernels.slo import compute_slo, compute_traffic
from gatepost.pipeline.kernels.tasks import compute_paces, select_tasks
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.arrow_schemas import arrow_schema
from gatepost.pipeline.tables.schemas import CASES, HOUR_MS, PACES, SLO, TASKS, TRAFFIC
from tests.pipeline.telling import OK, Event, M, Row, T, event, fold, receipt, sent, told

HERE = T // HOUR_MS
WINDOW = Objectives().window_ms
ABOUT = {"ref_id": M, "to_node": "a"}
TASK = sent() | {"kind": "task_create", "capability_id": "ocr", "capability_version": "3"}


def hour(*events: Event) -> HourDeliveries:
    return HourDeliveries(HERE, fold(told(events)).select(HOUR_COLUMNS))


def only(rows: Any) -> Row:
    (row,) = rows.to_pylist()
    return dict(row)


def test_all_tables_have_their_columns_also_without_any_row() -> None:
    promised = Objectives()
    for one in (hour(), hour(TASK, sent(9))):
        made = {
            SLO: compute_slo(one, promised),
            TRAFFIC: compute_traffic(one),
            TASKS: select_tasks(one),
            PACES: compute_paces(one),
            CASES: select_cases(one, promised),
        }
        for table, rows in made.items():
            assert rows.schema.equals(arrow_schema(table)), table.name
            assert (len(rows) > 0) == (len(one) > 0), table.name


def test_a_task_tells_what_was_promised_and_kept() -> None:
    one = hour(
        TASK,
        receipt("b", "accepted", 5),
        event("b", "task_accept", 5, eta_seconds=60, **ABOUT),
        event("b", "task_update", 8, progress=0.5, **ABOUT),
        event("b", "task_complete", 90, **ABOUT),
        receipt("b", "processed", 95, **OK),
    )
    row = only(select_tasks(one))
    assert (row["capability_id"], row["state"], row["took_ms"]) == ("ocr", "completed", 90)
    assert (row["eta_at"], row["progress"]) == (T + 5 + 60_000, 0.5)
    assert select_cases(one, Objectives()).num_rows == 0
    pace = only(compute_paces(one))
    assert [pace[name] for name in ("tasks", "completed", "promised", "kept")] == [1, 1, 1, 1]
    assert pace["took"] == [{"ms": 90, "count": 1}]
    assert pace["promises"] == [{"ms": 60_100, "count": 1}]


@pytest.mark.parametrize(
    ("state", "events"),
    [
        ("pending", []),
        ("accepted", [receipt("b", "accepted", 5)]),
        ("running", [receipt("b", "accepted", 5), event("b", "task_update", 6, progress=0.1)]),
        ("running", [receipt("b", "processed", 5, **OK)]),
        ("failed", [event("b", "task_failed", 7, failure_class="x")]),
        ("cancelled", [event("a", "task_cancel", 7, to_node="b")]),
        ("completed", [event("b", "task_failed", 7), event("b", "task_complete", 8)]),
        ("dead_letter", [event("a", "dead_letter", 7, to_node="b", reason="expired")]),
    ],
)
def test_the_state_of_a_task(state: str, events: list[Event]) -> None:
    found = select_tasks(hour(TASK, *(ABOUT | told for told in events))).to_pylist()
    assert [row["state"] for row in found] == [state]


@pytest.mark.parametrize(
    ("unusual", "events"),
    [
        (False, [receipt("b", "accepted", 5), receipt("b", "processed", 9, **OK)]),
        # In a later window, though soon.
        (True, [receipt("b", "accepted", WINDOW), receipt("b", "processed", WINDOW, **OK)]),
        (True, [receipt("b", "accepted", 5), receipt("b", "processed", 600_006, **OK)]),
        (False, [receipt("b", "accepted", 5), receipt("b", "processed", 600_005, **OK)]),
        (True, [receipt("b", "accepted", 5)]),
        (True, []),
        (True, [event("a", "dead_letter", 7, ref_id=M, reason="expired")]),
    ],
)
def test_a_case_is_what_is_not_as_it_should_be(unusual: bool, events: list[Event]) -> None:
    assert select_cases(hour(sent(), *events), Objectives()).num_rows == unusual


@pytest.mark.parametrize(
    ("unusual", "events"),
    [
        (False, [event("b", "task_complete", 900, **ABOUT)]),
        (True, [event("b", "task_complete", 1_006, **ABOUT)]),
        (True, [event("b", "task_failed", 900, **ABOUT)]),
        # It may yet be late; who looks knows what time it is.
        (True, []),
        (False, [event("a", "task_cancel", 900, **(ABOUT | {"to_node": "b"}))]),
        (True, [event("a", "task_cancel", 2_000, **(ABOUT | {"to_node": "b"}))]),
    ],
)
def test_a_task_that_breaks_its_promise_is_a_case(unusual: bool, events: list[Event]) -> None:
    taken = [
        receipt("b", "accepted", 5),
        event("b", "task_accept", 5, eta_seconds=1, **ABOUT),
        receipt("b", "processed", 9, **OK),
    ]
    found = select_cases(hour(TASK, *taken, *events), Objectives()).to_pylist()
    # A cancellation is a delivery of its own, and nobody has accepted that one.
    assert [row["task_state"] is not None for row in found].count(True) == unusual


def test_a_message_belongs_to_the_window_it_was_sent_in_and_never_leaves_its_hour() -> None:
    early = sent() | {"created_at": T - 3 * HOUR_MS}
    found = only(compute_slo(hour(early, receipt("b", "accepted", 5)), Objectives()))
    assert found["window_start"] == HERE * HOUR_MS
    assert (found["hour"], found["sent"], found["accept_p50"]) == (HERE, 1, 3 * HOUR_MS + 5)
    # Whoever is away for so long is not what a promise is about.
    assert (found["online_p95"], found["met"]) == (None, None)
