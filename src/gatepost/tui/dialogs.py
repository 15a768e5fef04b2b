"""Dialogs over a screen: what is known of an item, a confirmation, the keys."""

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gatepost.display_text import escape_control_chars, one_line
from gatepost.tui.actions import Action
from gatepost.tui.table_view import Fact


class FactsDialog(ModalScreen[None]):
    """Names and values, which are read again when something changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,enter,q", "close", "back"),
    ]

    def __init__(self, title: str, facts: list[Fact]) -> None:
        super().__init__()
        self._title = title
        self._facts = facts

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as box:
            box.border_title = Text(one_line(self._title))
            box.border_subtitle = "Esc back"
            yield Static(draw_facts(self._facts), id="facts")

    def show_facts(self, facts: list[Fact]) -> None:
        self._facts = facts
        self.query_one("#facts", Static).update(draw_facts(facts))

    def action_close(self) -> None:
        self.dismiss()


def draw_facts(facts: list[Fact]) -> Table:
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in facts:
        if value:
            drawn.add_row(Text(name), Text(escape_control_chars(value)))
    return drawn


class ConfirmDialog(ModalScreen[bool]):
    """Asks before an action, and shows the command that does the same."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "yes"),
        ("escape,n,q", "answer(False)", "no"),
    ]

    def __init__(self, action: Action, command: str) -> None:
        super().__init__()
        self._action = action
        self._command = command

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog question") as box:
            box.border_title = Text(self._action.label)
            box.border_subtitle = "y yes · n no" if self._action.path else "Esc back"
            yield Static(Text(one_line(self._action.question), style="bold"))
            yield Static(Text(one_line(f"\n$ {self._command}".lstrip()), style="cyan"))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer and bool(self._action.path))


class HelpDialog(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,enter,q", "close", "back")]

    def __init__(self, sections: list[tuple[str, list[Fact]]]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as box:
            box.border_title = "keys"
            box.border_subtitle = "Esc back"
            for title, facts in self._sections:
                yield Static(Text(title, style="bold"))
                yield Static(draw_facts(facts), classes="section")

    def action_close(self) -> None:
        self.dismiss()
