"""The report for a terminal: rows for tables, and charts one line high."""

from collections.abc import Sequence

from gatepost.pipeline.report.formatting import (
    format_millis,
    format_rate,
    format_share,
    format_timestamp,
    spell_out,
)
from gatepost.pipeline.report.model import PipelineReport, ReportIncident, ServiceLevel

LEVEL_COLUMNS = (
    *("", "Deliveries", "Processed", "Dead", "Accepted p95", "Processed p95"),
    *("Online p95", "Objective"),
)
INCIDENT_COLUMNS = ("Incident", "Since (UTC)", "What happened", "Sample corrId")

_BAR_CHARACTERS = "▁▂▃▄▅▆▇█"
_MAX_INCIDENTS = 5


def level_rows(report: PipelineReport) -> list[tuple[str | int, ...]]:
    return [_level_row(level) for level in (report.total, *report.kinds)]


def _level_row(level: ServiceLevel) -> tuple[str | int, ...]:
    verdict = {None: "no data", True: "met", False: "missed"}[level.is_met]
    return (
        spell_out(level.name),
        level.sent,
        plain_spaces(format_share(level.processed, level.sent)),
        level.dead,
        plain_spaces(format_millis(level.accept.p95)),
        plain_spaces(format_millis(level.process.p95)),
        plain_spaces(format_millis(level.online_p95)),
        plain_spaces(f"{verdict} ({format_millis(level.objective_ms)})"),
    )


def plain_spaces(text: str) -> str:
    """Replace narrow no-break spaces, which terminals and `grep` do not treat as spaces."""
    return text.replace("\u202f", " ")


def trend_lines(report: PipelineReport, width: int = 60) -> list[str]:
    """Throughput and p95 over the period, one line each."""
    sent = [sum(lane.sent[index] for lane in report.lanes) for index in range(len(report.starts))]
    late = [point.accept.p95 for point in report.latency]
    peak = format_rate(max(sent, default=0) * 1000 / report.step)
    slowest = max((value for value in late if value is not None), default=None)
    longest = plain_spaces(format_millis(slowest))
    return [
        f"throughput    {draw_sparkline(sent, width)}  peak {peak}",
        f"accepted p95  {draw_sparkline(late, width)}  at most {longest}",
    ]


def draw_sparkline(values: Sequence[int | None], width: int) -> str:
    """A chart of at most `width` characters: the maximum of each step.

    A step without values is blank; a step with zeros only has the lowest bar.
    """
    size = max(1, -(-len(values) // width))
    groups = [values[index : index + size] for index in range(0, len(values), size)]
    tops = [max((v for v in group if v is not None), default=None) for group in groups]
    most = max((top for top in tops if top is not None), default=0) or 1
    return "".join(" " if top is None else _bar_character(top / most) for top in tops)


def _bar_character(share: float) -> str:
    return _BAR_CHARACTERS[min(len(_BAR_CHARACTERS) - 1, int(share * len(_BAR_CHARACTERS)))]


def incident_rows(report: PipelineReport) -> list[tuple[str, ...]]:
    return [_incident_row(incident) for incident in report.incidents[:_MAX_INCIDENTS]]


def _incident_row(incident: ReportIncident) -> tuple[str, ...]:
    sample = incident.samples[0] if incident.samples else ""
    started = format_timestamp(incident.started_at)
    return spell_out(incident.class_), started, incident.sentence, sample
