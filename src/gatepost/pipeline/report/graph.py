"""Who talks to whom, as a circle of nodes and the curves between them."""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gatepost.pipeline.report import figures
from gatepost.pipeline.report.facts import Edge
from gatepost.pipeline.report.markup import Markup, element

_WIDTH = 1000
_RADIUS = 265.0
_FLAT = 12
_MOST_CURVES = 200
_NAME = 18
_LARGEST = 30.0
_SMALLEST = 7.0
_WIDEST = 6.0
WARN, BAD = 0.05, 0.2


class Place(Struct, frozen=True):
    """A node on the circle."""

    angle: float
    x: float
    y: float
    size: float


def trouble(edge: Edge) -> float:
    """The share of deliveries that ended badly."""
    return (edge.failed + edge.dead) / edge.sent if edge.sent else 0.0


def grade(share: float) -> str:
    return "bad" if share >= BAD else "warn" if share >= WARN else "fine"


def drawing(names: Sequence[str], edges: Sequence[Edge]) -> Markup:
    """Every node, and the busiest connections between them."""
    flat = len(names) <= _FLAT
    height = 720 if flat else _WIDTH
    known = [edge for edge in edges if edge.source in names and edge.target in names]
    places = _places(arranged(names, known), known, height)
    between = [edge for edge in known if edge.source != edge.target][:_MOST_CURVES]
    most = max((edge.sent for edge in between), default=1)
    order = {name: index for index, name in enumerate(names)}
    curves = [_curve(edge, places, most, order) for edge in between]
    local = {edge.source: edge for edge in known if edge.source == edge.target}
    dots = [_dot(name, places[name], local.get(name), order[name], flat) for name in names]
    return element(
        "svg",
        element("g", *curves, class_="edges"),
        element("g", *dots, class_="nodes"),
        viewBox=f"0 0 {_WIDTH} {height}",
        class_="graph flat" if flat else "graph",
        role="img",
        aria_label=f"{figures.plural(len(names), 'node')} and the traffic between them;"
        " the table below has the numbers",
    )


def undrawn(names: Sequence[str], edges: Sequence[Edge]) -> int:
    """How many connections are left out because there are so many."""
    between = [e for e in edges if e.source != e.target and {e.source, e.target} <= set(names)]
    return max(0, len(between) - _MOST_CURVES)


def arranged(names: Sequence[str], edges: Sequence[Edge]) -> list[str]:
    """Around the circle: whoever talks most to the one before comes next."""
    weights: dict[frozenset[str], int] = {}
    for edge in edges:
        pair = frozenset((edge.source, edge.target))
        weights[pair] = weights.get(pair, 0) + edge.sent
    left, order = list(names), list(names[:1])
    while len(order) < len(names):
        left.remove(order[-1])
        last = order[-1]
        order.append(max(left, key=lambda name: weights.get(frozenset((last, name)), 0)))
    return order


def _places(order: Sequence[str], edges: Sequence[Edge], height: float) -> dict[str, Place]:
    volume = dict.fromkeys(order, 0)
    for edge in edges:
        volume[edge.source] += edge.sent
        volume[edge.target] += edge.sent
    most = max(volume.values(), default=0) or 1
    room = min(_LARGEST, math.pi * _RADIUS / len(order) * 0.8) if order else _LARGEST
    places = {}
    for index, name in enumerate(order):
        angle = 2 * math.pi * index / len(order) - math.pi / 2
        size = max(_SMALLEST, room * math.sqrt(volume[name] / most))
        x = _WIDTH / 2 + _RADIUS * math.cos(angle)
        places[name] = Place(angle, x, height / 2 + _RADIUS * math.sin(angle), size)
    return places


def _curve(edge: Edge, places: Mapping[str, Place], most: int, order: Mapping[str, int]) -> Markup:
    """Both directions bend to their own right, so that they do not lie on each other."""
    a, b = places[edge.source], places[edge.target]
    across, along = b.x - a.x, b.y - a.y
    length = math.hypot(across, along) or 1
    bend = min(60.0, length * 0.16)
    cx = (a.x + b.x) / 2 - along / length * bend
    cy = (a.y + b.y) / 2 + across / length * bend
    width = 1 + _WIDEST * math.sqrt(edge.sent / most)
    head = 7 + 1.5 * width
    start, end = _towards(a, cx, cy, a.size), _towards(b, cx, cy, b.size + head)
    path = f"M{start[0]:.1f},{start[1]:.1f}Q{cx:.1f},{cy:.1f} {end[0]:.1f},{end[1]:.1f}"
    return element(
        "g",
        element("title", describe(edge)),
        element("path", d=path, stroke_width=f"{width:.1f}"),
        element("polygon", points=_head(end, _towards(b, cx, cy, b.size + 1), head)),
        class_=f"edge {grade(trouble(edge))}",
        data_a=order[edge.source],
        data_b=order[edge.target],
    )


def _head(base: tuple[float, float], tip: tuple[float, float], size: float) -> str:
    """A triangle from its base to its tip."""
    dx, dy = (tip[0] - base[0]) / size, (tip[1] - base[1]) / size
    half = size * 0.45
    corners = (
        tip,
        (base[0] - dy * half, base[1] + dx * half),
        (base[0] + dy * half, base[1] - dx * half),
    )
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _towards(place: Place, x: float, y: float, distance: float) -> tuple[float, float]:
    length = math.hypot(x - place.x, y - place.y) or 1
    return (
        place.x + (x - place.x) / length * distance,
        place.y + (y - place.y) / length * distance,
    )


def describe(edge: Edge) -> str:
    bad = figures.share(edge.failed + edge.dead, edge.sent)
    return (
        f"{edge.source} → {edge.target}: {figures.count(edge.sent)} deliveries,"
        f" {bad} ended badly, {figures.millis(edge.process_ms)} on average"
    )


def _dot(name: str, place: Place, local: Edge | None, index: int, flat: bool) -> Markup:
    """The inner disc is what stays on the node itself."""
    said = describe(local) if local else name
    circle = element("circle", cx=f"{place.x:.1f}", cy=f"{place.y:.1f}", r=f"{place.size:.1f}")
    inner = element(
        "circle", cx=f"{place.x:.1f}", cy=f"{place.y:.1f}", r=f"{place.size * 0.4:.1f}",
        class_="local",
    ) if local else None  # fmt: skip
    label = _label(name, place, flat)
    return element("g", element("title", said), circle, inner, label, class_="node", data_n=index)


def _label(name: str, place: Place, flat: bool) -> Markup:
    distance = place.size + 9
    x = place.x + distance * math.cos(place.angle)
    y = place.y + distance * math.sin(place.angle)
    leftwards = math.cos(place.angle) < -0.01
    upright = abs(math.cos(place.angle)) <= 0.01
    anchor = "end" if leftwards else "start"
    turn = None
    if flat and upright:
        anchor = "middle"
        y += 8 * math.sin(place.angle)
    elif not flat:
        degrees = math.degrees(place.angle) + (180 if leftwards else 0)
        turn = f"rotate({degrees:.1f} {x:.1f} {y:.1f})"
    short = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return element(
        "text", short, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor,
        dominant_baseline="middle", transform=turn,
    )  # fmt: skip
