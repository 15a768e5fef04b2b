"""HTML and SVG from Python values. What is not markup already is escaped, always."""

from html import escape

Child = str | int | float | None


class Markup(str):
    """Text that is HTML, and may stand in a page as it is."""

    __slots__ = ()


def element(name: str, *children: Child, **attributes: Child) -> Markup:
    """`element("td", "a < b", class_="number")`; an attribute that is None is left out.

    A trailing underscore is dropped, others become dashes.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(_text(child) for child in children if child is not None))


def _text(child: Child) -> str:
    return child if isinstance(child, Markup) else escape(str(child))
