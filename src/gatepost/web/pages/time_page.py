"""Going back in time: the ledger at an earlier moment, and the messages sent until then."""

import asyncio
from collections.abc import Mapping

from gatepost.durations import format_duration
from gatepost.errors import InvalidRequest
from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import Child, Markup, join, tag
from gatepost.web.layout import Frame, empty, heading, link, panel, table
from gatepost.web.pages.overview_page import ledger_panel
from gatepost.web.words import clock_time
from gatepost.wire.overview_views import RoomLedger, SentMessageView, SentPage

_SPANS = {"hour": 3600, "day": 86_400, "week": 604_800}
# Steps of the slider over its span.
_STEPS = 120


async def time_page(
    frame: Frame, calls: ApiCalls, given: Mapping[str, str]
) -> tuple[str, list[Child]]:
    span = given.get("span") if given.get("span") in _SPANS else "hour"
    back = read_steps(given)
    secs = _SPANS[span or "hour"] * back // _STEPS
    at = frame.now - secs * 1000
    room, sent = await asyncio.gather(
        calls.get("/v1/ledger", RoomLedger, at=at),
        calls.get("/v1/messages", SentPage, until=at + 1, limit=30),
    )
    when = f"{format_duration(secs)} ago" if secs else "now"
    return "Earlier", [
        heading("Earlier", tag("span", {"class": "dim"}, when, " · ", clock_time(at), " UTC")),
        _slider(span or "hour", back, when),
        ledger_panel(frame, room),
        panel("list", "Sent until then", _list(sent.messages, at)),
        empty(
            "Counted from the journals: messages that they have forgotten since are in no count."
            " How gateways stood then is not kept."
        ),
    ]


def read_steps(given: Mapping[str, str]) -> int:
    """How far the slider is back, from 0 (now) to its end."""
    try:
        return max(0, min(_STEPS, int(given.get("back") or 0)))
    except ValueError:
        raise InvalidRequest("`back` is a number of steps") from None


def _slider(span: str, back: int, when: str) -> Markup:
    options = (
        tag("option", {"value": name, "selected": name == span}, f"the last {name}")
        for name in _SPANS
    )
    return tag(
        "form",
        {"class": "filters slider", "method": "get", "action": "/time", "data-auto": True},
        tag("label", None, "Within", tag("select", {"name": "span"}, join(options))),
        tag(
            "label",
            {"class": "wide"},
            f"How far back: {when}",
            tag(
                "input",
                {
                    "type": "range",
                    "name": "back",
                    "min": 0,
                    "max": _STEPS,
                    "value": back,
                    "aria-valuetext": when,
                },
            ),
        ),
        tag("button", {"class": "btn prim", "type": "submit"}, "Show"),
    )


def _list(messages: list[SentMessageView], at: int) -> Markup:
    columns = (("Sent", "w-t"), ("From → to", ""), ("Then", "w-s"))
    rows = (
        (
            clock_time(each.sent_at),
            link(f"/messages/{each.event_id}?at={at}", f"{each.from_agent} → {each.to_agent}"),
            state_at(each, at),
        )
        for each in messages
    )
    return table("Messages", columns, rows) if messages else empty("Nothing was sent before.")


def state_at(each: SentMessageView, at: int) -> str:
    """How far a message had come by a moment."""
    if each.processed_at is not None and each.processed_at <= at:
        return each.term.replace("_", " ")
    return "in motion" if each.accepted_at is not None and each.accepted_at <= at else "waiting"
