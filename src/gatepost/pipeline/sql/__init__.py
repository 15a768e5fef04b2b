"""The definitions of the tables in Spark SQL."""

import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Final

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import TABLES
from gatepost.pipeline.tables.spark_rows import to_reckoned, to_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEW: Final = re.compile(r"^-- view (\w+)\n", re.MULTILINE)
_SOURCE: Final = re.compile(r"\b(?:FROM|JOIN) (\w+)")

EVENT_COLUMNS: Final = (
    *("node", "incarnation", "seq", "event_id", "kind", "source_agent", "to_node", "to_agent"),
    *("pair_seq", "corr_id", "ref_id", "origin_id", "created_at", "expires_at", "attempt"),
    *("payload_size", "blob_size", "status", "outcome", "reason", "eta_at", "eta_seconds"),
    *("signal", "capability_id", "capability_version", "delegation_version", "executor_version"),
    *("task_type", "progress", "failure_class", "route_decision"),
)
"""The columns of events that the definitions name."""


def read_definitions() -> dict[str, str]:
    """View → its query, in an order in which each names only views before it."""
    text = resources.files(__name__).joinpath("definitions.sql").read_text(encoding="utf-8")
    _, *parts = _VIEW.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def definition_values(objectives: Objectives, as_of: int, batch: int) -> dict[str, int]:
    """The parameters of the definitions; `as_of` is the time that findings look back from."""
    return {
        "window_ms": objectives.window_ms,
        "online_ms": objectives.online * 1000,
        "objective_ms": int(objectives.delivery_p95 * 1000),
        "sla_ms": objectives.sla * 1000,
        "skew_ms": objectives.clock_skew * 1000,
        "routing_misses": objectives.routing_misses,
        "id_age": objectives.id_age,
        "as_of": as_of,
        "batch": batch,
    }


def select_view(
    spark: "SparkSession", name: str, values: Mapping[str, int], **inputs: "DataFrame"
) -> "DataFrame":
    """The rows of a view by its definition; `inputs` take the place of the views of their names.

    The definitions reckon with epoch milliseconds. `inputs` and rows of tables have TIMESTAMPs.
    """
    definitions = read_definitions()
    wanted, needed = [name], set[str]()
    while wanted:
        view = wanted.pop()
        if view in definitions and view not in inputs and view not in needed:
            needed.add(view)
            wanted += _SOURCE.findall(definitions[view])
    sources = set(_SOURCE.findall("\n".join(definitions[view] for view in needed)))
    tables = [f"{known} AS (SELECT * FROM {{{known}}})" for known in inputs if known in sources]
    tables += [f"{view} AS (\n{query})" for view, query in definitions.items() if view in needed]
    query = f"WITH {', '.join(tables)} SELECT * FROM {name}"
    used = {each: value for each, value in values.items() if f":{each}" in query}
    given = {known: to_reckoned(frame) for known, frame in inputs.items() if known in sources}
    made = spark.sql(query, args=used, **given)
    return to_stored(TABLES[name], made) if name in TABLES else made
