"""HTML and SVG from Python values. Every value that is not `Markup` is escaped."""

from html import escape

Child = str | int | float | None


class Markup(str):
    """Text that is HTML already, and goes into a page unescaped."""

    __slots__ = ()


def element(name: str, *children: Child, **attributes: Child) -> Markup:
    """Build an element: `element("td", "a < b", class_="number")`.

    An attribute that is None is left out. In attribute names, a trailing underscore is dropped
    and other underscores become dashes.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join_markup(*children)}</{name}>")


def join_markup(*children: Child) -> Markup:
    return Markup("".join(_escape_child(child) for child in children if child is not None))


def _escape_child(child: Child) -> str:
    return child if isinstance(child, Markup) else escape(str(child))
