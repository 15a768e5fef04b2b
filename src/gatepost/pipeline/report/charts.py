"""Charts as inline SVG without text, so that they stretch to any width; labels are HTML.

Lines keep their thickness when the drawing is stretched. The page shows a table of the same
numbers below each chart, for readers who cannot see it.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from gatepost.pipeline.report import axis_scale
from gatepost.pipeline.report.axis_scale import AxisTick, LinearScale, LogScale
from gatepost.pipeline.report.formatting import (
    format_millis,
    format_step_start,
)
from gatepost.pipeline.report.markup import Markup, element, join_markup

SeriesValues = Sequence[int | None]

_SIZE = 1000
_MAX_TICKS = 10


class ChartSeries(Struct, frozen=True):
    """One line of a chart; `style` is the CSS class that gives it its colour."""

    name: str
    style: str
    values: SeriesValues


TimeSpan = tuple[int, int]


def latency_chart(
    label: str,
    starts: Sequence[int],
    step: int,
    series: Sequence[ChartSeries],
    *,
    goal: int | None = None,
    spans: Sequence[TimeSpan] = (),
) -> Markup:
    """Draw durations over time, on a logarithmic scale.

    `goal` draws a line that the values should stay below; `spans` shades the times of incidents.
    """
    known = [value for line in series for value in line.values if value is not None]
    low, high, ticks = axis_scale.duration_axis([*known, *([] if goal is None else [goal])])
    x = LinearScale(starts[0], starts[-1] + step, 0, _SIZE)
    y = LogScale(low, high, _SIZE, 0)
    middles = [x(start + step / 2) for start in starts]
    drawn = [
        *(_span_rectangle(span, x) for span in spans),
        *(_horizontal_rule(y(tick.at), "grid") for tick in ticks),
        None if goal is None else _horizontal_rule(y(goal), "goal"),
        *(
            _line_path(middles, [_y_or_none(v, y) for v in line.values], line.style)
            for line in series
        ),
    ]
    names = [_line_name(line, y) for line in series]
    plot = element(
        "div", _svg_drawing(label, *drawn), *names, element("div", class_="cursor"), class_="plot"
    )
    axes = element("div", *(_y_tick_label(tick, y(tick.at)) for tick in ticks), class_="y-axis")
    tips = json.dumps(list(_hover_tips(starts, step, series)), ensure_ascii=False)
    return element("div", axes, plot, time_axis(starts, step), class_="chart", data_tips=tips)


def area_chart(label: str, values: Sequence[int], most: int) -> Markup:
    """Draw an amount over time; `most` is the top of the scale, so that charts can share one."""
    points = list(_stair_points([_SIZE - _SIZE * value / (most or 1) for value in values]))
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    closed = f"0,{_SIZE} {outline} {_SIZE},{_SIZE}"
    return _svg_drawing(
        label,
        element("polygon", points=closed, class_="fill"),
        element("polyline", points=outline, class_="line"),
    )


def bar_chart(label: str, values: Sequence[int], most: int) -> Markup:
    """Draw a count over time. Every count above zero gets a visible bar, however small it is."""
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
    return _svg_drawing(label, _horizontal_rule(_SIZE, "grid"), *drawn)


def time_axis(starts: Sequence[int], step: int, most: int = _MAX_TICKS) -> Markup:
    """Label the time below a chart, with at most `most` ticks."""
    x = LinearScale(starts[0], starts[-1] + step, 0, 100)
    ticks = axis_scale.time_ticks(starts[0], starts[-1] + step, most)
    shown = [_x_tick_label(tick, x(tick.at), index) for index, tick in enumerate(ticks)]
    return element("div", *shown, class_="x-axis", aria_hidden="true")


def _svg_drawing(label: str, *drawn: Markup | None) -> Markup:
    return element(
        "svg",
        *drawn,
        viewBox=f"0 0 {_SIZE} {_SIZE}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _horizontal_rule(y: float, style: str) -> Markup:
    return element("line", x1=0, x2=_SIZE, y1=y, y2=y, class_=style)


def _span_rectangle(span: TimeSpan, x: LinearScale) -> Markup:
    """Shade a span of time, wide enough to be visible however short it was."""
    start, end = (min(max(x(at), 0), _SIZE) for at in span)
    width = max(end - start, 3)
    return element("rect", x=start, y=0, width=round(width, 1), height=_SIZE, class_="span")


def _y_or_none(value: int | None, y: LogScale) -> float | None:
    return None if value is None else y(value)


def _line_path(xs: Sequence[float], ys: Sequence[float | None], style: str) -> Markup:
    """Draw a line that is interrupted where values are unknown."""
    pieces = [
        "M" + "L".join(f"{x},{y}" for x, y in run)
        for known, points in groupby(zip(xs, ys, strict=True), lambda point: point[1] is not None)
        if known
        for run in (list(points),)
    ]
    # An isolated point becomes a line of length zero; round line ends make it visible.
    path = "".join(f"{piece}h0" if "L" not in piece else piece for piece in pieces)
    return element("path", d=path, class_=f"line {style}")


def _stair_points(heights: Sequence[float]) -> Iterator[tuple[float, float]]:
    width = _SIZE / len(heights)
    for index, height in enumerate(heights):
        yield index * width, height
        yield (index + 1) * width, height


def _line_name(line: ChartSeries, y: LogScale) -> Markup | None:
    """Place the name of a line where the line ends."""
    last = next((value for value in reversed(line.values) if value is not None), None)
    if last is None:
        return None
    return element("span", line.name, class_=f"end {line.style}", style=f"top:{y(last) / 10:.1f}%")


def _y_tick_label(tick: AxisTick, y: float) -> Markup:
    return element("span", tick.label, style=f"top:{y / 10:.1f}%")


def _x_tick_label(tick: AxisTick, x: float, index: int) -> Markup:
    style = "major" if tick.major else "odd" if index % 2 else "even"
    return element("span", tick.label, class_=style, style=f"left:{x:.1f}%")


def _hover_tips(
    starts: Sequence[int], step: int, series: Sequence[ChartSeries]
) -> Iterator[list[str]]:
    for index, start in enumerate(starts):
        values = (format_millis(line.values[index]) for line in series)
        yield [format_step_start(start, step), *values]


def chart_legend(*entries: tuple[str, str]) -> Markup:
    """Explain the styles of a chart; each entry is (style, text)."""
    items = [element("li", element("i", class_=f"key {style}"), text) for style, text in entries]
    return join_markup(element("ul", *items, class_="legend"))
