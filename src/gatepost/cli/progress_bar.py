"""A progress bar on standard error, if that is a terminal."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, Self

from gatepost.cli.options import OutputOptions

if TYPE_CHECKING:
    from rich.progress import ProgressColumn


class ProgressBar:
    """Call `advance` as work is done; without a terminal nothing is drawn."""

    def __init__(
        self,
        label: str,
        total: int | None,
        options: OutputOptions,
        unit: Literal["bytes", "messages"],
    ) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._is_drawn = sys.stderr.isatty() and not options.json
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._is_drawn:
            self._start_bar()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def advance(self, amount: int) -> None:
        if self._is_drawn:
            self._bar.advance(self._task, amount)

    def count_pieces(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same pieces; each advances the bar by its length."""
        for piece in pieces:
            yield piece
            self.advance(len(piece))

    def _start_bar(self) -> None:
        from rich import progress
        from rich.console import Console

        columns = progress.TextColumn("{task.description}"), progress.BarColumn()
        self._bar = self._stack.enter_context(
            progress.Progress(
                *columns, *self._figure_columns(), console=Console(stderr=True), transient=True
            )
        )
        self._task = self._bar.add_task(self._label, total=self._total)

    def _figure_columns(self) -> "tuple[ProgressColumn, ...]":
        from rich import progress

        if self._unit == "bytes":
            return progress.DownloadColumn(), progress.TransferSpeedColumn()
        return progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
