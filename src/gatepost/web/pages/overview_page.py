"""The overview: the ledger first, then what needs a person, the mesh, objectives, the latest."""

import asyncio
from collections.abc import Sequence

from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import NOTHING, Child, Markup, join, tag
from gatepost.web.layout import (
    Frame,
    action_link,
    command_text,
    empty,
    link,
    panel,
)
from gatepost.web.mesh_drawing import MAX_DRAWN, draw_mesh
from gatepost.web.objective_figures import Objective, read_objectives
from gatepost.web.page_data import BoxLetter, MeshView, read_dead_letters, read_mesh
from gatepost.web.pages.message_pages import message_table
from gatepost.web.pages.task_pages import task_table
from gatepost.web.words import (
    ALL_TERMS,
    TERM_TONES,
    Tone,
    ago,
    chip,
    count_of,
    dot,
    node_tone,
    term_name,
)
from gatepost.wire.hub_views import TaskList
from gatepost.wire.overview_views import BrokenPromise, Need, NeedList, RoomLedger, SentPage


class _OverviewCalls:
    """All calls of the page, begun at once."""

    def __init__(self, calls: ApiCalls) -> None:
        begin = asyncio.ensure_future
        self.ledger = begin(calls.get("/v1/ledger", RoomLedger))
        self.needs = begin(calls.get("/v1/needs", NeedList))
        self.mesh = begin(read_mesh(calls))
        self.sent = begin(calls.get("/v1/messages", SentPage, limit=8))
        self.letters = begin(read_dead_letters(calls, 5))
        self.tasks = begin(calls.get("/api/hub/tasks", TaskList, limit=5))
        self.objectives = begin(read_objectives(calls))


async def overview_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    asked = _OverviewCalls(calls)
    ledger, needs, mesh = await asyncio.gather(asked.ledger, asked.needs, asked.mesh)
    sent, letters, tasks = await asyncio.gather(asked.sent, asked.letters, asked.tasks)
    objectives = await asked.objectives
    return "Overview", [
        ledger_panel(frame, ledger),
        needs_panel(frame, needs),
        mesh_panel(frame, mesh),
        objectives_panel(objectives),
        panel(
            "messages",
            "Messages",
            message_table(sent.messages, frame.now),
            live="messages",
            aside=link("/messages", "All messages"),
            size="wide",
        ),
        panel(
            "tasks",
            "Tasks",
            task_table(tasks.tasks, frame.now),
            live="tasks",
            aside=link("/tasks", "All tasks"),
            size="narrow",
        ),
        dead_letters_panel(frame, letters),
    ]


_TONES: dict[str, Tone] = {str(term): tone for term, tone in TERM_TONES.items()}

# -- the ledger


def ledger_panel(frame: Frame, room: RoomLedger) -> Markup:
    """The equation, whether it is proved, and the evidence where it is not."""
    broken = {each.term for each in room.broken}
    title = "Every message is accounted for" if not room.broken else "The ledger does not add up"
    terms: list[Child] = [_term(frame, "sent", "", room.ledger.sent, is_broken=False)]
    for place, term in enumerate(ALL_TERMS):
        terms.append(tag("span", {"class": "op", "aria-hidden": "true"}, "=" if not place else "+"))
        number = getattr(room.ledger, term)
        terms.append(_term(frame, term_name(term), term, number, is_broken=term in broken))
    return tag(
        "section",
        {"class": "panel ledger", "id": "ledger", "aria-label": "Ledger", "data-live": "ledger"},
        tag("div", {"class": "say"}, tag("h1", None, title), _proof_words(room)),
        _ledger_bar(room),
        tag("div", {"class": "eq"}, *terms),
        _broken_list(room.broken),
        _nodes_of_ledger(room, frame.now),
    )


def _proof_words(room: RoomLedger) -> Markup:
    known = len(room.nodes) - len(room.unknown)
    outboxes = f"{known} of {len(room.nodes):,} outbox{'' if len(room.nodes) == 1 else 'es'}"
    if room.broken:
        return chip("dead", f"{count_of(len(room.broken), 'promise')} broken · {outboxes}")
    if room.unknown:
        return chip("wait", f"{', '.join(room.unknown[:3])} unknown · {outboxes}")
    return chip("ok", f"added up just now · {outboxes}")


def _term(frame: Frame, name: str, term: str, number: int, *, is_broken: bool) -> Markup:
    style = "term broken" if is_broken else "term"
    tone = _TONES.get(term)
    key = NOTHING if tone is None else tag("i", {"class": f"key {tone}", "aria-hidden": "true"})
    path = f"/messages?term={term}" if term else "/messages"
    return tag(
        "a",
        {"class": style, "href": path, "id": f"term-{term or 'sent'}"},
        key,
        tag("b", None, f"{number:,}"),
        " ",
        name,
    )


def _ledger_bar(room: RoomLedger) -> Markup:
    """The terms as shares of a line; even one message is seen."""
    counts = [(term, getattr(room.ledger, term)) for term in ALL_TERMS]
    total = sum(number for _, number in counts)
    words = ", ".join(f"{number:,} {term_name(term)}" for term, number in counts)
    view = {"class": "bar", "viewBox": "0 0 1000 14", "preserveAspectRatio": "none", "role": "img"}
    parts, left = [], 0.0
    least = sum(12 for _, number in counts if number)
    for term, number in counts:
        if number:
            width = 12 + (1000 - least) * number / total
            parts.append(
                tag(
                    "rect",
                    {
                        "x": round(left, 1),
                        "width": round(max(2, width - 3), 1),
                        "height": 14,
                        "class": TERM_TONES[term],
                    },
                )
            )
            left += width
    return tag("svg", {**view, "aria-label": words}, join(parts))


def _broken_list(broken: Sequence[BrokenPromise]) -> Markup:
    if not broken:
        return NOTHING
    items = (
        tag(
            "li",
            None,
            dot("dead"),
            tag(
                "div",
                None,
                tag("b", None, f"{term_name(each.term)}: {each.promise}"),
                tag("div", {"class": "dim"}, each.evidence),
            ),
            command_text(each.command),
        )
        for each in broken
    )
    return tag("ul", {"class": "broken-list"}, join(items))


def _nodes_of_ledger(room: RoomLedger, now: int) -> Markup:
    rows = []
    for each in room.nodes:
        counts = str(each.ledger) if each.ledger is not None else "not known"
        what: Child = ago(each.at, now) if each.at is not None else ""
        problem = tag("span", {"class": "why"}, f" · {each.problem}") if each.problem else NOTHING
        rows += [
            tag("dt", {"class": "mono"}, each.node),
            tag("dd", None, counts, " · ", what, problem),
        ]
    return tag(
        "details",
        {"class": "proof", "id": "proof", "open": bool(room.unknown)},
        tag("summary", None, "Show the counts of each gateway"),
        tag("dl", {"class": "facts"}, *rows),
    )


# -- needs you


def needs_panel(frame: Frame, found: NeedList) -> Markup:
    if not found.needs:
        content = empty("Nothing needs you.")
    else:
        content = tag("ul", {"class": "needs-list"}, join(_need(frame, n) for n in found.needs[:7]))
    total = len(found.needs) + found.more
    badge = tag("span", {"class": "count dead"}, str(total)) if total else None
    more = link("/needs", f"All {total}") if total > 7 else None
    return panel(
        "needs",
        "Needs you",
        content,
        live="ledger messages nodes tasks",
        aside=join([badge, " ", more]),
        size="narrow needs",
    )


def _need(frame: Frame, need: Need) -> Markup:
    action: Child = None
    words: list[Child] = [need.text]
    if need.detail:
        words.append(tag("span", {"class": "why"}, need.detail))
    if need.action.path:
        action = action_link(frame, "need", need.action.label, {"id": need.id})
    elif need.kind == "node" and need.subject:
        action = action_link(frame, "reroute", "Re-route…", {})
    else:
        words.append(command_text(need.action.command))
    sign = dot("dead" if need.urgency <= 2 else "wait")
    return tag("li", None, sign, tag("div", {"class": "two"}, *words), action)


async def needs_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    found = await calls.get("/v1/needs", NeedList)
    items = join(_need(frame, need) for need in found.needs)
    content = tag("ul", {"class": "needs-list"}, items) if found.needs else empty("Nothing.")
    more = f"{found.more} more" if found.more else None
    return "Needs you", [panel("needs", "Needs you", content, aside=more, live="messages nodes")]


# -- mesh, objectives, dead letters


def mesh_panel(frame: Frame, view: MeshView) -> Markup:
    term = "" if view.mesh.term is None else f", term {view.mesh.term.counter}"
    aside = tag("span", {"class": "legend"}, f"♛ publisher: {view.publisher or 'none'}{term}")
    if view.nodes is None:
        content = empty("This gateway is alone. Another machine joins with ", "gatepost invite")
    else:
        drawing = draw_mesh(view.nodes.nodes, view.publisher)
        left_out = len(view.nodes.nodes) - MAX_DRAWN
        more = (
            tag("p", {"class": "dim"}, link("/mesh", f"and {left_out} more"))
            if left_out > 0
            else NOTHING
        )
        content = join([drawing, node_cards(view), more])
    return panel("mesh", "Mesh", content, live="nodes room", aside=aside, size="wide mesh")


def node_cards(view: MeshView) -> Markup:
    """What the map shows, as lines, for narrow screens."""
    nodes = [] if view.nodes is None else view.nodes.nodes
    rows = []
    for node in nodes[:MAX_DRAWN]:
        tone = node_tone(node.status)
        waiting = f"{node.peer.waiting:,} wait" if node.peer and node.peer.waiting else ""
        crown = "♛ " if node.id == view.publisher else ""
        rows.append(
            tag(
                "li",
                None,
                dot(tone),
                tag(
                    "div",
                    None,
                    tag("b", None, f"{crown}{node.id}"),
                    tag("span", {"class": "why"}, node.state),
                ),
                tag("span", None, waiting),
            )
        )
    return tag("ul", {"class": "needs-list cards"}, join(rows))


def objectives_panel(found: Sequence[Objective]) -> Markup:
    rows = (
        tag(
            "li",
            None,
            tag("div", None, tag("div", None, each.name), tag("div", {"class": "dim"}, each.goal)),
            each.drawing(),
            tag("div", {"class": "v"}, each.sign, " ", each.value, tag("small", None, each.note)),
        )
        for each in found
    )
    return panel(
        "objectives",
        "Objectives",
        tag("ul", {"class": "slos"}, join(rows)),
        live="ledger",
        aside=link("/objectives", "How they are measured"),
        size="narrow",
    )


def dead_letters_panel(frame: Frame, letters: Sequence[BoxLetter]) -> Markup:
    from gatepost.web.pages.dead_letter_page import letter_table

    none = "No dead letter of this gateway waits for a decision."
    content = letter_table(frame, letters) if letters else empty(none)
    return panel(
        "dlq",
        "Dead letters",
        content,
        live="messages",
        size="full",
        aside=link("/dead-letters", "All dead letters"),
    )
