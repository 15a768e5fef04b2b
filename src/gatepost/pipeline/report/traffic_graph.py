"""The traffic graph: nodes on a circle, and a curve for each direction of traffic between two."""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gatepost.pipeline.report.formatting import (
    format_count,
    format_millis,
    format_plural,
    format_share,
)
from gatepost.pipeline.report.markup import Markup, element
from gatepost.pipeline.report.model import TrafficEdge

_WIDTH = 1000
_RADIUS = 265.0
_MAX_FLAT_NODES = 12
_MAX_CURVES = 200
_MAX_NAME_LENGTH = 18
_LARGEST_NODE = 30.0
_SMALLEST_NODE = 7.0
_WIDEST_CURVE = 6.0
WARN_SHARE, BAD_SHARE = 0.05, 0.2


class NodePosition(Struct, frozen=True):
    """The position of a node on the circle."""

    angle: float
    x: float
    y: float
    size: float


def failure_share(edge: TrafficEdge) -> float:
    """The share of deliveries that ended without being done."""
    return edge.dead / edge.sent if edge.sent else 0.0


def grade_share(share: float) -> str:
    """The CSS class for a share of deliveries that ended badly."""
    return "bad" if share >= BAD_SHARE else "warn" if share >= WARN_SHARE else "fine"


def draw_graph(names: Sequence[str], edges: Sequence[TrafficEdge]) -> Markup:
    """Draw every node, and the busiest edges between nodes."""
    flat = len(names) <= _MAX_FLAT_NODES
    height = 720 if flat else _WIDTH
    known = [edge for edge in edges if edge.source in names and edge.target in names]
    places = _node_positions(arrange_nodes(names, known), known, height)
    between = [edge for edge in known if edge.source != edge.target][:_MAX_CURVES]
    most = max((edge.sent for edge in between), default=1)
    order = {name: index for index, name in enumerate(names)}
    curves = [_edge_curve(edge, places, most, order) for edge in between]
    local = {edge.source: edge for edge in known if edge.source == edge.target}
    dots = [_node_dot(name, places[name], local.get(name), order[name], flat) for name in names]
    return element(
        "svg",
        element("g", *curves, class_="edges"),
        element("g", *dots, class_="nodes"),
        viewBox=f"0 0 {_WIDTH} {height}",
        class_="graph flat" if flat else "graph",
        role="img",
        aria_label=f"{format_plural(len(names), 'node')} and the traffic between them;"
        " the table below has the numbers",
    )


def undrawn_edges(names: Sequence[str], edges: Sequence[TrafficEdge]) -> int:
    """Number of edges that `draw_graph` leaves out because there are too many."""
    between = [e for e in edges if e.source != e.target and {e.source, e.target} <= set(names)]
    return max(0, len(between) - _MAX_CURVES)


def arrange_nodes(names: Sequence[str], edges: Sequence[TrafficEdge]) -> list[str]:
    """The order around the circle: each node is followed by the one it exchanges most with."""
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


def _node_positions(
    order: Sequence[str], edges: Sequence[TrafficEdge], height: float
) -> dict[str, NodePosition]:
    volume = dict.fromkeys(order, 0)
    for edge in edges:
        volume[edge.source] += edge.sent
        volume[edge.target] += edge.sent
    most = max(volume.values(), default=0) or 1
    largest = min(_LARGEST_NODE, math.pi * _RADIUS / len(order) * 0.8) if order else _LARGEST_NODE
    places = {}
    for index, name in enumerate(order):
        angle = 2 * math.pi * index / len(order) - math.pi / 2
        size = max(_SMALLEST_NODE, largest * math.sqrt(volume[name] / most))
        x = _WIDTH / 2 + _RADIUS * math.cos(angle)
        places[name] = NodePosition(angle, x, height / 2 + _RADIUS * math.sin(angle), size)
    return places


def _edge_curve(
    edge: TrafficEdge, places: Mapping[str, NodePosition], most: int, order: Mapping[str, int]
) -> Markup:
    """Draw one edge. Each direction bends to its own right, so that the two do not overlap."""
    a, b = places[edge.source], places[edge.target]
    dx, dy = b.x - a.x, b.y - a.y
    length = math.hypot(dx, dy) or 1
    bend = min(60.0, length * 0.16)
    cx = (a.x + b.x) / 2 - dy / length * bend
    cy = (a.y + b.y) / 2 + dx / length * bend
    width = 1 + _WIDEST_CURVE * math.sqrt(edge.sent / most)
    head = 7 + 1.5 * width
    start, end = _point_towards(a, cx, cy, a.size), _point_towards(b, cx, cy, b.size + head)
    path = f"M{start[0]:.1f},{start[1]:.1f}Q{cx:.1f},{cy:.1f} {end[0]:.1f},{end[1]:.1f}"
    return element(
        "g",
        element("title", describe_edge(edge)),
        element("path", d=path, stroke_width=f"{width:.1f}"),
        element("polygon", points=_arrow_head(end, _point_towards(b, cx, cy, b.size + 1), head)),
        class_=f"edge {grade_share(failure_share(edge))}",
        data_a=order[edge.source],
        data_b=order[edge.target],
    )


def _arrow_head(base: tuple[float, float], tip: tuple[float, float], size: float) -> str:
    """The corners of a triangle from its base to its tip."""
    dx, dy = (tip[0] - base[0]) / size, (tip[1] - base[1]) / size
    half = size * 0.45
    corners = (
        tip,
        (base[0] - dy * half, base[1] + dx * half),
        (base[0] + dy * half, base[1] - dx * half),
    )
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _point_towards(place: NodePosition, x: float, y: float, distance: float) -> tuple[float, float]:
    length = math.hypot(x - place.x, y - place.y) or 1
    return (
        place.x + (x - place.x) / length * distance,
        place.y + (y - place.y) / length * distance,
    )


def describe_edge(edge: TrafficEdge) -> str:
    bad = format_share(edge.dead, edge.sent)
    return (
        f"{edge.source} → {edge.target}: {format_count(edge.sent)} deliveries,"
        f" {bad} ended badly, {format_millis(edge.process_ms)} on average"
    )


def _node_dot(
    name: str, place: NodePosition, local: TrafficEdge | None, index: int, flat: bool
) -> Markup:
    """Draw a node; an inner disc stands for deliveries that stay on the node."""
    title = describe_edge(local) if local else name
    circle = element("circle", cx=f"{place.x:.1f}", cy=f"{place.y:.1f}", r=f"{place.size:.1f}")
    inner = element(
        "circle", cx=f"{place.x:.1f}", cy=f"{place.y:.1f}", r=f"{place.size * 0.4:.1f}",
        class_="local",
    ) if local else None  # fmt: skip
    label = _node_label(name, place, flat)
    return element("g", element("title", title), circle, inner, label, class_="node", data_n=index)


def _node_label(name: str, place: NodePosition, flat: bool) -> Markup:
    distance = place.size + 9
    x = place.x + distance * math.cos(place.angle)
    y = place.y + distance * math.sin(place.angle)
    leftwards = math.cos(place.angle) < -0.01
    upright = abs(math.cos(place.angle)) <= 0.01
    anchor = "end" if leftwards else "start"
    rotation = None
    if flat and upright:
        anchor = "middle"
        y += 8 * math.sin(place.angle)
    elif not flat:
        degrees = math.degrees(place.angle) + (180 if leftwards else 0)
        rotation = f"rotate({degrees:.1f} {x:.1f} {y:.1f})"
    short = name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…"
    return element(
        "text", short, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor,
        dominant_baseline="middle", transform=rotation,
    )  # fmt: skip
