"""`gatepost pipeline report`: the report as an HTML file or as text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import usage_problem
from gatepost.cli.spark_jobs import (
    DEFAULT_LOCATIONS,
    JobLocations,
    PositiveCount,
    open_runner,
    print_engine,
)
from gatepost.files import write_file_atomically

if TYPE_CHECKING:
    from gatepost.pipeline.report.model import PipelineReport


def write_report(
    *,
    output_file: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    terminal: Flag = False,
    days: PositiveCount = 30,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Write the report, a self-contained HTML file.

    For example:

      gatepost pipeline report
      gatepost pipeline report -o /srv/www/report.html --days 7
      gatepost pipeline report --terminal

    Parameters
    ----------
    output_file
        The file to write. Default: report.html in the current folder.
    terminal
        Print a short version instead.
    days
        Number of days to cover, up to the latest event.
    """
    tables = places.tables_folder()
    with open_runner(places, options, "reading the tables") as runner:
        from gatepost.pipeline.report.gatherer import gather_report

        made = runner.call(lambda transport: gather_report(transport, tables, days=days))
        use = runner.engine_use()
    if not terminal:
        _write_page(made, output_file or Path("report.html"), options)
    else:
        output.print_result(options, made, lambda: print_report(made))
    if not options.json:
        print_engine(use)


def _write_page(made: "PipelineReport", path: Path, options: OutputOptions) -> None:
    save_page(made, path)
    output.print_result(options, made, lambda: output.print_line(f"written: {path.absolute()}"))


def save_page(made: "PipelineReport", path: Path) -> None:
    from gatepost.pipeline.report.html_page import render_page

    try:
        write_file_atomically(path, render_page(made).encode())
    except OSError as error:
        raise usage_problem(f"{path} cannot be written: {error.strerror}") from None


def print_report(made: "PipelineReport") -> None:
    from gatepost.pipeline.report import formatting, terminal_summary
    from gatepost.pipeline.report.html_page import audit_verdict, describe_incidents

    first, last = map(formatting.format_timestamp, (made.first_at, made.last_at))
    output.print_line(f"{first} to {last} UTC", "bold")
    output.print_line(str(made.ledger))
    output.print_table(terminal_summary.LEVEL_COLUMNS, terminal_summary.level_rows(made))
    output.print_line("")
    for line in terminal_summary.trend_lines(made):
        output.print_line(line)
    output.print_line("")
    level, text = audit_verdict(made)
    output.print_line(text, {"good": "green", "bad": "red"}.get(level, ""))
    text = terminal_summary.plain_spaces(describe_incidents(made))
    if rows := terminal_summary.incident_rows(made):
        output.print_line(f"{text}:", "red")
        output.print_table(terminal_summary.INCIDENT_COLUMNS, rows)
    else:
        output.print_line(text, "green")
