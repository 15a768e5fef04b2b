"""The terms of the report, each explained once for readers who see them for the first time."""

from gatepost.pipeline.report.html_elements import page_section
from gatepost.pipeline.report.markup import Markup, element, join_markup

_TERMS = (
    ("Node", "One machine with its gateway. Agents talk to the gateway of their own node."),
    ("Delivery", "One message, reply or task on its way from one agent to another."),
    ("Accepted", "The gateway of the receiver has the message on disk."),
    ("Sent", "Messages and tasks. A reply is the answer to one, and is not counted on its own."),
    ("Processed", "The receiver’s turn with the message has ended, or it has replied."),
    ("In motion", "The receiver’s gateway has the message, and the turn has not ended."),
    ("Waiting", "No gateway of the receiver has the message yet."),
    ("Expired", "Its time was over before a turn began."),
    ("Open", "Not processed, not a dead letter and not expired: in motion or waiting."),
    (
        "Dead letter",
        "A message whose turn failed too often, or that no gateway took in time. It is kept with"
        " its reason, and can be sent again.",
    ),
    ("Retried", "Sent more than once, because no receipt came in time."),
    ("p50, p95, p99", "The time within which 50, 95 or 99\u202f% of the deliveries were done."),
    (
        "Online p95",
        "The p95 without deliveries that waited for a node that was away. The objective is about"
        " this figure.",
    ),
    ("Window", "A span of time that is judged on its own."),
    ("Incident", "Something that went wrong and that no retry has repaired by itself."),
    ("Misfire", "A task that went wrong, counted by the versions of the skills involved."),
    ("Promise", "A rule of the protocol that the audit checks for every event."),
)


def terms_section() -> Markup:
    terms = [join_markup(element("dt", name), element("dd", text)) for name, text in _TERMS]
    return page_section("terms", "Terms", None, element("dl", *terms, class_="terms"))
