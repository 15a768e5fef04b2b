"""Dead letters, and messages that were given up: to filter, replay and discard, also in bulk."""

import asyncio
from collections.abc import Mapping, Sequence

from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import NOTHING, Child, Markup, join, tag
from gatepost.web.layout import Frame, action_link, empty, heading, link, panel, table
from gatepost.web.page_data import BoxLetter, read_dead_letters, read_undelivered
from gatepost.web.words import ago
from gatepost.wire.gateway_views import Undelivered

_PAGE = 100


async def dead_letters_page(
    frame: Frame, calls: ApiCalls, given: Mapping[str, str]
) -> tuple[str, list[Child]]:
    names = ("sender", "reason_contains")
    wanted = {name: given.get(name) or None for name in names}
    mailbox = given.get("mailbox", "")
    letters, given_up = await asyncio.gather(
        read_dead_letters(calls, _PAGE, mailbox, **wanted), read_undelivered(calls, _PAGE)
    )
    chosen = {name: value for name, value in wanted.items() if value}
    boxes = sorted({each.mailbox for each in letters})
    bulk = [_bulk(frame, box, chosen) for box in boxes[:20]]
    shown = letter_table(frame, letters) if letters else empty("No dead letters match.")
    undelivered = (
        _undelivered_table(frame, given_up.messages)
        if given_up.messages
        else empty("No message was given up.")
    )
    all_undelivered = (
        join(
            [
                action_link(frame, "replay-undelivered", "Replay all…", {}),
                " ",
                action_link(frame, "discard-undelivered", "Discard all…", {}, danger=True),
            ]
        )
        if given_up.messages
        else None
    )
    return "Dead letters", [
        heading("Dead letters"),
        _filter_form(given),
        panel("bulk", "In bulk", join(bulk), live="messages") if bulk else NOTHING,
        panel("list", "Turns that failed", shown, live="messages"),
        panel("undelivered", "Undelivered", undelivered, live="messages", aside=all_undelivered),
    ]


def _bulk(frame: Frame, box: str, chosen: Mapping[str, str]) -> Markup:
    which = " that match" if chosen else ""
    return tag(
        "div",
        {"class": "bulk"},
        tag("b", None, box),
        tag("span", {"class": "dim"}, f"all dead letters{which}"),
        action_link(frame, "replay", "Replay all…", {"mailbox": box, **chosen}),
        action_link(frame, "discard", "Discard all…", {"mailbox": box, **chosen}, danger=True),
    )


def letter_table(frame: Frame, letters: Sequence[BoxLetter]) -> Markup:
    columns = (("Agent, and why", ""), ("Age", "w-a"), ("Tries", "w-at hide-s"), ("", "w-act"))
    rows = (
        (
            join(
                [
                    link(f"/messages/{each.letter.msg_id}", each.mailbox),
                    tag("span", {"class": "dim"}, f" from {each.letter.from_}"),
                    tag("span", {"class": "why"}, each.letter.reason),
                ]
            ),
            ago(each.letter.failed_at * 1000, frame.now),
            str(each.letter.attempts),
            join(
                [
                    action_link(
                        frame,
                        "replay",
                        "Replay",
                        {"mailbox": each.mailbox, "id": each.letter.msg_id},
                    ),
                    " ",
                    action_link(
                        frame,
                        "discard",
                        "Discard",
                        {"mailbox": each.mailbox, "id": each.letter.msg_id},
                        danger=True,
                    ),
                ]
            ),
        )
        for each in letters
    )
    return table("Dead letters", columns, rows)


def _undelivered_table(frame: Frame, messages: Sequence[Undelivered]) -> Markup:
    columns = (("From → to, and why", ""), ("Age", "w-a"), ("", "w-act"))
    rows = (
        (
            join(
                [
                    link(f"/messages/{each.event_id}", f"{each.from_agent} → {each.to_agent}"),
                    tag(
                        "span",
                        {"class": "why"},
                        f"{each.reason}{'' if each.verdict is None else f': {each.verdict}'}",
                    ),
                ]
            ),
            ago(each.failed_at, frame.now),
            join(
                [
                    action_link(frame, "replay-undelivered", "Replay", {"id": each.event_id}),
                    " ",
                    action_link(
                        frame, "discard-undelivered", "Discard", {"id": each.event_id}, danger=True
                    ),
                ]
            ),
        )
        for each in messages
    )
    return table("Undelivered", columns, rows)


def _filter_form(given: Mapping[str, str]) -> Markup:
    fields = (("mailbox", "Agent"), ("sender", "Sender"), ("reason_contains", "Reason contains"))
    boxes = (
        tag("label", None, label, tag("input", {"name": name, "value": given.get(name, "")}))
        for name, label in fields
    )
    button = tag("button", {"class": "btn prim", "type": "submit"}, "Filter")
    form = {"class": "filters", "method": "get", "action": "/dead-letters"}
    return tag("form", form, join(boxes), button)
