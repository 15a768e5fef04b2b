"""`gatepost pipeline query` and `register`: the tables as SQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.settings import load_settings
from gatepost.cli.spark_jobs import (
    DEFAULT_LOCATIONS,
    JobLocations,
    PositiveCount,
    open_spark,
    run_in_thread,
)
from gatepost.errors import InvalidRequest, PipelineError


class QueryDocument(Struct):
    """`batch`: the batch whose tables were queried. `more`: there are more rows than `rows`."""

    batch: int
    columns: list[str]
    rows: list[dict[str, Any]]
    more: bool


def query_tables(
    sql: str,
    /,
    *,
    batch: PositiveCount | None = None,
    limit: PositiveCount = 1000,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Query the tables in SQL. All of them are in the state after one batch.

    The view events shows the archived events that this batch and those before it took in. It needs
    the archive, and opens only segments that can match the conditions on node, date, seq and
    created_at.

    For example:

      gatepost pipeline query "SELECT node, sum(sent), sum(dead) FROM slo GROUP BY node"
      gatepost pipeline query "SELECT kind, count(*) FROM events WHERE node = 'n1' GROUP BY kind"
      gatepost pipeline query --batch 17 "SELECT count(*) FROM deliveries WHERE dead_at IS NULL"

    Parameters
    ----------
    sql
        A query over the views events, deliveries, tasks, turns, slo, incidents, reviews, eta …
    batch
        The batch to look back to. Default: the last one.
    limit
        The most rows to print.
    """
    tables, archive = places.tables_folder(), _find_archive(places)
    conf = places.spark_settings()

    def run_query() -> QueryDocument:
        from gatepost.pipeline.table_views import query_views

        with _explain_wrong_query(archive):
            found, frame = query_views(spark, sql, tables, batch, archive)
        # Arrow keeps the time zone, which Spark's rows lose.
        rows = frame.limit(limit + 1).toArrow().to_pylist()
        return QueryDocument(found.batch, frame.columns, rows[:limit], len(rows) > limit)

    with open_spark(places.master, options, "querying", brief=True, conf=conf) as spark:
        document = run_in_thread(spark, run_query)
    rows = [tuple(_show_value(value) for value in row.values()) for row in document.rows]
    output.print_result(options, document, lambda: output.print_table(document.columns, rows))


def _find_archive(places: JobLocations) -> str | None:
    """The archive, if one is named or configured; the tables alone need none."""
    return places.archive or load_settings(places.state_dir).archive.uri or None


@contextmanager
def _explain_wrong_query(archive: str | None) -> Iterator[None]:
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        reason = str(error).partition("\n")[0]
        hint = "" if archive else "; the view events needs --archive"
        raise InvalidRequest(f"this is no query over the tables: {reason}{hint}") from None


def _show_value(value: Any) -> object:
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(" ").replace("+00:00", "Z")
    return "" if value is None else value


def register_tables(
    database: str,
    /,
    *,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Register the tables in the catalog of a Spark that knows Delta.

    For example:

      gatepost pipeline register gatepost --tables s3://bucket/tables --master spark://host:7077

    Parameters
    ----------
    database
        The database of the catalog; it is created if there is none.
    """
    tables = places.tables_folder()
    conf = places.spark_settings()
    with open_spark(places.master, options, "registering", brief=True, conf=conf) as spark:
        from gatepost.pipeline.table_views import register_tables as register

        try:
            names = run_in_thread(spark, lambda: register(spark, tables, database))
        except PipelineError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise PipelineError(
                f"the catalog does not take Delta tables: {reason}; this Spark needs Delta's"
                " connector (--conf spark.jars.packages=io.delta:…)"
            ) from None
    output.print_result(options, names, lambda: output.print_line("\n".join(names)))
