"""Messages: the list that is searched, and the journey of one through all gateways."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import get_args
from urllib.parse import urlencode

from msgspec.structs import replace

from gatepost.errors import GatepostError
from gatepost.ledger import Term
from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import NOTHING, Child, Markup, join, tag
from gatepost.web.journey_drawing import draw_journey, step_name, step_tone
from gatepost.web.layout import (
    Frame,
    command_text,
    empty,
    facts,
    heading,
    link,
    panel,
    table,
)
from gatepost.web.words import TERM_TONES, ago, chip, clock_time, count_of, dot, progress, term_name
from gatepost.wire.overview_views import SentMessageView, SentPage
from gatepost.wire.report_views import Journey

_PAGE = 50
_FILTERS = ("agent", "conversation", "node")
_PERIODS = {"5 min": 300, "1 h": 3600, "24 h": 86_400, "7 d": 604_800}


async def messages_page(
    frame: Frame, calls: ApiCalls, given: Mapping[str, str]
) -> tuple[str, list[Child]]:
    wanted = _wanted(given, frame.now)
    try:
        found = await calls.get("/v1/messages", SentPage, limit=_PAGE, **wanted)
        content: Child = message_table(found.messages, frame.now)
    except GatepostError as error:
        found, content = SentPage([]), empty(error.message)
    if not found.messages and "id" not in wanted:
        content = empty("No messages match. ", "gatepost send AGENT 'hello'")
    older = NOTHING
    if found.next:
        query = urlencode({**_kept(given), "before": found.next})
        older = tag("p", {"class": "more"}, link(f"/messages?{query}", "Older messages"))
    aside = tag("span", {"class": "dim"}, f"sent from {frame.status.node_id}, newest first")
    return "Messages", [
        heading("Messages"),
        _filter_form(given),
        panel(
            "list",
            "Sent",
            content,
            older,
            aside=aside,
            live="" if "before" in wanted else "messages",
        ),
    ]


def _kept(given: Mapping[str, str]) -> dict[str, str]:
    names = ("q", "term", "period", *_FILTERS)
    return {name: given[name] for name in names if given.get(name)}


def _wanted(given: Mapping[str, str], now: int) -> dict[str, object]:
    """The query of the API. What was typed into the search is an id, an agent or a conversation."""
    wanted: dict[str, object] = {name: given[name] for name in _FILTERS if given.get(name)}
    if given.get("term") in get_args(Term):
        wanted["term"] = given["term"]
    if given.get("period") in _PERIODS:
        wanted["since"] = now - _PERIODS[given["period"]] * 1000
    if given.get("before"):
        wanted["before"] = given["before"]
    text = given.get("q", "").strip()
    if text:
        is_id = len(text) == 36 and text.count("-") == 4
        wanted["id" if is_id else "agent"] = text
    return wanted


def _filter_form(given: Mapping[str, str]) -> Markup:
    def field(name: str, label: str) -> Markup:
        box = tag("input", {"name": name, "value": given.get(name, ""), "autocomplete": "off"})
        return tag("label", None, label, box)

    def choice(name: str, label: str, values: Sequence[tuple[str, str]]) -> Markup:
        options = (
            tag("option", {"value": value, "selected": given.get(name, "") == value}, text)
            for value, text in values
        )
        return tag("label", None, label, tag("select", {"name": name}, join(options)))

    terms = [("", "any"), *((term, term_name(term)) for term in get_args(Term))]
    periods = [("", "any"), *((name, f"last {name}") for name in _PERIODS)]
    return tag(
        "form",
        {"class": "filters", "method": "get", "action": "/messages"},
        field("q", "Id or agent"),
        field("conversation", "Conversation"),
        field("node", "Gateway"),
        choice("term", "Term", terms),
        choice("period", "Sent", periods),
        tag("button", {"class": "btn prim", "type": "submit"}, "Filter"),
    )


def message_table(messages: Sequence[SentMessageView], now: int) -> Markup:
    columns = (
        ("Sent", "w-t hide-s"),
        ("From → to", ""),
        ("Progress", "w-p"),
        ("State", "w-s"),
        ("Age", "w-a"),
    )
    rows = (
        (
            clock_time(each.sent_at),
            link(
                f"/messages/{each.event_id}",
                each.from_agent,
                tag("span", {"class": "arrow"}, " → "),
                each.to_agent,
                tag("span", {"class": "dim"}, f" @{each.node}" if each.node else ""),
            ),
            _steps(each),
            chip(TERM_TONES[each.term], state_text(each)),
            ago(each.sent_at, now),
        )
        for each in messages
    )
    return table("Messages", columns, rows) if messages else empty("No messages yet.")


def _steps(each: SentMessageView) -> Markup:
    return progress(
        each.term, accepted=each.accepted_at is not None, ended=each.processed_at is not None
    )


def state_text(each: SentMessageView) -> str:
    """The state in the words of the ledger, with what is known more."""
    if each.term == "waiting":
        return f"waits for {each.node}" if each.node else "waits for a gateway"
    if each.term == "in_motion":
        return "accepted" if each.state == "accepted" else each.state.replace("_", " ")
    if each.term == "dead_letters":
        return each.reason.replace("_", " ")[:40] if each.reason else "dead letter"
    return term_name(each.term)


# -- one journey


async def message_page(
    frame: Frame, calls: ApiCalls, ref: str, at: int | None = None
) -> tuple[str, list[Child]]:
    """The journey of a message; with `at`, as far as it had come by then."""
    journey, known = await asyncio.gather(
        calls.get(f"/v1/trace/{ref}", Journey), _find_message(calls, ref)
    )
    if at is not None:
        steps = [step for step in journey.steps if step.at <= at]
        journey, known = replace(journey, steps=steps), None
    return f"Message {ref[:8]}", [
        heading("Journey", tag("span", {"class": "mono dim"}, ref)),
        panel(
            "lanes",
            "Through the gateways",
            draw_journey(journey.steps),
            live="messages",
            aside=_state_chip(known),
        ),
        panel("steps", "Steps", _step_list(journey), live="messages", size="wide"),
        panel("facts", "Facts", _facts(frame, journey, known), live="messages", size="narrow"),
    ]


async def _find_message(calls: ApiCalls, ref: str) -> SentMessageView | None:
    try:
        found = await calls.get("/v1/messages", SentPage, id=ref)
    except GatepostError:
        return None
    return found.messages[0]


def _state_chip(known: SentMessageView | None) -> Child:
    return None if known is None else chip(TERM_TONES[known.term], state_text(known))


def _step_list(journey: Journey) -> Markup:
    items = []
    for step in journey.steps:
        who = f"{step.agent} → {step.to_agent}" if step.to_agent else step.agent
        detail = " · ".join(filter(None, (who, step.peer and f"with {step.peer}", step.detail)))
        items.append(
            tag(
                "li",
                None,
                dot(step_tone(step.what)),
                tag(
                    "div",
                    {"class": "two"},
                    tag("b", None, step_name(step.what)),
                    " at ",
                    step.node,
                    tag("span", {"class": "why"}, detail),
                ),
                clock_time(step.at),
            )
        )
    return tag("ol", {"class": "needs-list steps"}, join(items))


def _facts(frame: Frame, journey: Journey, known: SentMessageView | None) -> Markup:
    rows: list[tuple[str, Child]] = []
    if known is not None:
        rows += [
            ("From → to", f"{known.from_agent} → {known.to_agent}"),
            ("Gateway", known.node or "none"),
            ("Attempts", str(known.attempt)),
        ]
        if known.reason:
            rows.append(("Reason", known.reason))
    talk = link(f"/messages?{urlencode({'conversation': journey.corr_id})}", journey.corr_id)
    rows.append(("Conversation", talk))
    if journey.more_in_conversation:
        rows.append(("More in it", count_of(journey.more_in_conversation, "message")))
    rows += [(f"Not asked: {node}", why) for node, why in journey.unreachable.items()]
    rows += [(f"Asked via {relay}", node) for node, relay in journey.relays.items()]
    rows += [(f"Clock of {node}", f"{ahead:+,} ms") for node, ahead in journey.clocks.items()]
    rows += [("Note", note) for note in journey.notes]
    buttons = tag(
        "div",
        {"class": "acts"},
        tag(
            "button",
            {
                "class": "btn prim",
                "type": "button",
                "data-copy-from": f"/messages/{journey.ref}/proof",
            },
            "Copy proof",
        ),
        tag(
            "a",
            {"class": "btn", "href": f"/messages/{journey.ref}/proof", "download": True},
            "Download proof",
        ),
    )
    same = tag("div", {"class": "dim"}, command_text(f"gatepost trace {journey.ref}"))
    return join([facts(*rows), buttons, same])
