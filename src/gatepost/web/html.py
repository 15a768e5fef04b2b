"""HTML that is escaped by construction: text becomes markup in one place, and only escaped.

`tag("p", {"class": "dim"}, text)` makes markup of its children. A child that is a `str` is text,
whatever is in it; a child that is `Markup` was made here. Attributes that could run code cannot be
made: no `on…`, no `style`, and only links within the dashboard.
"""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

_VOID: Final = frozenset({"br", "hr", "input", "link", "meta", "img"})
_LINKS: Final = frozenset({"href", "action", "src", "formaction"})


class Markup:
    """Finished markup."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        """Only this module calls it."""
        self.text = text

    def __str__(self) -> str:
        return self.text


Child = Markup | str | int | None
Attribute = str | int | float | bool | None
Attributes = Mapping[str, Attribute]
NOTHING: Final = Markup("")


def tag(name: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """One element. An attribute that is None or False is left out; True has no value."""
    opened = f"<{name}{_attributes(attributes or {})}>"
    if name in _VOID:
        return Markup(opened)
    return Markup(f"{opened}{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """All children, one after the other."""
    return Markup("".join(map(_text, children)))


def document(*children: Child) -> bytes:
    return f"<!doctype html>{join(children)}".encode()


def _text(child: Child) -> str:
    if isinstance(child, Markup):
        return child.text
    return "" if child is None else escape(str(child), quote=False)


def _attributes(given: Attributes) -> str:
    return "".join(
        _attribute(name, value)
        for name, value in given.items()
        if value is not None and value is not False
    )


def _attribute(name: str, value: str | int | float | bool) -> str:
    if name.startswith("on") or name == "style":
        raise ValueError(f"the attribute {name!r} could run code")
    if value is True:
        return f" {name}"
    text = str(value)
    if name in _LINKS and not is_local_link(text):
        raise ValueError(f"a link that leads elsewhere: {text!r}")
    return f' {name}="{escape(text)}"'


def is_local_link(link: str) -> bool:
    """Whether a link stays within this gateway: `//` and a backslash would leave it."""
    if link.startswith("#"):
        return True
    return link.startswith("/") and not link.startswith("//") and "\\" not in link
