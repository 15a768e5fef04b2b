"""The report shows the tables' own numbers, stays small, and needs nothing but itself."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from gatepost.errors import PipelineError
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.jobs.pipeline import update_tables
from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.report import (
    aggregation,
    axis_scale,
    charts,
    formatting,
    terminal_summary,
    traffic_graph,
)
from gatepost.pipeline.report.gatherer import choose_step, gather_report
from gatepost.pipeline.report.html_page import audit_verdict, describe_incidents, render_page
from gatepost.pipeline.report.markup import Markup, element
from gatepost.pipeline.report.model import (
    OTHERS,
    PipelineReport,
    ReportIncident,
    RowTotals,
    TrafficEdge,
    TrafficSummary,
)
from gatepost.pipeline.small_tables import read_rows
from gatepost.pipeline.synth import SynthOptions
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.transport import LocalTransport
from gatepost.testing import ManualClock
from tests.pipeline import reckoning
from tests.pipeline.planted_faults import PlantedTruth, generate_planted
from tests.pipeline.table_rows import write_known_rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = Path("/usr/bin/chromium")
FAULTS = ("dead_letter_burst", "routing_miss", "terminal_error", "doubled_turn")
MADE_AT = 1_772_600_000_000
HOUR = 3_600_000
DROPPED = ("dead_letter", "expired")


class Made(NamedTuple):
    truth: PlantedTruth
    archive: str
    tables: str
    report: PipelineReport


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report over tables that the real jobs made."""
    folder = tmp_path_factory.mktemp("report")
    archive, tables = str(folder / "archive"), str(folder / "tables")
    truth = generate_planted(archive, SynthOptions(events=3000, nodes=3), FAULTS)
    update_tables(LocalTransport(), archive, tables)
    audit_archive(LocalTransport(), archive, tables)
    return Made(
        truth, archive, tables, gather_report(LocalTransport(), tables, clock=ManualClock(MADE_AT))
    )


# -- numbers


def test_counts_are_the_truth(made: Made) -> None:
    report, totals = made.report, made.truth.totals
    sent = {level.name: level.sent for level in report.kinds}
    assert report.events == made.truth.events
    assert (sent["message"], sent["reply"]) == (totals.messages, totals.replies)
    assert sent["task_create"] == totals.tasks
    dropped = {e["ref_id"] for e in reckoning.events(made.archive) if e["outcome"] in DROPPED}
    assert dropped
    assert report.total.dead == totals.dead_letters + len(dropped)
    assert report.total.sent == sum(sent.values()) == sum(node.sent for node in report.nodes)


def test_percentiles_are_those_of_the_deliveries(made: Made) -> None:
    rows = [row for row in read_rows(made.tables, schemas.DELIVERIES) if row["kind"] == "message"]
    took = sorted(row["accepted_at"] - row["sent_at"] for row in rows if row["accepted_at"])
    (level,) = (level for level in made.report.kinds if level.name == "message")
    expected = [
        reckoning.three_digits(took[math.ceil(point * len(took)) - 1])
        for point in (0.5, 0.95, 0.99)
    ]
    assert [level.accept.p50, level.accept.p95, level.accept.p99] == expected
    online = [ms for ms in took if ms <= 60_000]
    p95 = online[math.ceil(0.95 * len(online)) - 1]
    assert level.online_p95 == reckoning.three_digits(p95)


def test_charts_add_up_to_the_totals(made: Made) -> None:
    report = made.report
    assert sum(sum(lane.sent) for lane in report.lanes) == report.total.sent
    assert sum(sum(lane.dead) for lane in report.lanes) == report.total.dead
    assert sum(edge.sent for edge in report.traffic.edges) == report.total.sent
    assert len(report.latency) == len(report.starts) <= 120
    assert report.starts[0] <= report.first_at < report.last_at < report.starts[-1] + report.step


def test_windows_are_judged_as_the_table_judges_them(made: Made, spark: SparkSession) -> None:
    slo = TableFolder(made.tables).read(spark, schemas.SLO)
    judged = {row.met: row["count"] for row in slo.groupBy("met").count().collect()}
    assert made.report.total.met == judged[True]
    assert made.report.total.windows == judged[True] + judged.get(False, 0)


def test_what_was_planted_is_reported(made: Made) -> None:
    classes = {incident.class_ for incident in made.report.incidents}
    assert {"dead_letter_burst", "routing_miss"} <= classes
    assert all(incident.samples for incident in made.report.incidents)
    assert "failing" in {review.capability_id for review in made.report.reviews}
    assert made.report.audit is not None
    assert made.report.audit.counts == {"doubled_turn": 1}
    (found,) = made.report.audit.samples
    assert (found.rule, found.sentence) == ("doubled_turn", "One event completes at most one turn.")


def test_what_is_rounded_up_to_its_objective_has_met_it(made: Made) -> None:
    level = replace(made.report.total, online_p95=5000, objective_ms=5000)
    assert level.is_met
    assert not replace(level, online_p95=5010).is_met


def test_dead_letters_have_their_agents_and_reasons(made: Made) -> None:
    found = made.report.unfinished
    dead = [each for each in found if each.state == "dead"]
    # The most frequent reasons are shown, so a few dead letters are left out.
    assert len(dead) == aggregation.TOP_ROWS
    assert 0.9 < sum(each.count for each in dead) / made.report.total.dead <= 1
    assert {each.reason for each in dead} & {"expired", "no_route", "failed 4 times"}
    assert all(each.from_agent and each.to_agent for each in dead)
    still_open = [each for each in found if each.state == "open"]
    assert sum(each.count for each in still_open) <= made.report.total.open
    html = render_page(made.report)
    assert "Dead letters and open deliveries" in html
    assert f"<td>{dead[0].reason}</td>" in html


def test_an_audit_that_is_older_than_the_events_is_marked(made: Made) -> None:
    audit = made.report.audit
    assert audit is not None and not made.report.is_audit_outdated
    clean = replace(audit, counts={}, samples=[])
    assert audit_verdict(replace(made.report, audit=clean))[0] == "good"
    old = replace(made.report, audit=replace(clean, at=made.report.last_at - 1))
    verdict, text = audit_verdict(old)
    assert (verdict, "older than the latest events" in text) == ("none", True)


def test_every_term_is_explained_once(made: Made) -> None:
    html = render_page(made.report)
    for term in ("Delivery", "Dead letter", "Online p95", "Processed"):
        assert html.count(f"<dt>{term}</dt>") == (2 if term == "Processed" else 1)


def test_every_chart_has_its_table(made: Made, wide: PipelineReport) -> None:
    for report in (made.report, wide):
        html = render_page(report)
        for id in ("latency", "throughput", "traffic"):
            section = html[html.index(f'id="{id}"') :]
            section = section[: section.index("</section>")]
            assert ("<details><summary>" in section and "As a table" in section) or id == "traffic"
            assert section.count("<tbody>") > (id == "throughput")


def test_without_tables_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="gatepost pipeline run"):
        gather_report(LocalTransport(), str(tmp_path))


# -- size


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> PipelineReport:
    """Of more nodes than can be drawn."""
    root = tmp_path_factory.mktemp("wide")
    nodes = [f"n{number:02}" for number in range(40)]
    hour = 500_000
    at = hour * HOUR
    base = {"hour": hour, "sent_at": at, "window_start": at, "kind": "message"}
    named = [base | {"node": node, "sent": 100 - rank} for rank, node in enumerate(nodes)]
    zero = dict.fromkeys(("processed", "dead", "retried", "open", "bytes"), 0)
    judged = {"met": True, "objective_ms": 5000}
    seen = {"batch": 1, "events": 5, "first_at": at, "last_at": at + HOUR}
    write_known_rows(root, schemas.ACTIVITY, [row | seen for row in named])
    write_known_rows(root, schemas.SLO, [row | zero | judged for row in named])
    ids = [row | {"event_id": bytes(16), "accepted_at": at + 7} for row in named]
    write_known_rows(root, schemas.DELIVERIES, ids)
    ends = [row | zero | {"to_node": nodes[0]} for row in named]
    write_known_rows(root, schemas.TRAFFIC, ends)
    BatchLedger(str(root)).begin_batch({})
    return gather_report(LocalTransport(), str(root), clock=ManualClock(MADE_AT))


def test_of_many_nodes_the_busiest_are_shown_and_the_others_together(wide: PipelineReport) -> None:
    assert wide.node_count == 40
    assert [level.name for level in wide.nodes] == [f"n{n:02}" for n in range(30)]
    assert [lane.node for lane in wide.lanes] == [*(f"n{n:02}" for n in range(11)), OTHERS]
    assert wide.lanes[-1].others == 29
    assert sum(sum(lane.sent) for lane in wide.lanes) == wide.total.sent == sum(range(61, 101))
    assert (len(wide.traffic.nodes), wide.traffic.merged) == (29, 11)
    (others,) = (edge for edge in wide.traffic.edges if edge.source == OTHERS)
    assert others.sent == sum(range(61, 72))
    assert wide.audit is None
    assert "29 other nodes" in render_page(wide)
    assert "Audit: not run" in render_page(wide)


@pytest.mark.parametrize("days", [0.001, 0.4, 1, 7, 30, 365, 5000])
def test_however_long_the_period_there_are_few_points(days: float) -> None:
    length = int(days * 24 * HOUR)
    step = choose_step(length)
    assert step % (300_000 if length >= HOUR else 1000) == 0
    assert length // step + 2 <= 121


@pytest.mark.parametrize(
    ("seconds", "step"), [(16, 1), (119, 1), (300, 5), (1500, 15), (3599, 60), (3600, 300)]
)
def test_a_short_period_has_short_steps(seconds: int, step: int) -> None:
    assert choose_step(seconds * 1000) == step * 1000


# -- parts of the page


def test_text_is_escaped_wherever_it_comes_from(made: Made) -> None:
    evil = "<img src=x onerror=alert(1)>"
    incident = ReportIncident('"', evil, evil, evil, 0, None, 1, [evil], evil)
    html = render_page(replace(made.report, incidents=[incident], totals=RowTotals(1, 0, 0, 1)))
    assert evil not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert element("p", "a < b", title='"') == '<p title="&quot;">a &lt; b</p>'
    assert element("p", Markup("<b>ok</b>"), None, hidden=None) == "<p><b>ok</b></p>"


def test_a_line_is_broken_where_nothing_is_known() -> None:
    series = charts.ChartSeries("p50", "p50", [10, None, 20, 30])
    drawn = charts.latency_chart("x", [0, 1000, 2000, 3000], 1000, [series])
    (path,) = (part for part in drawn.split("<path ")[1:])
    assert path.count("M") == 2
    assert "h0" in path


def test_dead_letters_can_be_seen_however_few() -> None:
    drawn = charts.bar_chart("x", [0, 1, 10_000], 10_000)
    heights = [float(part.split('"')[0]) for part in drawn.split('height="')[1:]]
    assert heights == [120.0, 1000.0]


def test_nodes_that_talk_most_stand_side_by_side() -> None:
    edges = [TrafficEdge(a, b, n, 0, 0, 0, None) for a, b, n in (("a", "c", 9), ("c", "b", 5))]
    assert traffic_graph.arrange_nodes(["a", "b", "c"], edges) == ["a", "c", "b"]


def test_connections_are_graded_by_what_ended_badly() -> None:
    edges = [TrafficEdge("a", "b", 100, 0, dead, 0, 5.0) for dead in (2, 5, 20)]
    assert [traffic_graph.grade_share(traffic_graph.failure_share(edge)) for edge in edges] == [
        "fine",
        "warn",
        "bad",
    ]
    drawn = traffic_graph.draw_graph(["a", "b"], edges)
    assert drawn.count("<polygon") == 3
    assert (
        traffic_graph.describe_edge(edges[1])
        == "a → b: 100 deliveries, 5\u202f% ended badly, 5\u202fms on average"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 ms"), (340, "340 ms"), (1200, "1.2 s"), (60_000, "1 min"), (5_400_000, "1.5 h")],
)
def test_lengths_of_time(value: int, shown: str) -> None:
    assert formatting.format_millis(value).replace("\u202f", " ") == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [(0, 5, "0 %"), (1, 10**6, "< 0.01 %"), (999_999, 10**6, "> 99.99 %"), (1, 3, "33.3 %")],
)
def test_what_is_not_nothing_never_reads_as_nothing(part: int, whole: int, shown: str) -> None:
    assert formatting.format_share(part, whole).replace("\u202f", " ") == shown


def test_axes_are_round_and_hold_all_values() -> None:
    low, high, ticks = axis_scale.duration_axis([7, 3000])
    assert (low, high) == (5, 5000)
    assert len(ticks) <= 7
    assert ticks[-1].at == high
    hours = axis_scale.time_ticks(23 * HOUR, 30 * HOUR, 10)
    assert [tick.label for tick in hours[:2]] == ["23:00", "2 Jan"]
    assert [tick.major for tick in hours[:2]] == [False, True]


def test_a_sparkline_keeps_peaks_and_gaps() -> None:
    assert terminal_summary.draw_sparkline([0, 1, None, 8], 10) == "▁▂ █"
    assert terminal_summary.draw_sparkline([0, 8, 0, 0, None, None], 3) == "█▁ "
    assert terminal_summary.draw_sparkline([0, 0], 5) == "▁▁"


def test_incidents_are_counted_for_the_period_that_is_named(made: Made) -> None:
    report, count = made.report, len(made.report.incidents)
    assert describe_incidents(report) == f"{count} incidents in the last 30 days"
    day = replace(report, days=1, incidents=[], totals=RowTotals(0, 0, 0, count))
    text = f"No incidents in the last day; {count} in the last 30 days"
    assert describe_incidents(day) == text
    assert text in render_page(day)
    assert (
        describe_incidents(replace(day, totals=RowTotals(0, 0, 0, 0)))
        == "No incidents in the last day"
    )
    year = replace(report, days=365)
    assert describe_incidents(year) == f"{count} incidents in the last 30 days", (
        "tables know no older ones"
    )


def test_a_short_report_knows_of_the_incidents_before(made: Made, tmp_path: Path) -> None:
    tables = str(tmp_path / "tables")
    shutil.copytree(made.tables, tables)
    rows = [row | {"ended_at": 5} for row in read_rows(made.tables, schemas.INCIDENTS)]
    folder = f"{tables}/{schemas.INCIDENTS.name}"
    shutil.rmtree(folder)
    write_known_rows(Path(tables), schemas.INCIDENTS, rows)
    totals = gather_report(LocalTransport(), tables, days=1).totals
    assert (totals.incidents, totals.all_incidents) == (0, len(rows))


def test_the_terminal_says_the_same(made: Made) -> None:
    total, *kinds = terminal_summary.level_rows(made.report)
    assert (total[1], total[3]) == (made.report.total.sent, made.report.total.dead)
    assert total[-1] == "met (5 s)"
    assert [row[0] for row in kinds][:2] == ["message", "reply"]
    throughput, late = terminal_summary.trend_lines(made.report)
    assert throughput.startswith("throughput ") and "peak" in throughput
    assert late.startswith("accepted p95 ")
    assert len(terminal_summary.incident_rows(made.report)) <= 5


# -- in a browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    # Imported late: every worker collects this file, and one opens the page.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        with playwright.chromium.launch(executable_path=CHROMIUM, args=arguments) as browser:
            yield browser


@pytest.fixture(scope="module")
def file(made: Made, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(made.report), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [1280, 400])
def test_it_opens_without_a_network_and_without_errors(
    browser: "Browser", file: str, width: int
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900})
    requests: list[str] = []
    problems: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(file)
    tab.locator(".plot").first.hover()
    assert tab.locator("#tip").is_visible()
    tab.locator(".node").first.hover()
    assert requests == [file]
    assert problems == []
    # Nothing but tables, each in its own frame, is wider than the screen.
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.close()


def test_both_themes_are_drawn_and_can_be_changed(browser: "Browser", file: str) -> None:
    def colours(script: str = "getComputedStyle(document.body)") -> tuple[str, str]:
        found: list[str] = tab.evaluate(f"(s => [s.color, s.backgroundColor])({script})")
        return found[0], found[1]

    tab = browser.new_page(color_scheme="light")
    tab.goto(file)
    light = colours()
    tab.locator("#theme").click()
    dark = colours()
    assert len({*light, *dark}) == 4
    tab.close()
    tab = browser.new_page(color_scheme="dark")
    tab.goto(file)
    assert colours() == dark
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    tab.close()


def test_the_numbers_on_screen_are_the_tables(browser: "Browser", file: str, made: Made) -> None:
    tab = browser.new_page()
    tab.goto(file)
    tiles = dict(
        zip(
            tab.locator(".tiles dt").all_inner_texts(),
            tab.locator(".tiles dd:not(.more)").all_inner_texts(),
            strict=True,
        )
    )
    total, ledger = made.report.total, made.report.ledger
    assert tiles["Sent"] == formatting.format_count(ledger.sent)
    assert tiles["Dead letters"] == formatting.format_count(ledger.dead_letters)
    assert tiles["To accepted, p95"] == formatting.format_millis(total.accept.p95)
    cells = tab.locator("#levels tbody.total td").all_inner_texts()
    assert "met" in cells[0]
    assert cells[2:5] == [
        formatting.format_count(total.sent),
        formatting.format_share(total.processed, total.sent),
        formatting.format_count(total.dead),
    ]
    assert tab.locator(".cards li").count() == len(made.report.incidents)
    # One broken rule with its count, and one sample of it.
    assert tab.locator("#audit tbody tr").count() == 2
    assert tab.locator("svg:not([aria-label])").count() == 0
    tab.close()


def test_text_stands_out_from_its_ground(browser: "Browser", file: str) -> None:
    """At least 4.5 to 1, as WCAG AA asks, for every colour text has, in both themes."""
    for scheme in ("light", "dark"):
        tab = browser.new_page(color_scheme="light" if scheme == "light" else "dark")
        tab.goto(file)
        for selector in ("body", ".about", ".verdicts li", ".tag", ".total td", ".tiles dt"):
            ratio = tab.evaluate(_CONTRAST, selector)
            assert ratio >= 4.5, (scheme, selector, ratio)
        tab.close()


_CONTRAST = """selector => {
  const light = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = node => {
    const colour = getComputedStyle(node).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? ground(node.parentElement) : colour;
  };
  const node = document.querySelector(selector);
  const pair = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => b - a);
  return (pair[0] + 0.05) / (pair[1] + 0.05);
}"""


def test_a_report_is_a_document_too(made: Made) -> None:
    again = msgspec.json.decode(msgspec.json.encode(made.report), type=PipelineReport)
    assert again == made.report
    assert (
        render_page(replace(again, traffic=TrafficSummary([], 0, [], []))).count(
            "Nothing was sent."
        )
        == 1
    )
