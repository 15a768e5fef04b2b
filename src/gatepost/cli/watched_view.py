"""`--watch`: shows the result of a command again when the gateway says that it may have changed.

On a terminal it is redrawn in place; in a pipe each result follows the one before.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Set
from typing import Annotated, NoReturn, Protocol

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.live_stream import follow_stream
from gatepost.cli.options import Flag, GatewayOptions
from gatepost.wire.overview_views import ChangeNotice, Topic

WatchOption = Annotated[Flag, Parameter(help="Show it again whenever it changes, until Ctrl-C.")]


class _View(Protocol):
    def show(self, draw: Callable[[], object]) -> None: ...
    def tell_lost(self, problem: str) -> None: ...


def show_watched(
    options: GatewayOptions, topics: Set[Topic], draw: Callable[[CliGateway], object]
) -> NoReturn:
    """Call `draw` now, and after each change of one of the topics, until Ctrl-C."""

    def take(gateway: CliGateway, notice: ChangeNotice) -> None:
        if topics & set(notice.topics):
            view.show(lambda: draw(gateway))

    with contextlib.ExitStack() as stack:
        is_drawn = sys.stdout.isatty() and not options.json
        view: _View = stack.enter_context(_ScreenView()) if is_drawn else _PlainView()
        follow_stream(options, "/v1/changes", ChangeNotice, take, view.tell_lost)


class _PlainView:
    """One result after the other; those that are as before are left out."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, draw: Callable[[], object]) -> None:
        written = _capture(draw, is_terminal=False)
        if written != self._last:
            self._last = written
            sys.stdout.write(written)
            sys.stdout.flush()

    def tell_lost(self, problem: str) -> None:
        output.print_warning(problem)


class _ScreenView:
    """The last result, on the whole terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._last = ""
        self._live = Live(console=Console(), screen=True, auto_refresh=False)

    def __enter__(self) -> "_ScreenView":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        # What was seen last stays in the terminal.
        sys.stdout.write(self._last)

    def show(self, draw: Callable[[], object]) -> None:
        self._last = _capture(draw, is_terminal=True)
        self._draw("Ctrl-C ends; redrawn when it changes", "dim")

    def tell_lost(self, problem: str) -> None:
        self._draw(output.escape_control_chars(problem), "bold red")

    def _draw(self, note: str, style: str) -> None:
        from rich.console import Group
        from rich.text import Text

        shown = Text.from_ansi(self._last.rstrip("\n"))
        self._live.update(Group(shown, Text(""), Text(note, style=style)), refresh=True)


class _TerminalText(io.StringIO):
    """Commands draw for a terminal: colours, and tables of its width."""

    def isatty(self) -> bool:
        return True


def _capture(draw: Callable[[], object], *, is_terminal: bool) -> str:
    """What `draw` prints; its hints would stand on the drawn screen."""
    written = _TerminalText() if is_terminal else io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(io.StringIO()):
        draw()
    return written.getvalue()
