"""The report in a few lines: rows for a table, and charts one line high."""

from collections.abc import Sequence

from gatepost.pipeline.report import figures
from gatepost.pipeline.report.facts import Incident, Level, Report

LEVEL_COLUMNS = (
    *("", "Deliveries", "Processed", "Dead", "Accepted p95", "Processed p95"),
    *("Online p95", "Objective"),
)
INCIDENT_COLUMNS = ("Incident", "Since (UTC)", "What happened", "Sample corrId")

_BARS = "▁▂▃▄▅▆▇█"
_INCIDENTS = 5


def level_rows(report: Report) -> list[tuple[str | int, ...]]:
    return [_row(level) for level in (report.total, *report.kinds)]


def _row(level: Level) -> tuple[str | int, ...]:
    verdict = {None: "no data", True: "met", False: "missed"}[level.is_met]
    return (
        figures.words(level.name),
        level.sent,
        plain(figures.share(level.processed, level.sent)),
        level.dead,
        plain(figures.millis(level.accept.p95)),
        plain(figures.millis(level.process.p95)),
        plain(figures.millis(level.online_p95)),
        plain(f"{verdict} ({figures.millis(level.objective_ms)})"),
    )


def plain(text: str) -> str:
    """With spaces that every terminal, and every `grep`, takes for spaces."""
    return text.replace("\u202f", " ")


def trends(report: Report, width: int = 60) -> list[str]:
    """Throughput and p95, from the first to the last moment of the period."""
    sent = [sum(lane.sent[index] for lane in report.lanes) for index in range(len(report.starts))]
    late = [point.accept.p95 for point in report.latency]
    peak = figures.rate(max(sent, default=0) * 1000 / report.step)
    slowest = max((value for value in late if value is not None), default=None)
    return [
        f"throughput    {sparkline(sent, width)}  peak {peak}",
        f"accepted p95  {sparkline(late, width)}  at most {plain(figures.millis(slowest))}",
    ]


def sparkline(values: Sequence[int | None], width: int) -> str:
    """The highest of each step; a blank where nothing is known, the lowest bar for nothing."""
    size = max(1, -(-len(values) // width))
    groups = [values[index : index + size] for index in range(0, len(values), size)]
    tops = [max((v for v in group if v is not None), default=None) for group in groups]
    most = max((top for top in tops if top is not None), default=0) or 1
    return "".join(" " if top is None else _bar(top / most) for top in tops)


def _bar(share: float) -> str:
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]


def incident_rows(report: Report) -> list[tuple[str, ...]]:
    return [_incident(incident) for incident in report.incidents[:_INCIDENTS]]


def _incident(incident: Incident) -> tuple[str, ...]:
    sample = incident.samples[0] if incident.samples else ""
    started = figures.moment(incident.started_at)
    return figures.words(incident.class_), started, incident.sentence, sample
