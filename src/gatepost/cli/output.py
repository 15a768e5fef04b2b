"""Prints results: JSON with `--json`, tables on a terminal, tab-separated columns in a pipe."""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from gatepost import display_text
from gatepost.cli.options import OutputOptions
from gatepost.cli.problems import usage_problem
from gatepost.display_text import (
    escape_control_chars,
    format_count,
    format_size,
    format_time,
    one_line,
    payload_text,
)

# Commands print through this module, and need its words too.
__all__ = [
    "confirm_action",
    "escape_control_chars",
    "explain_interrupt",
    "format_age",
    "format_ago",
    "format_count",
    "format_size",
    "format_time",
    "now_ms",
    "payload_text",
    "print_hint",
    "print_line",
    "print_messages",
    "print_problems",
    "print_result",
    "print_table",
    "print_warning",
]

_COLUMN_GAP = 2
_MIN_SENTENCE_WIDTH = 12


def print_result(options: OutputOptions, document: object, human: Callable[[], None]) -> None:
    """Print the result: `document` as JSON with `--json`, else by calling `human`."""
    if not options.json:
        human()
        return
    data = msgspec.json.encode(document)
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    print(data.decode())


def print_line(text: str, style: str = "") -> None:
    """Print one line on standard output."""
    if not style or not sys.stdout.isatty():
        print(escape_control_chars(text))
        return
    from rich.console import Console

    Console(highlight=False, markup=False, emoji=False).print(
        escape_control_chars(text), style=style, soft_wrap=True
    )


def print_problems(problems: Iterable[str]) -> None:
    """Print what an operator has to act on, before everything else."""
    for problem in problems:
        print_line(f"PROBLEM: {problem}", "bold red")


def print_hint(text: str) -> None:
    """Print advice on standard error, only if it is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


@contextmanager
def explain_interrupt(advice: str) -> Iterator[None]:
    """Print the advice if Ctrl-C ends the block: what it waits for goes on without it."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ngatepost: {advice}", file=sys.stderr)
        raise


def print_warning(text: str) -> None:
    """Print a warning on standard error, whether anybody looks at it now or reads it later."""
    print(f"gatepost: {escape_control_chars(text)}", file=sys.stderr)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: aligned on a terminal; in a pipe one line per row, separated by tabs."""
    cells = [[_cell_text(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        print("\n".join("\t".join(line) for line in (columns, *cells)))
    elif widths := _column_widths([columns, *cells], shutil.get_terminal_size().columns):
        numbers = [isinstance(value, int) for value in rows[0]]
        _draw_table(columns, cells, widths, numbers)
    else:
        _print_rows_as_blocks(columns, cells)


def print_messages(
    columns: Sequence[str], rows: Sequence[Sequence[object]], subjects: Sequence[str | None]
) -> None:
    """Print a table of messages, with a column of their subjects if there are any."""
    if any(subjects):
        columns = (*columns, "Subject")
        rows = [(*row, subject or "") for row, subject in zip(rows, subjects, strict=True)]
    print_table(columns, rows)


def _column_widths(lines: Sequence[Sequence[str]], available: int) -> list[int] | None:
    """The width of each column; None if ids would have to be cut, which makes them useless."""
    columns = list(zip(*lines, strict=True))
    widths = [_min_column_width(column) for column in columns]
    spare = available - sum(widths) - _COLUMN_GAP * (len(widths) - 1)
    if spare < 0:
        return None
    for index, column in enumerate(columns):
        added = min(spare, max(map(len, column)) - widths[index])
        widths[index] += added
        spare -= added
    return widths


def _min_column_width(column: Sequence[str]) -> int:
    """Cells may be wrapped between words, but never inside a word."""
    longest = max(map(len, column))
    words = max((len(word) for cell in column for word in cell.split()), default=0)
    return max(words, min(longest, _MIN_SENTENCE_WIDTH))


def _draw_table(
    columns: Sequence[str], cells: list[list[str]], widths: list[int], numbers: list[bool]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="bold")
    for name, width, number in zip(columns, widths, numbers, strict=True):
        drawn.add_column(name, justify="right" if number else "left", width=width)
    for row in cells:
        drawn.add_row(*map(Text, row))
    Console(highlight=False).print(drawn)


def _print_rows_as_blocks(columns: Sequence[str], cells: list[list[str]]) -> None:
    """Print each value on its own line, for rows that do not fit on one."""
    for row in cells:
        print_line(row[0], "bold")
        for name, cell in zip(columns[1:], row[1:], strict=True):
            if cell:
                print_line(f"  {name.lower()}: {cell}")


def _cell_text(value: object) -> str:
    return one_line(str(value))


def format_age(at_ms: int) -> str:
    """The time since an epoch millisecond: `5 min`."""
    return display_text.format_age(at_ms, now_ms())


def now_ms() -> int:
    return int(time.time() * 1000)


def format_ago(at_ms: int) -> str:
    return f"{format_age(at_ms)} ago"


def confirm_action(question: str, yes: bool, options: OutputOptions) -> bool:
    """Ask for confirmation; without a terminal, `--yes` is required."""
    if yes:
        return True
    if options.json or not sys.stdin.isatty():
        raise usage_problem(f"{question} Add --yes to confirm.")
    print(f"{escape_control_chars(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        print_hint("nothing was done")
    return agreed
