"""Makes reviews and ETA advice of cases and paces: few rows in, a handful out."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.arrow import table_of
from gatepost.pipeline.tables.cases import PROMISED
from gatepost.pipeline.tables.facts import ABSENT, NONE, VERSIONS, Column
from gatepost.pipeline.tables.groups import Columns, Groups, Sorted, listed
from gatepost.pipeline.tables.incidents import SAMPLES, identity, slow
from gatepost.pipeline.tables.schemas import ETA, REVIEWS

_POINTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_CAPABILITY = ("capability_id", "capability_version")


def reviews(cases: Columns, paces: Columns, as_of: int, objectives: Objectives) -> pa.Table:
    """Count misfires by capability, skill versions and class."""
    totals = _totals(paces)
    rows = [
        row | {"tasks": totals[tuple(row[name] for name in VERSIONS)]}
        for name, misfires in _classes(cases, as_of, objectives).items()
        for row in _found(cases, name, np.flatnonzero(misfires))
        if name != "routing_miss" or row["count"] >= objectives.routing_misses
    ]
    return table_of(REVIEWS, rows)


def _classes(cases: Columns, as_of: int, objectives: Objectives) -> dict[str, Column]:
    eta_at, ended_at = cases.number("eta_at"), cases.number("task_ended_at")
    late = (eta_at != ABSENT) & (np.where(ended_at == ABSENT, as_of, ended_at) > eta_at)
    failed = cases.is_any("task_state", "failed")
    mismatch = cases.is_any("failure_class", "contract_mismatch")
    return {
        "eta_breach": late & cases.is_any("task_state", *PROMISED),
        "contract_mismatch": failed & mismatch,
        "terminal_error": failed & ~mismatch,
        "routing_miss": cases.is_any("task_state", "dead_letter")
        & cases.is_any("reason", "no_route"),
        "sla_breach": (cases.text("task_state") != NONE) & slow(cases, as_of, objectives),
    }


def _found(cases: Columns, name: str, rows: Column) -> Iterator[dict[str, Any]]:
    keys = [cases.text(version)[rows] for version in VERSIONS]
    groups = Groups.alike(*keys)
    created_at = cases.number("sent_at")[rows]
    samples = groups.samples(SAMPLES, created_at, cases.rank("corr_id", rows))
    versions = cases.names(groups, keys)
    times = zip(groups.least(created_at), groups.most(created_at), groups.sizes, strict=True)
    for key, (first, last, count), sampled in zip(versions, times, samples, strict=True):
        yield {
            **dict(zip(VERSIONS, key, strict=True)),
            "review_id": identity(*key, name),
            "class": name,
            "count": int(count),
            "first_at": int(first),
            "last_at": int(last),
            "samples": cases.table["corr_id"].take(pa.array(rows[sampled])).to_pylist(),
        }


def _totals(paces: Columns) -> dict[tuple[str | None, ...], int]:
    """Skill versions → number of tasks under them."""
    keys = [paces.text(name) for name in VERSIONS]
    groups = Groups.alike(*keys)
    return dict(
        zip(paces.names(groups, keys), groups.sum(paces.number("tasks")).tolist(), strict=True)
    )


def eta(paces: Columns) -> pa.Table:
    """Compute how long each capability takes, and the ETA to promise for it."""
    keys = [paces.text(name) for name in _CAPABILITY]
    groups = Groups.alike(*keys)
    sums = {name: groups.sum(paces.number(name)) for name in ("completed", "promised", "kept")}
    took, promises = _times(paces, groups, "took"), _times(paces, groups, "promises")
    p95 = took.percentile(0.95)
    columns = {
        **{
            name: paces.texts(groups.first(key))
            for name, key in zip(_CAPABILITY, keys, strict=True)
        },
        "completed": sums["completed"],
        "kept_rate": _ratio(sums["kept"], sums["promised"]),
        **{f"{name}_seconds": _ratio(took.percentile(p), 1000) for name, p in _POINTS.items()},
        "promised_seconds": _ratio(promises.percentile(0.5), 1000),
        "recommended_eta_seconds": -(-p95 // 1000),
    }
    return listed(columns, ETA.names).filter(pa.array(sums["completed"] > 0))


def _ratio(part: Column, whole: Column | int) -> pa.Array:
    """`part / whole`; null if `part` is ABSENT or `whole` is 0."""
    return pa.array(part / np.maximum(whole, 1), mask=(part == ABSENT) | (whole == np.int64(0)))


def _times(paces: Columns, groups: Groups, name: str) -> Sorted:
    """The counted times of several hours, by group."""
    counted = paces.table[name].combine_chunks()
    sizes = np.diff(counted.offsets.to_numpy())
    ms, count = (counted.flatten().field(field).to_numpy() for field in ("ms", "count"))
    return Sorted.counted(np.repeat(groups.of, sizes), ms, count, len(groups))
