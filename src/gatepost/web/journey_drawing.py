"""A message's journey as a drawing: a lane for each gateway, a mark for each durable step.

On a phone the same steps are a list, which the page has anyway.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from gatepost.durations import format_duration
from gatepost.web.html import Attribute, Child, Markup, join, tag
from gatepost.web.words import Tone
from gatepost.wire.report_views import JourneyStep

_LANE: Final = 54
_LEFT: Final = 96
_STEP: Final = 104
_TOP: Final = 30
_MAX_DRAWN: Final = 24
_TONES: Final[dict[str, Tone]] = {
    **dict.fromkeys(("processed", "heard_processed", "turn_ended", "reply"), "ok"),
    **dict.fromkeys(("held", "waiting", "backing_off", "offered", "sent_again"), "wait"),
    **dict.fromkeys(("refused", "given_up", "turn_failed", "unreadable"), "dead"),
}


def step_tone(what: str) -> Tone:
    return _TONES.get(what, "move")


def step_name(what: str) -> str:
    return what.replace("_", " ")


def draw_journey(steps: Sequence[JourneyStep]) -> Markup:
    shown = steps[:_MAX_DRAWN]
    nodes = list(dict.fromkeys(step.node for step in shown))
    width = _LEFT + max(4, len(shown)) * _STEP
    height = _TOP + len(nodes) * _LANE + 24
    lanes = [part for number, node in enumerate(nodes) for part in _lane(number, node, width)]
    places = [
        (_LEFT + 40 + number * _STEP, _TOP + nodes.index(step.node) * _LANE + 18)
        for number, step in enumerate(shown)
    ]
    hops = [_hop(start, end) for start, end in pairwise(places)]
    marks = [
        part
        for number, (step, place) in enumerate(zip(shown, places, strict=True))
        for part in _mark(step, place, shown[0].at, number, height)
    ]
    label = f"{len(steps)} steps at {len(nodes)} gateways; the list below has the same"
    view: dict[str, Attribute] = {
        "viewBox": f"0 0 {width} {height}",
        "width": width,
        "height": height,
        "role": "img",
        "aria-label": label,
    }
    drawing = tag("svg", {**view, "class": "lanes"}, join([*lanes, *hops, *marks]))
    return tag(
        "div",
        {
            "class": "wrap lanes-wrap",
            "tabindex": 0,
            "role": "group",
            "aria-label": "Lanes of gateways",
        },
        drawing,
    )


def _lane(number: int, node: str, width: int) -> tuple[Markup, Markup]:
    top = _TOP + number * _LANE
    back = tag(
        "rect",
        {"x": _LEFT, "y": top, "width": width - _LEFT - 4, "height": 36, "rx": 8, "class": "lane"},
    )
    return back, _text(4, top + 22, node[:12], "name")


def _hop(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    middle = (start[0] + end[0]) // 2
    path = f"M{start[0] + 8},{start[1]}C{middle},{start[1]} {middle},{end[1]} {end[0] - 8},{end[1]}"
    return tag("path", {"d": path, "class": "hop"})


def _mark(
    step: JourneyStep, place: tuple[int, int], began: int, number: int, height: int
) -> list[Markup]:
    x, y = place
    ring = tag(
        "circle",
        {"cx": x, "cy": y, "r": 6, "class": f"ev {step_tone(step.what)}"},
        tag("title", None, f"{step_name(step.what)} {step.detail}"),
    )
    offset = f"+{format_duration((step.at - began) / 1000)}" if number else "0"
    return [
        ring,
        _text(x, y - 12, step_name(step.what), "s", middle=True),
        _text(x, height - 6, offset, "m", middle=True),
    ]


def _text(x: int, y: int, text: Child, style: str, *, middle: bool = False) -> Markup:
    anchor = "middle" if middle else None
    return tag("text", {"x": x, "y": y, "class": style, "text-anchor": anchor}, text)
