"""The progress of a task on standard error, if that is a terminal."""

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from gatepost.cli.options import OutputOptions
from gatepost.cli.output import escape_control_chars
from gatepost.durations import format_duration
from gatepost.wire.tasks import TaskView

if TYPE_CHECKING:
    from rich.text import Text


class TaskProgress:
    """Call `show` with every state of the task; without a terminal nothing is drawn."""

    def __init__(self, task: TaskView, options: OutputOptions) -> None:
        self._task = task
        self._is_drawn = sys.stderr.isatty() and not options.json
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._is_drawn:
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.SpinnerColumn(),
                progress.RenderableColumn(self),
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._line = self._bar.add_task("", total=1.0)
            # Before it draws: Ctrl-C may come with the first line.
            self._stack.callback(self._bar.stop)
            try:
                self._bar.start()
            except BaseException:
                self._stack.close()
                raise
        return self

    def __rich__(self) -> "Text":
        """The line as it is now: the time that is left passes between changes of the task."""
        from rich.text import Text

        return Text(describe_progress(self._task, time.time()))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, task: TaskView) -> None:
        self._task = task
        if self._is_drawn:
            self._bar.update(self._line, completed=task.progress or 0.0)


def describe_progress(task: TaskView, now: float) -> str:
    """The state of a task in a few words: its status, its ETA and its last note."""
    parts = [f"{task.agent_name} {task.status}"]
    if task.unknown_until is not None:
        parts = [f"{task.agent_name} unknown, waiting for {task.executor_node}"]
    if task.eta_at is not None and not task.has_ended:
        left = task.eta_at / 1000 - now
        parts.append(f"ETA {format_duration(left)}" if left > 0 else "late")
    if task.note:
        parts.append(task.note)
    return escape_control_chars(", ".join(parts))
