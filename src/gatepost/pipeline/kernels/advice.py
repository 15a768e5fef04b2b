"""Computes reviews and ETA advice from cases and paces: few rows in, a handful out."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.cases import PROMISED_STATES
from gatepost.pipeline.kernels.columns import ABSENT, NONE, Flags, Numbers
from gatepost.pipeline.kernels.facts import VERSION_COLUMNS
from gatepost.pipeline.kernels.groups import CodedColumns, Groups, SortedGroups, columns_to_table
from gatepost.pipeline.kernels.incidents import MOST_SAMPLES, breaches_sla, stable_id
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.arrow_schemas import rows_to_table
from gatepost.pipeline.tables.schemas import ETA, REVIEWS

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_CAPABILITY_KEY = ("capability_id", "capability_version")


def find_reviews(
    cases: CodedColumns, paces: CodedColumns, as_of: int, objectives: Objectives
) -> pa.Table:
    """Count misfires by capability, skill versions and class."""
    totals = _task_totals(paces)
    rows = [
        row | {"tasks": totals[tuple(row[name] for name in VERSION_COLUMNS)]}
        for name, misfires in _misfires_by_class(cases, as_of, objectives).items()
        for row in _review_rows(cases, name, np.flatnonzero(misfires))
        if name != "routing_miss" or row["count"] >= objectives.routing_misses
    ]
    return rows_to_table(REVIEWS, rows)


def _misfires_by_class(cases: CodedColumns, as_of: int, objectives: Objectives) -> dict[str, Flags]:
    eta_at, ended_at = cases.number_column("eta_at"), cases.number_column("task_ended_at")
    late = (eta_at != ABSENT) & (np.where(ended_at == ABSENT, as_of, ended_at) > eta_at)
    failed = cases.is_any("task_state", "failed")
    mismatch = cases.is_any("failure_class", "contract_mismatch")
    return {
        "eta_breach": late & cases.is_any("task_state", *PROMISED_STATES),
        "contract_mismatch": failed & mismatch,
        "terminal_error": failed & ~mismatch,
        "routing_miss": cases.is_any("task_state", "dead_letter")
        & cases.is_any("reason", "no_route"),
        "sla_breach": (cases.text_codes("task_state") != NONE)
        & breaches_sla(cases, as_of, objectives),
    }


def _review_rows(cases: CodedColumns, name: str, rows: Numbers) -> Iterator[dict[str, Any]]:
    keys = [cases.text_codes(version)[rows] for version in VERSION_COLUMNS]
    groups = Groups.group_equal(*keys)
    created_at = cases.number_column("sent_at")[rows]
    samples = groups.sample_rows(MOST_SAMPLES, created_at, cases.text_ranks("corr_id", rows))
    versions = cases.group_texts(groups, keys)
    times = zip(
        groups.min_values(created_at), groups.max_values(created_at), groups.sizes, strict=True
    )
    for key, (first, last, count), sampled in zip(versions, times, samples, strict=True):
        yield {
            **dict(zip(VERSION_COLUMNS, key, strict=True)),
            "review_id": stable_id(*key, name),
            "class": name,
            "count": int(count),
            "first_at": int(first),
            "last_at": int(last),
            "samples": cases.table["corr_id"].take(pa.array(rows[sampled])).to_pylist(),
        }


def _task_totals(paces: CodedColumns) -> dict[tuple[str | None, ...], int]:
    """Skill versions → number of tasks under them."""
    keys = [paces.text_codes(name) for name in VERSION_COLUMNS]
    groups = Groups.group_equal(*keys)
    return dict(
        zip(
            paces.group_texts(groups, keys),
            groups.sum_values(paces.number_column("tasks")).tolist(),
            strict=True,
        )
    )


def compute_eta_advice(paces: CodedColumns) -> pa.Table:
    """Compute how long each capability takes, and the ETA to promise for it."""
    keys = [paces.text_codes(name) for name in _CAPABILITY_KEY]
    groups = Groups.group_equal(*keys)
    sums = {
        name: groups.sum_values(paces.number_column(name))
        for name in ("completed", "promised", "kept")
    }
    took, promises = _sorted_times(paces, groups, "took"), _sorted_times(paces, groups, "promises")
    p95 = took.percentile(0.95)
    columns = {
        **{
            name: paces.decode_texts(groups.first_values(key))
            for name, key in zip(_CAPABILITY_KEY, keys, strict=True)
        },
        "completed": sums["completed"],
        "kept_rate": _nullable_ratio(sums["kept"], sums["promised"]),
        **{
            f"{name}_seconds": _nullable_ratio(took.percentile(p), 1000)
            for name, p in _PERCENTILES.items()
        },
        "promised_seconds": _nullable_ratio(promises.percentile(0.5), 1000),
        "recommended_eta_seconds": -(-p95 // 1000),
    }
    return columns_to_table(columns, ETA.names).filter(pa.array(sums["completed"] > 0))


def _nullable_ratio(part: Numbers, whole: Numbers | int) -> pa.Array:
    """`part / whole`; null if `part` is ABSENT or `whole` is 0."""
    return pa.array(part / np.maximum(whole, 1), mask=(part == ABSENT) | (whole == np.int64(0)))


def _sorted_times(paces: CodedColumns, groups: Groups, name: str) -> SortedGroups:
    """The counted times of several hours, by group."""
    counted = paces.table[name].combine_chunks()
    sizes = np.diff(counted.offsets.to_numpy())
    ms, count = (counted.flatten().field(field).to_numpy() for field in ("ms", "count"))
    return SortedGroups.from_counts(np.repeat(groups.group_numbers, sizes), ms, count, len(groups))
