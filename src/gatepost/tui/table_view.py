"""A view: the rows that one screen shows, how they are read, and what Enter opens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gatepost.tui.actions import Action
from gatepost.tui.operator_api import OperatorApi
from gatepost.tui.row_filter import RowFilter
from gatepost.wire.overview_views import Topic

Item = TypeVar("Item")

# As many rows as a person looks through; `/` finds the others.
MAX_ROWS = 500
_MIN_FLEXIBLE = 12
# A terminal of this width shows the columns that are left out on a narrow one.
WIDE = 120
ID_WIDTH = 36
# Ids begin with their time, so their ends tell them apart.
_SHORT_ID = 13

Fact = tuple[str, str]


class Column(NamedTuple):
    """Width 0 takes the room that the others leave. A narrow terminal shows the end of an id."""

    title: str
    width: int = 0
    is_wide: bool = False
    is_number: bool = False

    @property
    def is_id(self) -> bool:
        return self.width == ID_WIDTH

    def width_at(self, screen_width: int) -> int:
        return _SHORT_ID if self.is_id and screen_width < WIDE else self.width


class TableView(ABC, Generic[Item]):
    """One table. Its rows are read again when one of its topics changed."""

    name: ClassVar[str]
    summary: ClassVar[str]
    topics: ClassVar[frozenset[Topic]]
    columns: ClassVar[tuple[Column, ...]]
    empty: ClassVar[str]
    # What the gateway itself can look for, as `name:value` in the filter.
    searched: ClassVar[frozenset[str]] = frozenset()

    @property
    def title(self) -> str:
        return self.name

    @abstractmethod
    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[Item]: ...

    @abstractmethod
    def key(self, item: Item) -> str: ...

    @abstractmethod
    def cells(self, item: Item, now_ms: int) -> tuple[str, ...]: ...

    def style(self, item: Item) -> str:
        return ""

    async def describe(self, api: OperatorApi, item: Item, now_ms: int) -> list[Fact]:
        """All that is known of an item, in lines with a name each."""
        columns = zip(self.columns, self.cells(item, now_ms), strict=True)
        return [(column.title, cell) for column, cell in columns]

    def open(self, item: Item) -> "TableView[Any] | None":
        """The view that Enter opens; None for a page of what is known of the item."""
        return None

    def actions(self, item: Item) -> tuple[Action, ...]:
        return ()


def choose_columns(columns: Sequence[Column], width: int, padding: int) -> list[tuple[int, int]]:
    """The columns that fit: their numbers and widths."""
    is_wide = width >= WIDE
    shown = [n for n, column in enumerate(columns) if is_wide or not column.is_wide]
    fixed = sum(columns[n].width_at(width) + padding for n in shown)
    flexible = [n for n in shown if not columns[n].width]
    share = max(_MIN_FLEXIBLE, (width - fixed) // len(flexible)) if flexible else 0
    return [(n, columns[n].width_at(width) or share) for n in shown]


def shorten_cell(column: Column, cell: str, width: int) -> str:
    """The end of an id that does not fit; of any other text its beginning."""
    if len(cell) <= width:
        return cell
    return "…" + cell[1 - width :] if column.is_id else cell[: width - 1] + "…"
