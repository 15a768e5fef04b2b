"""The report as one HTML file that needs nothing else: no network, no fonts, no libraries."""

from collections.abc import Sequence
from importlib import resources

from gatepost.ledger import TERMS, Ledger, Term
from gatepost.pipeline.audit.rules import SENTENCES
from gatepost.pipeline.report import charts, terms, traffic_graph
from gatepost.pipeline.report.charts import ChartSeries
from gatepost.pipeline.report.formatting import (
    NO_VALUE,
    format_bytes,
    format_count,
    format_millis,
    format_percent,
    format_plural,
    format_rate,
    format_seconds,
    format_share,
    format_step_start,
    format_timestamp,
    spell_out,
)
from gatepost.pipeline.report.html_elements import (
    data_table,
    details_block,
    empty_note,
    number_columns,
    page_section,
    scroll_region,
    text_columns,
    verdict_mark,
)
from gatepost.pipeline.report.markup import Child, Markup, element, join_markup
from gatepost.pipeline.report.model import (
    OTHERS,
    LatencyPercentiles,
    NodeThroughput,
    PipelineReport,
    ReportIncident,
    ReportReview,
    ServiceLevel,
    TrafficEdge,
)

# The browser loads nothing from outside the file, even if table content asks for it.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)
_WARN_PERCENT = format_percent(traffic_graph.WARN_SHARE)
_PERCENTILE_NAMES = ("p50", "p95", "p99")


def render_page(report: PipelineReport) -> str:
    """The whole HTML file."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_CONTENT_SECURITY_POLICY}">'),
        element("title", f"Gatepost report, {_period_text(report)}"),
        element("style", _read_resource("page.css")),
    )
    sections = (
        _service_level_section(report),
        _latency_section(report),
        _throughput_section(report),
        _unfinished_section(report),
        _traffic_section(report),
        _incident_section(report),
        _misfire_section(report),
        _eta_section(report),
        _audit_section(report),
        terms.terms_section(),
    )
    main = element("main", _summary_section(report), *sections)
    script = element("script", _read_resource("page.js"))
    body = element("body", _page_header(report), main, _page_footer(report), script)
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _read_resource(name: str) -> Markup:
    return Markup(resources.files(__package__).joinpath(name).read_text("utf-8"))


def _period_text(report: PipelineReport) -> str:
    return f"{format_timestamp(report.first_at)} to {format_timestamp(report.last_at)} UTC"


# -- sections of the page, from top to bottom


def _page_header(report: PipelineReport) -> Markup:
    theme = element("button", "Dark", type="button", id="theme")
    about = (
        f"{_period_text(report)} · {format_count(report.events)} events of"
        f" {format_plural(report.node_count, 'node')}"
    )
    title = element("div", element("h1", "Gatepost report"), element("p", about))
    return element("header", title, theme)


def headline_verdicts(report: PipelineReport) -> list[tuple[str, str]]:
    """The verdicts at the top of the page, each as (good, bad or none; sentence)."""
    ongoing = sum(1 for incident in report.incidents if incident.ended_at is None)
    verdicts = [_objective_verdict(report.total)]
    if report.totals.incidents:
        more = f", {format_count(ongoing)} still going on" if ongoing else ", all over"
        verdicts.append(("bad", describe_incidents(report, more)))
    else:
        verdicts.append(("good", describe_incidents(report)))
    return [*verdicts, audit_verdict(report)]


def describe_incidents(report: PipelineReport, state: str = "") -> str:
    """The incidents of the period that the report covers, and of all that the tables know.

    `state` says more of the former.
    """
    totals = report.totals
    found = format_plural(totals.incidents, "incident") if totals.incidents else "No incidents"
    text = f"{found} in the last {_days_text(min(report.days, report.incident_days))}{state}"
    if report.days < report.incident_days and totals.all_incidents > totals.incidents:
        before = _days_text(report.incident_days)
        text += f"; {format_count(totals.all_incidents)} in the last {before}"
    return text


def _days_text(days: int) -> str:
    return "day" if days == 1 else f"{days} days"


def _objective_verdict(total: ServiceLevel) -> tuple[str, str]:
    goal, found = format_millis(total.objective_ms), format_millis(total.online_p95)
    if total.is_met is None:
        return "none", "No delivery was accepted, so there is no delivery time to judge"
    if total.is_met:
        return "good", f"Objective met: 95\u202f% accepted within {found}, objective {goal}"
    return "bad", f"Objective missed: 95\u202f% accepted within {found}, objective {goal}"


def audit_verdict(report: PipelineReport) -> tuple[str, str]:
    if report.audit is None:
        return "none", "Audit: not run"
    found = sum(report.audit.counts.values())
    when = f"audit of {format_timestamp(report.audit.at)} UTC"
    if report.is_audit_outdated:
        when += ", which is older than the latest events: audit them again"
    if found:
        return "bad", f"{format_plural(found, 'broken promise')} ({when})"
    if report.audit.unjudged:
        reasons = format_plural(report.audit.unjudged, "reason")
        return "none", f"The audit could not judge every node, for {reasons} ({when})"
    return "none" if report.is_audit_outdated else "good", f"Every promise kept ({when})"


def _summary_section(report: PipelineReport) -> Markup:
    total, ledger = report.total, report.ledger
    verdicts = [
        element("li", verdict_mark(verdict), text, class_=verdict)
        for verdict, text in headline_verdicts(report)
    ]
    length = max(1, report.last_at - report.first_at) / 1000
    tiles = (
        ("Sent", format_count(ledger.sent), format_rate(ledger.sent / length)),
        *(_ledger_tile(ledger, term) for term in TERMS),
        ("To accepted, p95", format_millis(total.accept.p95), _p99_text(total.accept)),
        ("To processed, p95", format_millis(total.process.p95), _p99_text(total.process)),
    )
    shown = [
        element(
            "div", element("dt", name), element("dd", value), element("dd", more, class_="more")
        )
        for name, value, more in tiles
    ]
    return element(
        "section",
        element("h2", "Summary", class_="unseen"),
        element("ul", *verdicts, class_="verdicts"),
        element("dl", *shown, class_="tiles"),
        element("p", element("a", "What the terms mean", href="#terms"), class_="note"),
        id="summary",
    )


def _ledger_tile(ledger: Ledger, term: Term) -> tuple[str, str, str]:
    number: int = getattr(ledger, term)
    return spell_out(term).capitalize(), format_count(number), format_share(number, ledger.sent)


def _p99_text(found: LatencyPercentiles) -> str:
    return f"p99 {format_millis(found.p99)}"


def _service_level_section(report: PipelineReport) -> Markup:
    goal = format_millis(report.total.objective_ms)
    about = (
        f"95\u202f% of the deliveries to a node that is online should be accepted within {goal}."
        " “Online p95” leaves out deliveries that waited for a node that was away; “Windows” is the"
        f" share of windows of {format_millis(report.window_ms)} that met the objective."
    )
    first = [
        element("td", "", rowspan=2),
        element("th", "Objective", rowspan=2, scope="col"),
        *(
            element("th", name, rowspan=2, scope="col", class_="number")
            for name in ("Windows", "Deliveries", "Processed", "Dead", "Retried")
        ),
        element("th", "Send → accepted", colspan=4, scope="colgroup", class_="group"),
        element("th", "Send → processed", colspan=3, scope="colgroup", class_="group"),
    ]
    names = ("online p95", *_PERCENTILE_NAMES * 2)
    second = [element("th", name, scope="col", class_="number") for name in names]
    head = element("thead", element("tr", *first), element("tr", *second))
    has_more = sum(level.sent for level in report.nodes) < report.total.sent
    nodes = f"By sending node{f' (the {len(report.nodes)} busiest)' if has_more else ''}"
    bodies = [
        element("tbody", _level_row(report.total, "All deliveries"), class_="total"),
        _level_group("By kind", report.kinds),
        _level_group(nodes, report.nodes),
    ]
    table = element("table", element("caption", "Service levels"), head, *bodies)
    missed = _missed_windows(report)
    return page_section(
        "levels", "Service levels", about, scroll_region("Service levels", table), missed
    )


def _level_group(name: str, levels: Sequence[ServiceLevel]) -> Markup:
    title = element("tr", element("th", name, colspan=14, scope="rowgroup"), class_="title")
    return element("tbody", title, *(_level_row(level, spell_out(level.name)) for level in levels))


def _level_row(level: ServiceLevel, name: str) -> Markup:
    verdicts = {None: ("none", "no data"), True: ("good", "met"), False: ("bad", "missed")}
    verdict, text = verdicts[level.is_met]
    numbers = (
        format_share(level.met, level.windows),
        format_count(level.sent),
        format_share(level.processed, level.sent),
        format_count(level.dead),
        format_share(level.retried, level.sent),
        format_millis(level.online_p95),
        *(format_millis(getattr(level.accept, point)) for point in _PERCENTILE_NAMES),
        *(format_millis(getattr(level.process, point)) for point in _PERCENTILE_NAMES),
    )
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", verdict_mark(verdict), text, class_=f"verdict {verdict}"),
        *(element("td", number, class_="number") for number in numbers),
    )


def _missed_windows(report: PipelineReport) -> Markup | None:
    if not report.missed:
        return None
    columns = [
        *text_columns("Window (UTC)", "Node", "Kind"),
        *number_columns("Deliveries", "Online p95"),
    ]
    rows = [
        (
            format_timestamp(m.at), m.node, spell_out(m.kind), format_count(m.sent),
            format_millis(m.online_p95),
        )
        for m in report.missed
    ]  # fmt: skip
    count = report.total.windows - report.total.met
    title = f"{format_plural(count, 'window')} missed the objective"
    title += f": the {len(rows)} worst" if count > len(rows) else ""
    return details_block(title, data_table("Windows that missed the objective", columns, rows))


def _latency_section(report: PipelineReport) -> Markup:
    shown = [
        _latency_figure(
            report, "Send → accepted", "accept", "The receiving gateway has stored the message."
        ),
        _latency_figure(
            report,
            "Send → processed",
            "process",
            "The turn of the agent has ended, or the agent has replied.",
        ),
    ]
    about = (
        f"All deliveries by time of sending, in steps of {format_millis(report.step)}. The scale is"
        " logarithmic. Deliveries that waited for a node that was away are included."
    )
    return page_section("latency", "Latency", about, element("div", *shown, class_="figures"))


def _latency_figure(report: PipelineReport, name: str, measure: str, about: str) -> Markup:
    points = [getattr(point, measure) for point in report.latency]
    series = [
        ChartSeries(point, point, [getattr(found, point) for found in points])
        for point in _PERCENTILE_NAMES
    ]
    label = f"{name}: p50, p95 and p99 over time; the table below has the numbers"
    goal = report.total.objective_ms if measure == "accept" else None
    spans = [(i.started_at, i.ended_at or report.last_at) for i in report.incidents]
    drawn = charts.latency_chart(label, report.starts, report.step, series, goal=goal, spans=spans)
    keys = [("p50", "p50 (median)"), ("p95", "p95"), ("p99", "p99")]
    keys += [("goal", f"objective for p95, {format_millis(goal)}")] if goal else []
    legend = charts.chart_legend(*keys, *([("span", "incident")] if spans else []))
    caption = element("figcaption", element("h3", name), element("p", about))
    columns = [*text_columns("From (UTC)"), *number_columns(*_PERCENTILE_NAMES)]
    rows = [
        (
            format_step_start(at, report.step),
            *(format_millis(getattr(found, point)) for point in _PERCENTILE_NAMES),
        )
        for at, found in zip(report.starts, points, strict=True)
        if found.p50 is not None
    ]
    numbers = details_block("As a table", data_table(f"{name} over time", columns, rows))
    return element("figure", caption, legend, drawn, numbers)


def _throughput_section(report: PipelineReport) -> Markup:
    most = max((max(lane.sent) for lane in report.lanes), default=0)
    dead = max((max(lane.dead) for lane in report.lanes), default=0)
    peak = format_rate(most * 1000 / report.step)
    about = (
        f"Deliveries and dead letters of each sending node, in steps of"
        f" {format_millis(report.step)}. All nodes share one scale: the top is {peak}, and"
        f" {format_plural(dead, 'dead letter')} in one step."
    )
    head = element(
        "tr",
        element("th", "Node", scope="col"),
        element("th", "Deliveries sent", scope="col", colspan=2),
        element("th", "Dead letters", scope="col", colspan=2),
    )
    axis = charts.time_axis(report.starts, report.step, 5)
    foot = element(
        "tr", element("td"), element("td", axis), element("td"), element("td", axis), element("td")
    )
    table = element(
        "table",
        element("caption", "Throughput and dead letters by node"),
        Markup("<colgroup><col class=name><col><col class=sum><col><col class=sum></colgroup>"),
        element("thead", head),
        element(
            "tbody", *(_throughput_row(lane, most, dead, report.step) for lane in report.lanes)
        ),
        element("tfoot", foot, aria_hidden="true"),
        class_="lanes",
    )
    numbers = details_block("As a table", _throughput_table(report))
    return page_section("throughput", "Throughput and dead letters", about, table, numbers)


def _throughput_table(report: PipelineReport) -> Markup:
    """Deliveries by step and node, with dead letters beside them."""
    names = [
        format_plural(lane.others, "other node") if lane.others else lane.node
        for lane in report.lanes
    ]
    rows = [
        (
            format_step_start(at, report.step),
            *(_throughput_cell(lane.sent[step], lane.dead[step]) for lane in report.lanes),
        )
        for step, at in enumerate(report.starts)
        if any(lane.sent[step] or lane.dead[step] for lane in report.lanes)
    ]
    columns = [*text_columns("From (UTC)"), *number_columns(*names)]
    return data_table("Deliveries sent over time, by node", columns, rows)


def _throughput_cell(sent: int, dead: int) -> Child:
    return format_count(sent) + (f" ({format_count(dead)} dead)" if dead else "")


def _throughput_row(lane: NodeThroughput, most: int, dead: int, step: int) -> Markup:
    sent, lost = sum(lane.sent), sum(lane.dead)
    name = format_plural(lane.others, "other node") if lane.others else lane.node
    peak = format_rate(max(lane.sent) * 1000 / step)
    sent_label = f"{name} sent {format_count(sent)} deliveries, at most {peak}"
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", charts.area_chart(sent_label, lane.sent, most), class_="spark"),
        element("td", format_count(sent), element("small", f"peak {peak}"), class_="number"),
        element(
            "td", charts.bar_chart(f"{format_plural(lost, 'dead letter')}", lane.dead, dead),
            class_="spark dead",
        ),
        element("td", format_count(lost), class_="number"),
    )  # fmt: skip


def _unfinished_section(report: PipelineReport) -> Markup:
    """The agents and reasons of dead letters, and of deliveries that are still open."""
    total = report.total
    if not report.unfinished:
        note = empty_note("Every delivery has ended, and none as a dead letter.")
        return page_section("unfinished", "Dead letters and open deliveries", None, note)
    about = (
        f"{format_plural(total.dead, 'delivery', 'deliveries')} became dead letters, and"
        f" {format_count(total.open)} have not ended yet. The most frequent, by agents and reason:"
    )
    columns = [
        *text_columns("State", "From", "To", "Node", "Reason"),
        *number_columns("Deliveries"),
    ]
    names = {"dead": "dead letter", "open": "still open"}
    rows = [
        (names[u.state], u.from_agent, u.to_agent, u.to_node or NO_VALUE, u.reason,
         format_count(u.count))
        for u in report.unfinished
    ]  # fmt: skip
    table = data_table("Dead letters and open deliveries", columns, rows)
    return page_section("unfinished", "Dead letters and open deliveries", about, table)


def _traffic_section(report: PipelineReport) -> Markup:
    traffic = report.traffic
    names = [*traffic.nodes, *([OTHERS] if traffic.merged else [])]
    if not names:
        return page_section("traffic", "Traffic", None, empty_note("Nothing was sent."))
    nowhere = sum(edge.sent for edge in traffic.edges if not edge.target)
    notes = [
        f"The {len(names) - 1} busiest nodes; “{OTHERS}” stands for"
        f" {format_count(traffic.merged)} more."
        if traffic.merged
        else "",
        f"{format_plural(left, 'less busy connection')} not drawn."
        if (left := traffic_graph.undrawn_edges(names, traffic.edges))
        else "",
        f"{format_count(nowhere)} deliveries had no route." if nowhere else "",
    ]
    legend = charts.chart_legend(
        ("edge fine", f"under {_WARN_PERCENT} of deliveries ended badly"),
        ("edge warn", f"{_WARN_PERCENT} or more"),
        ("edge bad", f"{format_percent(traffic_graph.BAD_SHARE)} or more"),
        ("dot", "size: traffic; inner disc: deliveries within the node"),
    )
    about = "Deliveries between nodes: a wider curve stands for more. Point at a node for its own."
    between = [edge for edge in traffic.edges if edge.target][:30]
    figure = element(
        "figure",
        legend,
        traffic_graph.draw_graph(names, traffic.edges),
        element("p", " ".join(note for note in notes if note), class_="note"),
        details_block("Nodes as a table", _edge_table("Traffic between nodes", between)),
    )
    pairs = element("div", element("h3", "Busiest agents"), _edge_table("Agents", traffic.pairs))
    return page_section("traffic", "Traffic", about, figure, pairs)


def _edge_table(caption: str, edges: Sequence[TrafficEdge]) -> Markup:
    columns = [
        *text_columns("From", "To"),
        *number_columns("Deliveries", "Payload", "Dead", "Open", "Mean to processed"),
    ]
    rows = [
        (
            e.source, e.target, format_count(e.sent), format_bytes(e.bytes),
            format_count(e.dead), format_count(e.open),
            format_millis(e.process_ms),
        )
        for e in edges
    ]  # fmt: skip
    return data_table(caption, columns, rows)


def _incident_section(report: PipelineReport) -> Markup:
    if not report.incidents:
        return page_section(
            "incidents", "Incidents", None, empty_note(f"{describe_incidents(report)}.")
        )
    shown = element(
        "ol", *(_incident_card(incident) for incident in report.incidents), class_="cards"
    )
    about = "Incidents that still go on come first, then those with the most deliveries."
    left = report.totals.incidents - len(report.incidents)
    more = element("p", f"{format_count(left)} more are in the table incidents.") if left else None
    return page_section("incidents", "Incidents", about, shown, more)


def _incident_card(incident: ReportIncident) -> Markup:
    if incident.ended_at is None:
        lasted = element("strong", "still going on")
    else:
        lasted = Markup(f"lasted {format_millis(max(0, incident.ended_at - incident.started_at))}")
    where = " · ".join(part for part in (incident.node, incident.agent) if part)
    facts = join_markup(
        f"since {format_timestamp(incident.started_at)} UTC · ", lasted, f" · {where}"
    )
    return element(
        "li",
        element("span", spell_out(incident.class_), class_="tag"),
        element("p", incident.sentence),
        element("p", facts, class_="note"),
        _sample_ids(incident.samples),
    )


def _sample_ids(ids: Sequence[str]) -> Markup | None:
    if not ids:
        return None
    shown = [join_markup(element("code", id), " ") for id in ids]
    return element("p", element("span", "corrIds "), *shown, class_="samples")


def _misfire_section(report: PipelineReport) -> Markup:
    if not report.reviews:
        return page_section("reviews", "Misfires", None, empty_note("No capability misfired."))
    columns = [
        *text_columns("Capability", "Misfire", "Requester’s skill", "Owner’s skill"),
        *number_columns("Tasks", "Of all"),
        *text_columns("Last (UTC)", "Sample corrId"),
    ]
    rows = [_misfire_row(review) for review in report.reviews]
    about = "Tasks that went wrong, by capability and the skill versions of requester and owner."
    left = report.totals.reviews - len(report.reviews)
    more = element("p", f"{format_count(left)} more are in the table reviews.") if left else None
    return page_section("reviews", "Misfires", about, data_table("Misfires", columns, rows), more)


def _misfire_row(review: ReportReview) -> Sequence[Child]:
    return (
        _capability_cell(review.capability_id, review.capability_version),
        spell_out(review.class_),
        review.delegation_version or NO_VALUE,
        review.executor_version or NO_VALUE,
        format_count(review.count),
        format_share(review.count, review.tasks),
        format_timestamp(review.last_at),
        element("code", review.samples[0]) if review.samples else NO_VALUE,
    )


def _eta_section(report: PipelineReport) -> Markup:
    if not report.etas:
        return page_section("eta", "ETA advice", None, empty_note("No task was completed."))
    columns = [
        *text_columns("Capability"),
        *number_columns("Completed", "p50", "p95", "Promised (median)", "Kept", "Advice"),
    ]
    rows = [
        (
            _capability_cell(eta.capability_id, eta.capability_version),
            format_count(eta.completed),
            format_seconds(eta.p50), format_seconds(eta.p95), format_seconds(eta.promised),
            format_percent(eta.kept_rate), element("strong", f"{eta.recommended}\u202fs"),
        )
        for eta in report.etas
    ]  # fmt: skip
    about = "The advice is a defaultEtaSeconds that 95\u202f% of the tasks would have kept."
    return page_section("eta", "ETA advice", about, data_table("ETA advice", columns, rows))


def _capability_cell(name: str | None, version: str | None) -> Markup:
    return join_markup(name or NO_VALUE, element("small", f" {version}") if version else None)


def _audit_section(report: PipelineReport) -> Markup:
    verdict, text = audit_verdict(report)
    sentence = element("p", verdict_mark(verdict), text, class_=f"verdict {verdict}")
    if report.audit is None:
        advice = element(
            "p", "Run ", element("code", "gatepost pipeline audit"), " to check every event."
        )
        return page_section("audit", "Audit", None, sentence, advice)
    if not report.audit.samples:
        return page_section("audit", "Audit", None, sentence)
    columns = [
        *text_columns("Node"),
        *number_columns("Seq"),
        *text_columns("Promise", "What was found"),
    ]
    rows = [
        (
            found.node or NO_VALUE, NO_VALUE if found.seq is None else found.seq,
            join_markup(found.sentence, element("small", f" {found.rule}")), found.detail or "",
        )
        for found in report.audit.samples
    ]  # fmt: skip
    left = sum(report.audit.counts.values()) + report.audit.unjudged - len(rows)
    more = element("p", f"{format_count(left)} more are in the table violations.") if left else None
    counts = [(SENTENCES[rule], rule, count) for rule, count in report.audit.counts.items()]
    by_rule = data_table(
        "Broken promises by rule, causes first",
        [*text_columns("Promise", "Rule"), *number_columns("Broken")],
        counts,
    )
    return page_section(
        "audit",
        "Audit",
        None,
        sentence,
        by_rule if counts else None,
        data_table("What the audit found", columns, rows),
        more,
    )


def _page_footer(report: PipelineReport) -> Markup:
    text = join_markup(
        f"Made {format_timestamp(report.made_at)} UTC by gatepost {report.version}, with ",
        element("code", "gatepost pipeline report"),
        ", from the tables in ",
        element("code", report.tables),
        f" (batch {report.batch}). Counts are sums of the tables; percentiles are rounded up"
        " to three digits. Times are UTC, by the clocks of the nodes.",
    )
    return element("footer", element("p", text))
