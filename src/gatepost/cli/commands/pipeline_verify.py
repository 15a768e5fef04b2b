"""`gatepost pipeline verify`: compares the tables with their definitions in Spark SQL."""

from typing import TYPE_CHECKING

from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.problems import ExitCode, usage_problem
from gatepost.cli.spark_jobs import (
    DEFAULT_LOCATIONS,
    JobLocations,
    PositiveCount,
    open_runner,
    print_engine,
)

if TYPE_CHECKING:
    from gatepost.pipeline.engine_use import EngineUse
    from gatepost.pipeline.jobs.verify import TableVerdict, Verification
    from gatepost.pipeline.transport import Transport


class VerifyDocument(Struct):
    """`hours` since 1970, out of `of`, were compared. `engine`: what ran the queries."""

    right: bool
    batch: int
    hours: list[int]
    of: int
    tables: "list[TableVerdict]"
    engine: "EngineUse"


def verify_tables(
    *,
    hours: PositiveCount = 3,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Compare the tables with their definitions, in Spark SQL over the archived events.

    The hours are evenly spread over those of the tables. Exits with 1 if a row differs.

    For example:

      gatepost pipeline verify
      gatepost pipeline verify --hours 24 --master spark://host:7077

    Parameters
    ----------
    hours
        The number of hours to compare.
    """
    archive, tables = places.archive_uri(), places.tables_folder()
    if places.engine != "spark":
        raise usage_problem("verify runs on Spark: leave --engine out")
    with open_runner(places, options, "verifying") as runner:
        from gatepost.pipeline.jobs.verify import verify_tables as verify
        from gatepost.pipeline.transport import SparkTransport

        def compare(transport: "Transport") -> "Verification":
            assert isinstance(transport, SparkTransport), "the engine is Spark"
            return verify(transport, archive, tables, hours)

        found = runner.call(compare)
        use = runner.engine_use()
    document = VerifyDocument(found.is_right, found.batch, found.hours, found.of, found.tables, use)
    output.print_result(options, document, lambda: _print_verification(document))
    return ExitCode.OK if found.is_right else ExitCode.FAILED


def _print_verification(document: VerifyDocument) -> None:
    rows = [(each.table, each.rows, each.missing, each.unexpected) for each in document.tables]
    output.print_table(("Table", "Rows", "Missing", "Unexpected"), rows)
    for table in document.tables:
        for sample in table.samples:
            output.print_line(f"{table.table}: {sample}", "red")
    compared = f"{len(document.hours)} of {output.format_count(document.of, 'hour')}"
    if document.right:
        output.print_line(f"{compared}: the tables are what their definitions say", "green")
    else:
        output.print_line(f"{compared}: the tables differ from their definitions", "red")
    print_engine(document.engine)
