"""`gatepost top`: the application, its keys, and how it follows the changes of a gateway.

Only what is on the screen is read: the ledger, and the view that is open. It is read again when
the gateway says that one of its topics changed. Nothing is asked for on a timer; a clock in this
process alone lets the ages grow.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Event, Key
from textual.suggester import SuggestFromList
from textual.widgets import DataTable, Input, Static

from gatepost.display_text import one_line
from gatepost.errors import GatepostError
from gatepost.tui.actions import Action
from gatepost.tui.dialogs import ConfirmDialog, FactsDialog, HelpDialog
from gatepost.tui.jump_targets import JUMP_NAMES, VIEWS, find_target
from gatepost.tui.ledger_history import LedgerHistory
from gatepost.tui.ledger_panel import Connection, draw_history, draw_ledger, draw_proof, draw_title
from gatepost.tui.operator_api import OperatorApi
from gatepost.tui.row_filter import RowFilter
from gatepost.tui.table_view import MAX_ROWS, WIDE, Column, TableView, choose_columns, shorten_cell
from gatepost.wire.gateway_views import Status
from gatepost.wire.overview_views import NeedList, RoomLedger, Topic

# Between two reads, and between two redraws of ages.
_REST_SECS = 0.5
_AGES_SECS = 5.0
_FIRST_RETRY_SECS, _LONGEST_RETRY_SECS = 0.5, 15.0
_CELL_PADDING = 2
_NEEDS_TOPICS: frozenset[Topic] = frozenset(("messages", "tasks", "room", "nodes"))

_CSS = """
#title, #proof, #history, #status, #keys { height: 1; }
#ledger { height: auto; }
#tabs { height: 1; margin-top: 1; }
#rows { height: 1fr; }
#keys { background: $panel; }
#prompt { display: none; height: 1; border: none; padding: 0; background: $boost; }
#prompt.shown { display: block; }
.dialog {
    width: 90%; max-width: 120; height: auto; max-height: 90%;
    border: round $accent; padding: 0 1; background: $surface;
}
.question { max-width: 90; border: round $warning; }
.section { margin: 0 0 1 2; }
ModalScreen { align: center middle; }
"""


class OpenView:
    """A view on the stack: its filter, and its items as they were read last."""

    def __init__(self, view: TableView[Any], text: str = "") -> None:
        self.view = view
        self.filter = RowFilter(text)
        self.items: dict[str, Any] = {}
        self.count = 0
        self.selected: str | None = None
        self.is_loaded = False


class TopApp(App[None]):
    CSS = _CSS
    ENABLE_COMMAND_PALETTE = False
    TITLE = "gatepost top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", priority=False),
        Binding("colon", "jump", "jump"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "back", "back"),
        Binding("question_mark", "help", "help"),
        Binding("w", "toggle_write", "write"),
        *(Binding(str(n), f"open_view({n - 1})", "") for n in range(1, len(VIEWS) + 1)),
    ]

    def __init__(
        self,
        api: OperatorApi,
        now_ms: Callable[[], int],
        scope: tuple[str, ...] = (),
        first_view: str = "needs",
    ) -> None:
        super().__init__(ansi_color=False)
        self._api = api
        self._now_ms = now_ms
        # The options that name this gateway in a command.
        self._scope = scope
        self._connection = Connection()
        self._ledger: RoomLedger | None = None
        self._needs: NeedList | None = None
        self._history = LedgerHistory()
        self._stack = [OpenView(*(find_target(first_view) or (VIEWS[0](), "")))]
        self._can_write = False
        self._stale: set[Topic] = set()
        self._changed = asyncio.Event()
        self._prompt_for = ""
        self._said: Text | None = None
        self._open_item: Any = None

    @property
    def _open(self) -> OpenView:
        return self._stack[-1]

    def compose(self) -> ComposeResult:
        for id in ("title", "ledger", "proof", "history", "tabs"):
            yield Static(id=id)
        yield DataTable(id="rows", cursor_type="row", zebra_stripes=False)
        yield Static(id="status")
        names = SuggestFromList(JUMP_NAMES, case_sensitive=False)
        yield Input(id="prompt", suggester=names, select_on_focus=False)
        yield Static(id="keys")

    def on_mount(self) -> None:
        self._rows.focus()
        self._draw_all()
        self.set_interval(_AGES_SECS, self._draw_all)
        self._follow_changes()
        self._read_what_changed()

    async def on_unmount(self) -> None:
        await self._api.close()

    def on_resize(self) -> None:
        self._draw_all()

    # -- the gateway

    @work(group="changes", exit_on_error=True)
    async def _follow_changes(self) -> None:
        pause = _FIRST_RETRY_SECS
        while True:
            try:
                async for notice in self._api.changes():
                    pause = _FIRST_RETRY_SECS
                    self._note_contact()
                    self._stale.update(notice.topics)
                    self._changed.set()
            except GatepostError as error:
                self._note_lost(error, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_RETRY_SECS)

    def _note_contact(self) -> None:
        self._connection.heard_at = self._now_ms()
        self._connection.place = self._api.place
        if self._connection.problem:
            self._connection.problem = ""
            self._draw_head()

    def _note_lost(self, error: GatepostError, retry_secs: float) -> None:
        self._connection.problem = error.message
        self._connection.retry_secs = retry_secs
        self._draw_head()

    @work(group="reads", exit_on_error=True)
    async def _read_what_changed(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            topics, self._stale = frozenset(self._stale), set()
            try:
                await self._read(topics)
            except GatepostError as error:
                # A stream that ends says so too, and the next one names all topics.
                self._say(f"not read: {error.message}", "red")
                self._stale |= topics
            await asyncio.sleep(_REST_SECS)

    async def _read(self, topics: frozenset[Topic]) -> None:
        if not self._connection.node:
            self._connection.node = (await self._api.get("/v1/status", Status)).node_id
        if "ledger" in topics:
            self._ledger = await self._api.get("/v1/ledger", RoomLedger)
            self._history.note(self._ledger.ledger, self._now_ms())
        if topics & _NEEDS_TOPICS:
            self._needs = await self._api.get("/v1/needs", NeedList)
        self._connection.heard_at = self._now_ms()
        self._draw_head()
        if topics & self._open.view.topics:
            await self._read_view(self._open)

    async def _read_view(self, opened: OpenView) -> None:
        items = await opened.view.load(self._api, opened.filter)
        opened.count = len(items)
        opened.items = {}
        for item in items:
            opened.items[_unused_key(opened.view.key(item), opened.items)] = item
        opened.is_loaded = True
        if opened is self._open:
            self._draw_rows()
            await self._describe_open_item()

    async def _describe_open_item(self) -> None:
        """Read the item again of which a dialog shows all that is known."""
        if isinstance(self.screen, FactsDialog) and self._open_item is not None:
            view = self._open.view
            # An item that is gone keeps what was known of it.
            with contextlib.suppress(GatepostError):
                facts = await view.describe(self._api, self._open_item, self._now_ms())
                self.screen.show_facts(facts)

    # -- drawing

    @property
    def _rows(self) -> DataTable[Text]:
        return self.screen_stack[0].query_one("#rows", DataTable)

    def _show(self, id: str, text: Text) -> None:
        # Messages and timers may be left when the application ends, and the screens are gone.
        if self.screen_stack:
            self.screen_stack[0].query_one(f"#{id}", Static).update(text)

    def _draw_all(self) -> None:
        self._draw_head()
        self._draw_rows()
        self._draw_keys()

    def _draw_head(self) -> None:
        now, width = self._now_ms(), self.size.width
        self._show("title", draw_title(self._connection, self._can_write, width))
        self._show("ledger", draw_ledger(self._ledger, width))
        proof = draw_proof(self._ledger, now)
        self._show("proof", self._connection.draw_problem(now) or proof)
        if self._ledger is not None:
            drawn = draw_history(self._history, self._ledger.ledger, now, width)
            self._show("history", drawn)
        self._draw_tabs()

    def _draw_tabs(self) -> None:
        text = Text(no_wrap=True, overflow="ellipsis")
        for number, view in enumerate(VIEWS, 1):
            is_open = isinstance(self._stack[0].view, view)
            urgent = len(self._needs.needs) if view is VIEWS[0] and self._needs else 0
            name = f"{view.name} {urgent}" if urgent else view.name
            text.append(f"{number}", style="dim").append(" ")
            text.append(name, style="bold reverse" if is_open else "yellow" if urgent else "")
            text.append(" " if self.size.width < WIDE else "   ")
        self._show("tabs", text)

    def _draw_rows(self) -> None:
        if not self.screen_stack:
            return
        opened, table = self._open, self._rows
        width = self.size.width
        shown = choose_columns(opened.view.columns, width, _CELL_PADDING)
        rows = self._matching_rows(opened)
        if [key.value for key in table.columns] != _column_keys(opened, shown):
            table.clear(columns=True)
            for number, column_width in shown:
                column = opened.view.columns[number]
                key = f"{opened.view.title} {column.title} {column_width}"
                table.add_column(_heading(column), width=column_width, key=key)
        if [key.value for key in table.rows] == [key for key, _ in rows]:
            self._update_cells(table, opened, rows, shown)
        else:
            self._replace_rows(table, opened, rows, shown)
        self._draw_status(len(rows))

    def _matching_rows(self, opened: OpenView) -> list[tuple[str, tuple[str, ...]]]:
        now, view = self._now_ms(), opened.view
        named = opened.filter.named(view.searched)
        cells = ((key, view.cells(item, now)) for key, item in opened.items.items())
        return [(key, row) for key, row in cells if opened.filter.is_match(row, named)]

    def _update_cells(
        self,
        table: DataTable[Text],
        opened: OpenView,
        rows: list[tuple[str, tuple[str, ...]]],
        shown: list[tuple[int, int]],
    ) -> None:
        columns = list(table.columns)
        for key, row in rows:
            old = table.get_row(key)
            for place, cell in enumerate(self._draw_cells(opened, key, row, shown)):
                if old[place] != cell:
                    table.update_cell(key, columns[place], cell)

    def _replace_rows(
        self,
        table: DataTable[Text],
        opened: OpenView,
        rows: list[tuple[str, tuple[str, ...]]],
        shown: list[tuple[int, int]],
    ) -> None:
        selected = opened.selected
        top = table.scroll_offset.y
        table.clear()
        for key, row in rows:
            table.add_row(*self._draw_cells(opened, key, row, shown), key=key)
        keys = [key for key, _ in rows]
        if selected in keys:
            table.move_cursor(row=keys.index(selected), scroll=False)
            table.scroll_to(y=top, animate=False)

    def _draw_cells(
        self, opened: OpenView, key: str, row: tuple[str, ...], shown: list[tuple[int, int]]
    ) -> list[Text]:
        style = opened.view.style(opened.items[key])
        cells = []
        for number, width in shown:
            column = opened.view.columns[number]
            said = shorten_cell(column, one_line(row[number]), width)
            text = Text(said, style=style, no_wrap=True)
            text.truncate(width, overflow="ellipsis")
            if column.is_number:
                text.align("right", width)
            cells.append(text)
        return cells

    def _draw_status(self, shown: int) -> None:
        opened = self._open
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(" › ".join(each.view.title for each in self._stack), style="bold")
        if opened.filter.text:
            text.append(f"  / {one_line(opened.filter.text)}", style="cyan")
        if not opened.is_loaded:
            text.append("  … reading", style="dim")
        elif not opened.items:
            text.append(f"  {opened.view.empty}", style="dim")
        else:
            more = "+" if opened.count >= MAX_ROWS else ""
            text.append(f"  {shown:,} of {opened.count:,}{more}", style="dim")
        self._show("status", text)

    def _say(self, said: str, style: str = "green") -> None:
        """Say something in the line of keys, until the next key."""
        self._said = Text(one_line(said), style=style, no_wrap=True, overflow="ellipsis")
        self._draw_keys()

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key):
            self._said = None
        await super().on_event(event)

    def _draw_keys(self) -> None:
        if self._said is not None:
            self._show("keys", self._said)
            return
        text = Text(no_wrap=True, overflow="ellipsis")
        keys = [("Enter", "open"), ("Esc", "back"), ("/", "filter"), (":", "jump")]
        if self._can_write:
            keys = [
                *((each.key, each.label) for each in self._actions()),
                ("w", "read-only"),
                *keys,
            ]
        else:
            keys.append(("w", "write"))
        for key, label in (*keys, ("?", "help"), ("q", "quit")):
            text.append(f" {key} ", style="bold").append(f"{label} ", style="dim")
        self._show("keys", text)

    # -- what is selected

    def _selected_item(self) -> Any:
        return None if self._open.selected is None else self._open.items.get(self._open.selected)

    def _actions(self) -> tuple[Action, ...]:
        item = self._selected_item()
        return () if item is None else self._open.view.actions(item)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._open.selected = event.row_key.value
        self._draw_keys()

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self._open.selected = event.row_key.value
        item = self._selected_item()
        if item is None:
            return
        inner = self._open.view.open(item)
        if inner is not None:
            self._enter(OpenView(inner))
        else:
            self._show_facts(item)

    @work(group="facts", exclusive=True)
    async def _show_facts(self, item: Any) -> None:
        view = self._open.view
        try:
            facts = await view.describe(self._api, item, self._now_ms())
        except GatepostError as error:
            self._say(error.message, "red")
            return
        self._open_item = item
        await self.push_screen_wait(FactsDialog(f"{view.name} · {view.key(item)}", facts))
        self._open_item = None

    # -- keys

    def on_key(self, event: Key) -> None:
        if len(self.screen_stack) > 1 or isinstance(self.focused, Input):
            return
        for action in self._actions():
            if action.key == event.character:
                event.stop()
                self._start_action(action)
                return

    def action_open_view(self, number: int) -> None:
        if len(self.screen_stack) == 1:
            self._stack = [OpenView(VIEWS[number]())]
            self._show_stack()

    def _enter(self, opened: OpenView) -> None:
        self._stack.append(opened)
        self._show_stack()

    def _show_stack(self) -> None:
        self._draw_tabs()
        self._draw_rows()
        self._draw_keys()
        self._read_open_view()

    @work(group="open", exclusive=True)
    async def _read_open_view(self) -> None:
        try:
            await self._read_view(self._open)
        except GatepostError as error:
            self._say(f"not read: {error.message}", "red")

    async def action_back(self) -> None:
        if self.query_one("#prompt").has_class("shown"):
            self._close_prompt()
        elif self._open.filter.text:
            self._set_filter("")
        elif len(self._stack) > 1:
            self._stack.pop()
            self._show_stack()

    def action_toggle_write(self) -> None:
        self._can_write = not self._can_write
        self._draw_head()
        self._draw_keys()

    def action_help(self) -> None:
        if len(self.screen_stack) == 1:
            self.push_screen(HelpDialog(self._help()))

    def _help(self) -> list[tuple[str, list[tuple[str, str]]]]:
        keys = [
            ("↑ ↓ PgUp PgDn", "choose a row"),
            ("Enter", "open it"),
            ("Esc", "back; ends a filter first"),
            ("/", "show rows with these words"),
            (":", "jump: a view, a term of the ledger, mail AGENT, trace ID"),
            ("w", "allow actions, or forbid them again"),
            ("q", "quit"),
        ]
        searched = " ".join(f"{name}:…" for name in sorted(self._open.view.searched))
        if searched:
            keys.insert(4, ("", f"the gateway looks for {searched}"))
        views = [(f"{n} {view.name}", view.summary) for n, view in enumerate(VIEWS, 1)]
        actions = [(each.key, each.label) for each in self._actions()]
        acts = [("actions on this row, after w", actions)] if actions else []
        return [("keys", keys), ("views", views), *acts]

    # -- actions

    @work(group="action", exclusive=True)
    async def _start_action(self, action: Action) -> None:
        if not self._can_write:
            self._say(f"read-only: press w before you {action.label}", "yellow")
            return
        command = action.command_text(self._scope)
        if not await self.push_screen_wait(ConfirmDialog(action, command)):
            self._draw_keys()
            return
        try:
            answer = await self._api.act(action.method, action.path, action.body)
        except GatepostError as error:
            self._say(f"not done: {error.message}", "red")
            return
        refused = [each.error for each in answer.results if each.error is not None]
        if refused:
            self._say(f"not done: {refused[0].message}", "red")
        else:
            self._say(f"done: {command}")

    # -- the prompt

    def action_jump(self) -> None:
        self._ask("jump", ":")

    def action_filter(self) -> None:
        self._ask("filter", "/", self._open.filter.text)

    def _ask(self, what: str, mark: str, value: str = "") -> None:
        if len(self.screen_stack) > 1:
            return
        self._prompt_for = what
        prompt = self.query_one("#prompt", Input)
        prompt.placeholder = "a view, a term, mail AGENT, trace ID" if what == "jump" else "words"
        prompt.value = value
        prompt.border_title = mark
        prompt.add_class("shown")
        prompt.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_prompt()
        if self._prompt_for == "filter":
            self._set_filter(event.value.strip())
            return
        target = find_target(event.value)
        if target is None:
            self._say(f"there is no {event.value!r}: {' '.join(JUMP_NAMES)}", "yellow")
            return
        self._enter(OpenView(*target))

    def _set_filter(self, text: str) -> None:
        self._open.filter = RowFilter(text)
        self._show_stack()

    def _close_prompt(self) -> None:
        prompt = self.query_one("#prompt", Input)
        prompt.remove_class("shown")
        self._rows.focus()


def _column_keys(opened: OpenView, shown: list[tuple[int, int]]) -> list[str]:
    columns = opened.view.columns
    return [f"{opened.view.title} {columns[n].title} {width}" for n, width in shown]


def _heading(column: Column) -> Text:
    heading = Text(column.title, style="bold")
    if column.is_number:
        heading.align("right", column.width)
    return heading


def _unused_key(key: str, known: dict[str, Any]) -> str:
    """A key that no other row has: two steps of a journey can look the same."""
    number = 1
    unused = key
    while unused in known:
        number += 1
        unused = f"{key} {number}"
    return unused
