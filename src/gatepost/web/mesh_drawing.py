"""The mesh as a map: this gateway in the middle, the others around it, what waits on which edge."""

import math
from collections.abc import Sequence
from typing import Final

from gatepost.web.html import NOTHING, Markup, join, tag
from gatepost.web.words import TONE_SIGNS, count_of, node_tone
from gatepost.wire.room_views import NodeView

_WIDTH: Final = 760
# Where two others stand beside the middle, and where more stand around it.
_LOW, _HIGH = 150, 330
_BOX: Final = (190, 62)
MAX_DRAWN: Final = 10

Place = tuple[float, float]


def draw_mesh(nodes: Sequence[NodeView], publisher: str | None) -> Markup:
    """The same picture for the same room, every time. Others than the first are in the list."""
    shown = sorted(nodes, key=lambda node: (not node.is_self, node.id))[:MAX_DRAWN]
    height = _LOW if len(shown) <= 3 else _HIGH
    places = _places(len(shown), height)
    centre = places[0] if places else (0.0, 0.0)
    others = list(zip(shown, places, strict=True))[1:]
    parts = [_edge(node, centre, place) for node, place in others]
    parts += [
        _box(node, place, is_publisher=node.id == publisher)
        for node, place in zip(shown, places, strict=True)
    ]
    parts += [_label(node, centre, place) for node, place in others]
    words = ", ".join(f"{node.id} {node.status}" for node in shown)
    view = {"viewBox": f"0 0 {_WIDTH} {height}", "role": "img", "class": "map"}
    return tag("svg", {**view, "aria-label": f"Map of the mesh: {words}"}, join(parts))


def _places(count: int, height: int) -> list[Place]:
    middle = (_WIDTH / 2, height / 2)
    others = count - 1
    # Two stand left and right of the middle, more on an ellipse from the upper left on.
    turn = math.pi if others <= 2 else math.pi * 1.25
    around = [
        (
            middle[0] + (_WIDTH / 2 - _BOX[0] / 2 - 10) * math.cos(turn + 2 * math.pi * i / others),
            middle[1] + (height / 2 - _BOX[1] / 2 - 8) * math.sin(turn + 2 * math.pi * i / others),
        )
        for i in range(others)
    ]
    return [middle, *around][:count]


def _edge(node: NodeView, start: Place, end: Place) -> Markup:
    peer = node.peer
    style = "link up" if peer is not None and peer.linked else "link relayed"
    if node.status == "offline" or (peer is not None and peer.problem):
        style = "link down"
    return tag(
        "line",
        {
            "x1": round(start[0]),
            "y1": round(start[1]),
            "x2": round(end[0]),
            "y2": round(end[1]),
            "class": style,
        },
    )


def _label(node: NodeView, start: Place, end: Place) -> Markup:
    """What waits for a gateway, on its edge."""
    peer = node.peer
    if peer is None or not (peer.waiting or peer.relay):
        return NOTHING
    text = f"{peer.waiting:,} wait" if peer.waiting else f"via {peer.relay}"
    width = len(text) * 7 + 16
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    back = tag(
        "rect",
        {"x": round(x - width / 2), "y": round(y - 11), "width": width, "height": 22, "rx": 11},
    )
    words = tag("text", {"x": round(x), "y": round(y + 4), "text-anchor": "middle"}, text)
    style = "lab waiting" if peer.waiting else "lab"
    return tag("g", {"class": style}, back, words, tag("title", None, peer.why or text))


def _box(node: NodeView, place: Place, *, is_publisher: bool) -> Markup:
    left, top = round(place[0] - _BOX[0] / 2), round(place[1] - _BOX[1] / 2)
    tone = node_tone(node.status)
    style = f"nd {tone}" + (" self" if node.is_self else "")
    crown = tag("text", {"x": _BOX[0] - 24, "y": 23}, "♛") if is_publisher else NOTHING
    role = f"{node.tier} · publisher" if is_publisher else node.tier
    return tag(
        "g",
        {"class": style, "transform": f"translate({left},{top})"},
        tag("rect", {"width": _BOX[0], "height": _BOX[1], "rx": 9}),
        tag("text", {"x": 12, "y": 23, "class": "sign"}, TONE_SIGNS[tone]),
        tag("text", {"x": 30, "y": 23, "class": "name"}, node.id[:18]),
        crown,
        tag("text", {"x": 12, "y": 39, "class": "s"}, role),
        tag("text", {"x": 12, "y": 54, "class": "s"}, _standing(node)),
        tag("title", None, node.state),
    )


def _standing(node: NodeView) -> str:
    if node.peer is not None and node.peer.waiting:
        return f"{node.status} · {count_of(node.peer.waiting, 'message')} wait"
    return f"{node.status} · this gateway" if node.is_self else node.status
