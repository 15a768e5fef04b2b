"""The elements that every section of the page is made of."""

from collections.abc import Sequence

from msgspec import Struct

from gatepost.pipeline.report.markup import Child, Markup, element


class TableColumn(Struct, frozen=True):
    """A column of a data table; a numeric one is aligned to the right."""

    name: str
    numeric: bool


def text_columns(*names: str) -> list[TableColumn]:
    return [TableColumn(name, numeric=False) for name in names]


def number_columns(*names: str) -> list[TableColumn]:
    return [TableColumn(name, numeric=True) for name in names]


def page_section(id: str, title: str, about: str | None, *content: Markup | None) -> Markup:
    intro = element("p", about, class_="about") if about else None
    return element("section", element("h2", title), intro, *content, id=id)


def empty_note(text: str) -> Markup:
    """The content of a section without rows, which is good news."""
    return element("p", verdict_mark("good"), text, class_="verdict good")


def verdict_mark(verdict: str) -> Markup:
    """A sign for `good`, `bad` or `none`, which screen readers skip."""
    sign = {"good": "✓", "bad": "✕", "none": "○"}[verdict]
    return element("span", sign, class_="mark", aria_hidden="true")


def details_block(title: str, content: Markup) -> Markup:
    return element("details", element("summary", title), content)


def scroll_region(label: str, table: Markup) -> Markup:
    """A table that scrolls on its own if it is wider than the screen, by keyboard too."""
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def data_table(
    caption: str, columns: Sequence[TableColumn], rows: Sequence[Sequence[Child]]
) -> Markup:
    kinds = ["number" if column.numeric else None for column in columns]
    head = [
        element("th", column.name, scope="col", class_=kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    body = [
        element("tr", *(element("td", cell, class_=k) for cell, k in zip(row, kinds, strict=True)))
        for row in rows
    ]
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return scroll_region(caption, table)
