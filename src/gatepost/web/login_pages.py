"""Pages without a session: how to log in, and why something was refused."""

from gatepost.errors import GatepostError
from gatepost.web.html import NOTHING, Attribute, Child, document, tag
from gatepost.web.layout import command_text, head, logo


def login_page(problem: str = "") -> bytes:
    """The form takes the code out of the link's fragment, which no server and no log ever sees."""
    code: dict[str, Attribute] = {
        "name": "code",
        "id": "code",
        "type": "password",
        "required": True,
        "autocomplete": "off",
        "aria-label": "Code",
    }
    return _bare(
        "Log in",
        tag("p", {"class": "notice dead", "role": "alert"}, problem) if problem else NOTHING,
        tag("p", None, "The operator's command makes a link that opens this dashboard once:"),
        command_text("gatepost dashboard"),
        tag(
            "form",
            {"method": "post", "action": "/login", "id": "login", "class": "filters tall"},
            tag("label", None, "Or paste the code after # in it", tag("input", code)),
            tag("button", {"class": "btn prim", "type": "submit"}, "Log in"),
        ),
    )


def refusal_page(error: GatepostError) -> bytes:
    return _bare(
        "Not done",
        tag("p", {"class": "notice dead", "role": "alert"}, error.message),
        tag("p", {"class": "dim mono"}, error.code),
        tag("p", None, tag("a", {"href": "/", "class": "link"}, "To the overview")),
    )


def _bare(title: str, *content: Child) -> bytes:
    panel = tag(
        "main",
        {"id": "main", "class": "panel bare"},
        tag("div", {"class": "brand"}, logo(), "Gatepost"),
        tag("h1", None, title),
        *content,
    )
    body = tag("body", {"class": "bare"}, panel)
    return document(tag("html", {"lang": "en"}, head(f"{title} · Gatepost"), body))
