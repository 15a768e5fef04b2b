"""What all pages share: the frame with its navigation, panels, tables, and forms of actions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct

from gatepost import __version__
from gatepost.web.html import NOTHING, Child, Markup, document, join, tag
from gatepost.web.words import Tone
from gatepost.wire.gateway_views import Status

PAGES: Final = (
    ("/", "Overview", "o"),
    ("/mesh", "Mesh", "n"),
    ("/agents", "Agents", "a"),
    ("/messages", "Messages", "m"),
    ("/tasks", "Tasks", "t"),
    ("/dead-letters", "Dead letters", "d"),
    ("/capabilities", "Capabilities", "c"),
    ("/incidents", "Incidents", "i"),
    ("/objectives", "Objectives", "j"),
    ("/room", "Room", "r"),
    ("/settings", "Settings", "s"),
    ("/audit", "Audit log", "l"),
    ("/time", "Earlier", "e"),
    ("/write", "Write", "w"),
)
_TABS: Final = (
    ("/", "Overview", "⌂"),
    ("/messages", "Messages", "✉"),
    ("/tasks", "Tasks", "✓"),
    ("/dead-letters", "Dead", "✕"),
    ("/more", "More", "☰"),
)


class Frame(Struct, frozen=True):
    """What the frame of a page shows besides the page."""

    path: str
    status: Status
    read_only: bool
    form_secret: str
    now: int
    notice: str = ""

    @property
    def counts(self) -> dict[str, tuple[int, Tone]]:
        status = self.status
        return {
            "/agents": (status.agents, "plain"),
            "/mesh": (len(status.peers) + 1, "plain"),
            "/dead-letters": (status.dead_letters_open + status.undelivered, "dead"),
            "/capabilities": (status.reviews_open, "wait"),
            "/incidents": (sum(status.incidents.values()), "wait"),
        }


def render(frame: Frame, title: str, *content: Child) -> bytes:
    node = frame.status.node_id
    body = tag(
        "body",
        None,
        tag("a", {"class": "skip", "href": "#main"}, "Skip to content"),
        _rail(frame),
        tag(
            "main",
            {"id": "main", "tabindex": -1},
            _top(frame),
            _notice(frame),
            *content,
        ),
        _tab_bar(frame),
        _keys_dialog(),
        tag("dialog", {"id": "action", "aria-label": "Confirm"}),
    )
    return document(tag("html", {"lang": "en"}, head(f"{title} · {node} · Gatepost"), body))


def head(title: str) -> Markup:
    return tag(
        "head",
        None,
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("title", None, title),
        tag("link", {"rel": "icon", "href": "/static/icon.svg"}),
        tag("link", {"rel": "stylesheet", "href": "/static/app.css"}),
        tag("script", {"src": "/static/app.js", "type": "module"}),
    )


def _rail(frame: Frame) -> Markup:
    links = (_nav_item(frame, path, name) for path, name, _ in PAGES)
    return tag(
        "aside",
        {"class": "rail"},
        tag("div", {"class": "brand"}, logo(), "Gatepost"),
        tag("div", {"class": "ctx"}, tag("span", {"class": "mono"}, frame.status.node_id)),
        tag(
            "nav",
            {"aria-label": "Pages", "id": "rail", "data-live": "messages nodes tasks"},
            tag("ul", None, join(links)),
        ),
        tag(
            "footer",
            None,
            tag("div", None, tag("kbd", None, "/"), " search  ", tag("kbd", None, "?"), " keys"),
            tag("div", None, f"{__version__} · {'read-only' if frame.read_only else 'operator'}"),
            logout_form(frame),
        ),
    )


def logout_form(frame: Frame) -> Markup:
    return tag(
        "form",
        {"method": "post", "action": "/logout"},
        tag("input", {"type": "hidden", "name": "form_secret", "value": frame.form_secret}),
        tag("button", {"class": "btn", "type": "submit"}, "Log out"),
    )


def logo() -> Markup:
    path = tag("path", {"d": "M5 21V5l3-2 3 2v16M13 9h7M13 15h7M17 9v12"})
    return tag("svg", {"viewBox": "0 0 24 24", "class": "logo", "aria-hidden": "true"}, path)


def _nav_item(frame: Frame, path: str, name: str) -> Markup:
    current = "page" if _is_current(frame, path) else None
    number, tone = frame.counts.get(path, (0, "plain"))
    badge = tag("span", {"class": f"count {tone}"}, f"{number:,}") if number else NOTHING
    return tag("li", None, tag("a", {"href": path, "aria-current": current}, name, " ", badge))


def _is_current(frame: Frame, path: str) -> bool:
    return frame.path == path or (path != "/" and frame.path.startswith(f"{path}/"))


def _top(frame: Frame) -> Markup:
    search = tag(
        "form",
        {"class": "search", "role": "search", "action": "/messages", "method": "get"},
        tag(
            "input",
            {
                "name": "q",
                "id": "search",
                "aria-label": "Search messages",
                "placeholder": "Message id, agent, conversation, node…",
                "autocomplete": "off",
            },
        ),
        tag("kbd", {"aria-hidden": "true"}, "/"),
    )
    return tag(
        "div",
        {"class": "top"},
        tag("span", {"class": "who mono"}, frame.status.node_id),
        search,
        tag("span", {"class": "live", "id": "live", "role": "status"}, "connecting…"),
        tag(
            "button",
            {"class": "btn", "id": "theme", "type": "button", "aria-label": "Light or dark"},
            "◐",
        ),
    )


def _notice(frame: Frame) -> Markup:
    if not frame.notice:
        return NOTHING
    return tag("p", {"class": "notice", "role": "status"}, frame.notice)


def _tab_bar(frame: Frame) -> Markup:
    def item(path: str, name: str, sign: str) -> Markup:
        number, tone = frame.counts.get(path, (0, "plain"))
        is_badge = number and tone == "dead"
        badge = tag("span", {"class": "count dead"}, f"{number:,}") if is_badge else NOTHING
        current = "page" if _is_current(frame, path) else None
        icon = tag("span", {"class": "icon", "aria-hidden": "true"}, sign)
        return tag("a", {"href": path, "aria-current": current}, badge, icon, name)

    items = join(item(*each) for each in _TABS)
    return tag("nav", {"class": "tabbar", "aria-label": "Pages (phone)"}, items)


def _keys_dialog() -> Markup:
    keys = [("/", "search"), ("?", "these keys"), ("Esc", "close")]
    keys += [(f"g {key}", name) for _, name, key in PAGES]
    rows = (
        tag("div", None, tag("dt", None, tag("kbd", None, key)), tag("dd", None, what))
        for key, what in keys
    )
    return tag(
        "dialog",
        {"id": "keys", "aria-label": "Keys"},
        tag("h2", None, "Keys"),
        tag("dl", {"class": "keys"}, join(rows)),
        tag("form", {"method": "dialog"}, tag("button", {"class": "btn"}, "Close")),
    )


# -- parts of pages


def panel(
    id: str,
    title: str,
    *content: Child,
    live: str = "",
    aside: Child = None,
    size: str = "full",
) -> Markup:
    """A titled part of a page. `live`: the topics after which it may show something else."""
    return tag(
        "section",
        {
            "class": f"panel {size}",
            "id": id,
            "aria-labelledby": f"{id}-h",
            "data-live": live or None,
        },
        tag(
            "header", None, tag("h2", {"id": f"{id}-h"}, title), tag("span", {"class": "sp"}), aside
        ),
        *content,
    )


def heading(title: str, *more: Child) -> Markup:
    return tag("div", {"class": "heading"}, tag("h1", None, title), *more)


Column = tuple[str, str]  # title and class


def table(label: str, columns: Sequence[Column], rows: Iterable[Sequence[Child]]) -> Markup:
    """Rows of cells; on a phone each row is a card."""
    titles = (tag("th", {"class": style or None, "scope": "col"}, name) for name, style in columns)
    body = [
        tag(
            "tr",
            None,
            join(
                tag("td", {"class": style or None, "data-name": name or None}, cell)
                for (name, style), cell in zip(columns, row, strict=True)
            ),
        )
        for row in rows
    ]
    return tag(
        "div",
        {"class": "wrap", "tabindex": 0, "role": "group", "aria-label": f"{label}, table"},
        tag(
            "table",
            None,
            tag("thead", None, tag("tr", None, join(titles))),
            tag("tbody", None, join(body)),
        ),
    )


def empty(text: str, command: str = "") -> Markup:
    """What an empty list says, and the command that would fill it."""
    return tag("p", {"class": "empty"}, text, command_text(command) if command else None)


def command_text(command: str) -> Markup:
    """A command, with the button that copies it."""
    copy = tag(
        "button",
        {
            "class": "btn copy",
            "type": "button",
            "data-copy": command,
            "aria-label": f"Copy: {command}",
        },
        "Copy",
    )
    return tag("span", {"class": "command"}, tag("code", None, command), copy)


def action_link(
    frame: Frame, action: str, label: str, given: Mapping[str, str], *, danger: bool = False
) -> Markup:
    """The button of an action, which opens its confirmation. Read-only sessions have none."""
    if frame.read_only:
        return NOTHING
    query = urlencode({**given, "back": frame.path})
    style = "btn danger" if danger else "btn"
    return tag("a", {"class": style, "href": f"/do/{action}?{query}", "data-action": True}, label)


def facts(*rows: tuple[str, Child]) -> Markup:
    shown = (join((tag("dt", None, name), tag("dd", None, value))) for name, value in rows)
    return tag("dl", {"class": "facts"}, join(shown))


def link(path: str, *text: Child) -> Markup:
    return tag("a", {"href": path, "class": "link"}, *text)
