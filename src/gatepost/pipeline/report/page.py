"""The report as one HTML file that needs nothing else: no network, no fonts, no libraries."""

from collections.abc import Sequence
from importlib import resources

from msgspec import Struct

from gatepost.pipeline.report import charts, figures, graph
from gatepost.pipeline.report.charts import Series
from gatepost.pipeline.report.facts import (
    OTHERS,
    Edge,
    Incident,
    Lane,
    Level,
    Percentiles,
    Report,
    Review,
)
from gatepost.pipeline.report.markup import Child, Markup, element, join

# Nothing but what stands in the file itself may be used, whatever the file says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_FEW = figures.percent(graph.WARN)
_POINTS = ("p50", "p95", "p99")


class Column(Struct, frozen=True):
    name: str
    numeric: bool = False


def page(report: Report) -> str:
    """The whole file."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        element("title", f"Gatepost report, {_period(report)}"),
        element("style", _file("page.css")),
    )
    sections = (
        _levels(report),
        _latency(report),
        _throughput(report),
        _traffic(report),
        _incidents(report),
        _misfires(report),
        _etas(report),
        _audit(report),
    )
    main = element("main", _summary(report), *sections)
    script = element("script", _file("page.js"))
    body = element("body", _header(report), main, _footer(report), script)
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _file(name: str) -> Markup:
    return Markup(resources.files(__package__).joinpath(name).read_text("utf-8"))


def _period(report: Report) -> str:
    return f"{figures.moment(report.first_at)} to {figures.moment(report.last_at)} UTC"


# -- the parts of the page, from top to bottom


def _header(report: Report) -> Markup:
    theme = element("button", "Dark", type="button", id="theme")
    about = (
        f"{_period(report)} · {figures.count(report.events)} events of"
        f" {figures.plural(report.node_count, 'node')}"
    )
    title = element("div", element("h1", "Gatepost report"), element("p", about))
    return element("header", title, theme)


def headline(report: Report) -> list[tuple[str, str]]:
    """(good, bad or none; sentence): what somebody with ten seconds should know."""
    lasting = sum(1 for incident in report.incidents if incident.ended_at is None)
    said = [_objective_sentence(report.total)]
    if report.totals.incidents:
        more = f", {figures.count(lasting)} still going on" if lasting else ", all over"
        said.append(("bad", figures.plural(report.totals.incidents, "incident") + more))
    else:
        said.append(("good", "No incidents"))
    return [*said, audit_verdict(report)]


def _objective_sentence(total: Level) -> tuple[str, str]:
    goal, found = figures.millis(total.objective_ms), figures.millis(total.online_p95)
    if total.is_met is None:
        return "none", "Nothing was accepted, so there is no delivery time to judge"
    if total.is_met:
        return "good", f"Objective met: 95\u202f% accepted within {found}, objective {goal}"
    return "bad", f"Objective missed: 95\u202f% accepted within {found}, objective {goal}"


def audit_verdict(report: Report) -> tuple[str, str]:
    if report.audit is None:
        return "none", "Audit: not run"
    found = sum(report.audit.counts.values())
    when = f"audit of {figures.moment(report.audit.at)} UTC"
    if found:
        return "bad", f"{figures.plural(found, 'broken promise')} ({when})"
    return "good", f"Every promise kept ({when})"


def _summary(report: Report) -> Markup:
    total = report.total
    verdicts = [element("li", _mark(how), text, class_=how) for how, text in headline(report)]
    length = max(1, report.last_at - report.first_at) / 1000
    tiles = (
        ("Deliveries", figures.count(total.sent), figures.rate(total.sent / length)),
        ("Processed", figures.share(total.processed, total.sent), figures.count(total.processed)),
        ("Dead letters", figures.count(total.dead), figures.share(total.dead, total.sent)),
        ("Still open", figures.count(total.open), figures.share(total.open, total.sent)),
        ("To accepted, p95", figures.millis(total.accept.p95), _p99(total.accept)),
        ("To processed, p95", figures.millis(total.process.p95), _p99(total.process)),
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
        id="summary",
    )


def _p99(found: Percentiles) -> str:
    return f"p99 {figures.millis(found.p99)}"


def _levels(report: Report) -> Markup:
    goal = figures.millis(report.total.objective_ms)
    about = (
        f"Of what was sent to a node that was there, 95\u202f% should be accepted within {goal}."
        " “Online” leaves out what waited for a node that was away; “windows” is the share of"
        f" windows of {figures.millis(report.window_ms)} in which that was so."
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
    names = ("online p95", *_POINTS * 2)
    second = [element("th", name, scope="col", class_="number") for name in names]
    head = element("thead", element("tr", *first), element("tr", *second))
    some = sum(level.sent for level in report.nodes) < report.total.sent
    nodes = f"By sending node{f' (the {len(report.nodes)} busiest)' if some else ''}"
    bodies = [
        element("tbody", _level(report.total, "All deliveries"), class_="total"),
        _group("By kind", report.kinds),
        _group(nodes, report.nodes),
    ]
    table = element("table", element("caption", "Service levels"), head, *bodies)
    missed = _missed(report)
    return _section("levels", "Service levels", about, _scroll("Service levels", table), missed)


def _group(name: str, levels: Sequence[Level]) -> Markup:
    title = element("tr", element("th", name, colspan=14, scope="rowgroup"), class_="title")
    return element("tbody", title, *(_level(level, figures.words(level.name)) for level in levels))


def _level(level: Level, name: str) -> Markup:
    verdict = {None: ("none", "no data"), True: ("good", "met"), False: ("bad", "missed")}
    how, said = verdict[level.is_met]
    numbers = (
        figures.share(level.met, level.windows),
        figures.count(level.sent),
        figures.share(level.processed, level.sent),
        figures.count(level.dead),
        figures.share(level.retried, level.sent),
        figures.millis(level.online_p95),
        *(figures.millis(getattr(level.accept, point)) for point in _POINTS),
        *(figures.millis(getattr(level.process, point)) for point in _POINTS),
    )
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", _mark(how), said, class_=f"verdict {how}"),
        *(element("td", number, class_="number") for number in numbers),
    )


def _missed(report: Report) -> Markup | None:
    if not report.missed:
        return None
    columns = (
        Column("Window (UTC)"), Column("Node"), Column("Kind"), Column("Deliveries", True),
        Column("Online p95", True),
    )  # fmt: skip
    rows = [
        (
            figures.moment(m.at), m.node, figures.words(m.kind), figures.count(m.sent),
            figures.millis(m.online_p95),
        )
        for m in report.missed
    ]  # fmt: skip
    count = report.total.windows - report.total.met
    title = f"{figures.plural(count, 'window')} missed the objective"
    title += f": the {len(rows)} worst" if count > len(rows) else ""
    return _details(title, _table("Windows that missed the objective", columns, rows))


def _latency(report: Report) -> Markup:
    shown = [
        _figure(report, "Send → accepted", "accept", "The receiving gateway has it for good."),
        _figure(report, "Send → processed", "process", "The agent’s turn ended, or it replied."),
    ]
    about = (
        f"By when it was sent, in steps of {figures.millis(report.step)}, all nodes together. The"
        " scale is logarithmic. What waited for a node that was away is included."
    )
    return _section("latency", "Latency", about, element("div", *shown, class_="figures"))


def _figure(report: Report, name: str, what: str, about: str) -> Markup:
    points = [getattr(point, what) for point in report.latency]
    series = [
        Series(point, point, [getattr(found, point) for found in points]) for point in _POINTS
    ]
    label = f"{name}: p50, p95 and p99 over time; the table below has the numbers"
    goal = report.total.objective_ms if what == "accept" else None
    spans = [(i.started_at, i.ended_at or report.last_at) for i in report.incidents]
    drawn = charts.latency(label, report.starts, report.step, series, goal=goal, spans=spans)
    keys = [("p50", "p50 (median)"), ("p95", "p95"), ("p99", "p99")]
    keys += [("goal", f"objective for p95, {figures.millis(goal)}")] if goal else []
    legend = charts.legend(*keys, *([("span", "incident")] if spans else []))
    caption = element("figcaption", element("h3", name), element("p", about))
    columns = (Column("From (UTC)"), *(Column(point, True) for point in _POINTS))
    rows = [
        (figures.moment(at), *(figures.millis(getattr(found, point)) for point in _POINTS))
        for at, found in zip(report.starts, points, strict=True)
        if found.p50 is not None
    ]
    numbers = _details("As a table", _table(f"{name} over time", columns, rows))
    return element("figure", caption, legend, drawn, numbers)


def _throughput(report: Report) -> Markup:
    most = max((max(lane.sent) for lane in report.lanes), default=0)
    dead = max((max(lane.dead) for lane in report.lanes), default=0)
    peak = figures.rate(most * 1000 / report.step)
    about = (
        f"What each node sent, and what it gave up on, in steps of {figures.millis(report.step)}."
        f" All nodes have the same scale: the top is {peak}, and"
        f" {figures.plural(dead, 'dead letter')} in one step."
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
        element("tbody", *(_lane(lane, most, dead, report.step) for lane in report.lanes)),
        element("tfoot", foot, aria_hidden="true"),
        class_="lanes",
    )
    return _section("throughput", "Throughput and dead letters", about, table)


def _lane(lane: Lane, most: int, dead: int, step: int) -> Markup:
    sent, lost = sum(lane.sent), sum(lane.dead)
    name = figures.plural(lane.others, "other node") if lane.others else lane.node
    peak = figures.rate(max(lane.sent) * 1000 / step)
    sent_label = f"{name} sent {figures.count(sent)} deliveries, at most {peak}"
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", charts.area(sent_label, lane.sent, most), class_="spark"),
        element("td", figures.count(sent), element("small", f"peak {peak}"), class_="number"),
        element(
            "td", charts.bars(f"{figures.plural(lost, 'dead letter')}", lane.dead, dead),
            class_="spark dead",
        ),
        element("td", figures.count(lost), class_="number"),
    )  # fmt: skip


def _traffic(report: Report) -> Markup:
    traffic = report.traffic
    names = [*traffic.nodes, *([OTHERS] if traffic.merged else [])]
    if not names:
        return _section("traffic", "Traffic", None, _nothing("Nothing was sent."))
    nowhere = sum(edge.sent for edge in traffic.edges if not edge.target)
    notes = [
        f"The {len(names) - 1} busiest nodes; “{OTHERS}” are {figures.count(traffic.merged)} more."
        if traffic.merged
        else "",
        f"{figures.plural(left, 'lesser connection')} not drawn."
        if (left := graph.undrawn(names, traffic.edges))
        else "",
        f"{figures.count(nowhere)} deliveries had nowhere to go." if nowhere else "",
    ]
    legend = charts.legend(
        ("edge fine", f"under {_FEW} of deliveries ended badly"),
        ("edge warn", f"{_FEW} or more"),
        ("edge bad", f"{figures.percent(graph.BAD)} or more"),
        ("dot", "size: traffic; inner disc: it also talks to itself"),
    )
    about = "Who talks to whom: the wider, the more. Point at a node to see only its own."
    between = [edge for edge in traffic.edges if edge.target][:30]
    figure = element(
        "figure",
        legend,
        graph.drawing(names, traffic.edges),
        element("p", " ".join(note for note in notes if note), class_="note"),
        _details("Nodes as a table", _edges("Traffic between nodes", between)),
    )
    pairs = element("div", element("h3", "Busiest agents"), _edges("Agents", traffic.pairs))
    return _section("traffic", "Traffic", about, figure, pairs)


def _edges(caption: str, edges: Sequence[Edge]) -> Markup:
    columns = (
        Column("From"), Column("To"), Column("Deliveries", True), Column("Payload", True),
        Column("Failed", True), Column("Dead", True), Column("Open", True),
        Column("Mean to processed", True),
    )  # fmt: skip
    rows = [
        (
            e.source, e.target, figures.count(e.sent), figures.size(e.bytes),
            figures.count(e.failed), figures.count(e.dead), figures.count(e.open),
            figures.millis(e.process_ms),
        )
        for e in edges
    ]  # fmt: skip
    return _table(caption, columns, rows)


def _incidents(report: Report) -> Markup:
    if not report.incidents:
        return _section("incidents", "Incidents", None, _nothing("Nothing happened worth a look."))
    shown = element("ol", *(_incident(incident) for incident in report.incidents), class_="cards")
    about = "What still goes on comes first, then what concerned most deliveries."
    left = report.totals.incidents - len(report.incidents)
    more = element("p", f"{figures.count(left)} more are in the table incidents.") if left else None
    return _section("incidents", "Incidents", about, shown, more)


def _incident(incident: Incident) -> Markup:
    if incident.ended_at is None:
        lasted = element("strong", "still going on")
    else:
        lasted = Markup(f"lasted {figures.millis(max(0, incident.ended_at - incident.started_at))}")
    where = " · ".join(part for part in (incident.node, incident.agent) if part)
    facts = join(f"since {figures.moment(incident.started_at)} UTC · ", lasted, f" · {where}")
    return element(
        "li",
        element("span", figures.words(incident.class_), class_="tag"),
        element("p", incident.sentence),
        element("p", facts, class_="note"),
        _samples(incident.samples),
    )


def _samples(ids: Sequence[str]) -> Markup | None:
    if not ids:
        return None
    shown = [join(element("code", id), " ") for id in ids]
    return element("p", element("span", "corrIds "), *shown, class_="samples")


def _misfires(report: Report) -> Markup:
    if not report.reviews:
        return _section("reviews", "Misfires", None, _nothing("No capability misfired."))
    columns = (
        Column("Capability"), Column("Misfire"), Column("Requester’s skill"),
        Column("Owner’s skill"), Column("Tasks", True), Column("Of all", True),
        Column("Last (UTC)"), Column("Sample corrId"),
    )  # fmt: skip
    rows = [_misfire(review) for review in report.reviews]
    about = "Tasks that went wrong, by capability and the skill versions on both ends."
    left = report.totals.reviews - len(report.reviews)
    more = element("p", f"{figures.count(left)} more are in the table reviews.") if left else None
    return _section("reviews", "Misfires", about, _table("Misfires", columns, rows), more)


def _misfire(review: Review) -> Sequence[Child]:
    return (
        _versioned(review.capability_id, review.capability_version),
        figures.words(review.class_),
        review.delegation_version or figures.NONE,
        review.executor_version or figures.NONE,
        figures.count(review.count),
        figures.share(review.count, review.tasks),
        figures.moment(review.last_at),
        element("code", review.samples[0]) if review.samples else figures.NONE,
    )


def _etas(report: Report) -> Markup:
    if not report.etas:
        return _section("eta", "ETA advice", None, _nothing("No task was completed."))
    columns = (
        Column("Capability"), Column("Completed", True), Column("p50", True), Column("p95", True),
        Column("Promised (median)", True), Column("Kept", True), Column("Advice", True),
    )  # fmt: skip
    rows = [
        (
            _versioned(eta.capability_id, eta.capability_version), figures.count(eta.completed),
            figures.seconds(eta.p50), figures.seconds(eta.p95), figures.seconds(eta.promised),
            figures.percent(eta.kept_rate), element("strong", f"{eta.recommended}\u202fs"),
        )
        for eta in report.etas
    ]  # fmt: skip
    about = "A defaultEtaSeconds that would have been kept 95\u202f% of the time."
    return _section("eta", "ETA advice", about, _table("ETA advice", columns, rows))


def _versioned(name: str | None, version: str | None) -> Markup:
    return join(name or figures.NONE, element("small", f" {version}") if version else None)


def _audit(report: Report) -> Markup:
    how, said = audit_verdict(report)
    verdict = element("p", _mark(how), said, class_=f"verdict {how}")
    if report.audit is None:
        advice = element("p", "Run ", element("code", "gatepost pipeline audit"), " to have one.")
        return _section("audit", "Audit", None, verdict, advice)
    if not report.audit.counts:
        return _section("audit", "Audit", None, verdict)
    columns = (Column("Node"), Column("Seq", True), Column("Promise"), Column("What was found"))
    rows = [
        (
            found.node or figures.NONE, figures.NONE if found.seq is None else found.seq,
            join(found.sentence, element("small", f" {found.rule}")), found.detail or "",
        )
        for found in report.audit.samples
    ]  # fmt: skip
    left = sum(report.audit.counts.values()) - len(rows)
    more = (
        element("p", f"{figures.count(left)} more are in the table violations.") if left else None
    )
    return _section("audit", "Audit", None, verdict, _table("Broken promises", columns, rows), more)


def _footer(report: Report) -> Markup:
    said = join(
        f"Made {figures.moment(report.made_at)} UTC by gatepost {report.version}, with ",
        element("code", "gatepost pipeline report"),
        ", from the tables in ",
        element("code", report.tables),
        f" (batch {report.batch}). Counts are sums of the tables; percentiles are rounded up"
        " to three digits. Times are UTC, by the clocks of the nodes.",
    )
    return element("footer", element("p", said))


# -- what all sections are made of


def _section(id: str, title: str, about: str | None, *content: Markup | None) -> Markup:
    said = element("p", about, class_="about") if about else None
    return element("section", element("h2", title), said, *content, id=id)


def _nothing(said: str) -> Markup:
    return element("p", _mark("good"), said, class_="verdict good")


def _mark(how: str) -> Markup:
    sign = {"good": "✓", "bad": "✕", "none": "○"}[how]
    return element("span", sign, class_="mark", aria_hidden="true")


def _details(title: str, content: Markup) -> Markup:
    return element("details", element("summary", title), content)


def _scroll(label: str, table: Markup) -> Markup:
    """What is wider than the screen is moved by itself; the keyboard reaches it too."""
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def _table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Child]]) -> Markup:
    kinds = ["number" if column.numeric else None for column in columns]
    head = [
        element("th", column.name, scope="col", class_=kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    body = [
        element("tr", *(element("td", cell, class_=k) for cell, k in zip(row, kinds, strict=True)))
        for row in rows
    ]
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return _scroll(caption, table)
