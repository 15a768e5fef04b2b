"""`gatepost pipeline query` and `register`: the tables as SQL."""

from typing import Any

from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.spark_jobs import (
    DEFAULT_LOCATIONS,
    JobLocations,
    PositiveCount,
    open_spark,
    run_in_thread,
)
from gatepost.errors import InvalidRequest, PipelineError


class QueryDocument(Struct):
    """`batch`: the batch whose tables were asked. `more`: there are more rows than `rows`."""

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
    """Ask the tables a question in SQL. All of them are as one batch left them.

    For example:

      gatepost pipeline query "SELECT node, sum(sent), sum(dead) FROM slo GROUP BY node"
      gatepost pipeline query --batch 17 "SELECT count(*) FROM deliveries WHERE dead_at IS NULL"

    Parameters
    ----------
    sql
        A query over the views deliveries, tasks, turns, slo, incidents, reviews, eta, traffic …
    batch
        The batch to look back to. Default: the last one.
    limit
        The most rows to print.
    """
    tables = places.tables_folder()
    conf = places.spark_settings()
    with open_spark(places.master, options, "querying", brief=True, conf=conf) as spark:
        document = run_in_thread(spark, lambda: _run_query(spark, tables, sql, batch, limit))
    rows = [tuple(_show_value(value) for value in row.values()) for row in document.rows]
    output.print_result(options, document, lambda: output.print_table(document.columns, rows))


def _run_query(spark: Any, tables: str, sql: str, batch: int | None, limit: int) -> QueryDocument:
    from pyspark.errors import AnalysisException, ParseException

    from gatepost.pipeline.table_views import create_views

    found = create_views(spark, tables, batch)
    try:
        frame = spark.sql(sql)
    except (AnalysisException, ParseException) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(f"this is no query over the tables: {reason}") from None
    rows = [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]
    return QueryDocument(found.batch, frame.columns, rows[:limit], len(rows) > limit)


def _show_value(value: Any) -> object:
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
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
