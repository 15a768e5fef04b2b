"""Where `:` jumps to: a view, a term of the ledger, the mail of an agent, a message."""

import re
from typing import Any

from gatepost.ledger import TERMS
from gatepost.tui.mail_views import AgentsView, DeadLettersView, MailView, UndeliveredView
from gatepost.tui.room_views import IncidentsView, NeedsView, NodesView
from gatepost.tui.table_view import TableView
from gatepost.tui.work_views import JourneyView, MessagesView, TasksView

# In the order of the number keys.
VIEWS: tuple[type[TableView[Any]], ...] = (
    NeedsView,
    NodesView,
    AgentsView,
    TasksView,
    MessagesView,
    DeadLettersView,
    UndeliveredView,
    IncidentsView,
)
_EVENT_ID = re.compile(r"[0-9A-Za-z-]{20,64}")
_TERM_NAMES = {term.replace("_", "-"): term for term in TERMS}
JUMP_NAMES = (*(view.name for view in VIEWS), "sent", *_TERM_NAMES, "mail ", "trace ")


def find_target(text: str) -> tuple[TableView[Any], str] | None:
    """The view that is meant, and its filter; None if nothing is."""
    name, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    for view in VIEWS:
        if view.name == name:
            return view(), rest
    if name == "sent":
        return MessagesView(), rest
    if (term := _TERM_NAMES.get(name.replace("_", "-"))) is not None:
        return MessagesView(), f"term:{term} {rest}".strip()
    if name == "mail" and rest:
        return MailView(rest), ""
    if name == "trace" and rest:
        return JourneyView(rest), ""
    return (JourneyView(name), "") if _EVENT_ID.fullmatch(name) else None
