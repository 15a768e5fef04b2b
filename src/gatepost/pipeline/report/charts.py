"""Charts as inline SVG without text: it stretches to any width, and labels stand beside it.

Lines keep their thickness however the drawing is stretched. Every chart has a table of the same
numbers, for those who do not see it.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from gatepost.pipeline.report import figures, scale
from gatepost.pipeline.report.markup import Markup, element, join
from gatepost.pipeline.report.scale import Linear, Log, Tick

Values = Sequence[int | None]

_SIZE = 1000
_TICKS = 10


class Series(Struct, frozen=True):
    """`style` is the class that gives it its colour."""

    name: str
    style: str
    values: Values


Span = tuple[int, int]


def latency(
    label: str,
    starts: Sequence[int],
    step: int,
    series: Sequence[Series],
    *,
    goal: int | None = None,
    spans: Sequence[Span] = (),
) -> Markup:
    """Lengths of time over time, on a logarithmic scale.

    `goal` is a line that should not be crossed; `spans` are times when something was wrong.
    """
    known = [value for line in series for value in line.values if value is not None]
    low, high, ticks = scale.durations([*known, *([] if goal is None else [goal])])
    x = Linear(starts[0], starts[-1] + step, 0, _SIZE)
    y = Log(low, high, _SIZE, 0)
    middles = [x(start + step / 2) for start in starts]
    drawn = [
        *(_span(span, x) for span in spans),
        *(_rule(y(tick.at), "grid") for tick in ticks),
        None if goal is None else _rule(y(goal), "goal"),
        *(_line(middles, [_place(v, y) for v in line.values], line.style) for line in series),
    ]
    names = [_end(line, y) for line in series]
    plot = element(
        "div", _svg(label, *drawn), *names, element("div", class_="cursor"), class_="plot"
    )
    axes = element("div", *(_on_left(tick, y(tick.at)) for tick in ticks), class_="y-axis")
    tips = json.dumps(list(_tips(starts, series)), ensure_ascii=False)
    return element("div", axes, plot, time_axis(starts, step), class_="chart", data_tips=tips)


def area(label: str, values: Sequence[int], most: int) -> Markup:
    """How much over time; `most` is the top of the scale, which charts to be compared share."""
    points = list(_stairs([_SIZE - _SIZE * value / (most or 1) for value in values]))
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    closed = f"0,{_SIZE} {outline} {_SIZE},{_SIZE}"
    return _svg(
        label,
        element("polygon", points=closed, class_="fill"),
        element("polyline", points=outline, class_="line"),
    )


def bars(label: str, values: Sequence[int], most: int) -> Markup:
    """Single events over time. What is not nothing can be seen, however little it is."""
    width = _SIZE / len(values)
    drawn = [
        element(
            "rect",
            x=round(index * width, 1),
            y=round(_SIZE - height, 1),
            width=round(max(width * 0.8, 4), 1),
            height=round(height, 1),
            class_="bar",
        )
        for index, value in enumerate(values)
        if value
        for height in (max(120.0, _SIZE * value / (most or 1)),)
    ]
    return _svg(label, _rule(_SIZE, "grid"), *drawn)


def time_axis(starts: Sequence[int], step: int, most: int = _TICKS) -> Markup:
    x = Linear(starts[0], starts[-1] + step, 0, 100)
    ticks = scale.times(starts[0], starts[-1] + step, most)
    shown = [_below(tick, x(tick.at), index) for index, tick in enumerate(ticks)]
    return element("div", *shown, class_="x-axis", aria_hidden="true")


def _svg(label: str, *drawn: Markup | None) -> Markup:
    return element(
        "svg",
        *drawn,
        viewBox=f"0 0 {_SIZE} {_SIZE}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _rule(y: float, style: str) -> Markup:
    return element("line", x1=0, x2=_SIZE, y1=y, y2=y, class_=style)


def _span(span: Span, x: Linear) -> Markup:
    """Wide enough to be seen, however short it was."""
    start, end = (min(max(x(at), 0), _SIZE) for at in span)
    width = max(end - start, 3)
    return element("rect", x=start, y=0, width=round(width, 1), height=_SIZE, class_="span")


def _place(value: int | None, y: Log) -> float | None:
    return None if value is None else y(value)


def _line(xs: Sequence[float], ys: Sequence[float | None], style: str) -> Markup:
    """Broken where nothing is known."""
    pieces = [
        "M" + "L".join(f"{x},{y}" for x, y in run)
        for known, points in groupby(zip(xs, ys, strict=True), lambda point: point[1] is not None)
        if known
        for run in (list(points),)
    ]
    # A point alone is a line of no length, which round ends make visible.
    path = "".join(f"{piece}h0" if "L" not in piece else piece for piece in pieces)
    return element("path", d=path, class_=f"line {style}")


def _stairs(heights: Sequence[float]) -> Iterator[tuple[float, float]]:
    width = _SIZE / len(heights)
    for index, height in enumerate(heights):
        yield index * width, height
        yield (index + 1) * width, height


def _end(line: Series, y: Log) -> Markup | None:
    """Its name, where the line ends."""
    last = next((value for value in reversed(line.values) if value is not None), None)
    if last is None:
        return None
    return element("span", line.name, class_=f"end {line.style}", style=f"top:{y(last) / 10:.1f}%")


def _on_left(tick: Tick, y: float) -> Markup:
    return element("span", tick.label, style=f"top:{y / 10:.1f}%")


def _below(tick: Tick, x: float, index: int) -> Markup:
    style = "major" if tick.major else "odd" if index % 2 else "even"
    return element("span", tick.label, class_=style, style=f"left:{x:.1f}%")


def _tips(starts: Sequence[int], series: Sequence[Series]) -> Iterator[list[str]]:
    for index, start in enumerate(starts):
        values = (figures.millis(line.values[index]) for line in series)
        yield [figures.moment(start), *values]


def legend(*entries: tuple[str, str]) -> Markup:
    """(style, text) of each thing that is drawn."""
    items = [element("li", element("i", class_=f"key {style}"), text) for style, text in entries]
    return join(element("ul", *items, class_="legend"))
