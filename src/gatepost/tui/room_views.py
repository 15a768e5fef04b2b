"""Views of the room: what needs a person, gateways, incidents."""

from typing import ClassVar

from gatepost.display_text import format_age, format_time
from gatepost.errors import Conflict
from gatepost.tui.actions import Action, do_what_is_needed, resolve_incident
from gatepost.tui.operator_api import OperatorApi
from gatepost.tui.row_filter import RowFilter
from gatepost.tui.table_view import MAX_ROWS, Column, Fact, TableView
from gatepost.wire.overview_views import Need, NeedList, Topic
from gatepost.wire.report_views import IncidentPage, IncidentView
from gatepost.wire.room_views import NodeList, NodeView
from gatepost.wire.view_texts import describe_waiting

_URGENCIES = ("now", "now", "soon", "decide", "advice")
_URGENCY_STYLES = ("bold red", "red", "yellow", "", "dim")


class NeedsView(TableView[Need]):
    name = "needs"
    summary = "what needs a person, most urgent first"
    topics: ClassVar[frozenset[Topic]] = frozenset(("messages", "tasks", "ledger", "room", "nodes"))
    columns = (
        Column("Urgency", 7),
        Column("Since", 8),
        Column("What"),
        Column("Detail", is_wide=True),
        Column("Action", 12),
    )
    empty = "nothing needs you"

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[Need]:
        return (await api.get("/v1/needs", NeedList)).needs

    def key(self, item: Need) -> str:
        return item.id

    def cells(self, item: Need, now_ms: int) -> tuple[str, ...]:
        since = "" if item.since is None else format_age(item.since, now_ms)
        urgency = _URGENCIES[min(item.urgency, len(_URGENCIES) - 1)]
        return urgency, since, item.text, item.detail, item.action.label

    def style(self, item: Need) -> str:
        return _URGENCY_STYLES[min(item.urgency, len(_URGENCY_STYLES) - 1)]

    async def describe(self, api: OperatorApi, item: Need, now_ms: int) -> list[Fact]:
        since = "" if item.since is None else format_time(item.since)
        return [
            ("what", item.text),
            ("detail", item.detail),
            ("since", since),
            ("action", item.action.label),
            ("command", item.action.command),
        ]

    def actions(self, item: Need) -> tuple[Action, ...]:
        return (do_what_is_needed(item),)


class NodesView(TableView[NodeView]):
    name = "nodes"
    summary = "the gateways of the room, and what waits for them"
    topics: ClassVar[frozenset[Topic]] = frozenset(("nodes", "room"))
    columns = (
        Column("Node", 18),
        Column("Tier", 8, is_wide=True),
        Column("State"),
        Column("Waiting for it", 22),
        Column("Because", 30, is_wide=True),
    )
    empty = "no nodes yet: this gateway is in no room"

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[NodeView]:
        try:
            return (await api.get("/v1/room/nodes", NodeList)).nodes
        except Conflict:
            return []

    def key(self, item: NodeView) -> str:
        return item.id

    def cells(self, item: NodeView, now_ms: int) -> tuple[str, ...]:
        waiting = "" if item.peer is None else describe_waiting(item.peer, now_ms)
        why = "" if item.peer is None else item.peer.why
        state = item.state or item.status
        return item.id, item.tier, state, waiting, why

    def style(self, item: NodeView) -> str:
        if item.status == "offline":
            return "red"
        return "yellow" if item.status == "degraded" or _has_problem(item) else ""

    async def describe(self, api: OperatorApi, item: NodeView, now_ms: int) -> list[Fact]:
        facts = await super().describe(api, item, now_ms)
        heartbeat = item.last_heartbeat_at
        return [
            *facts,
            ("Problem", "" if item.peer is None else item.peer.problem),
            ("Address", item.endpoint or ""),
            ("Key", item.fingerprint),
            ("Added by", item.added_by),
            ("Heartbeat", format_time(heartbeat) if heartbeat else ""),
        ]


def _has_problem(node: NodeView) -> bool:
    return node.peer is not None and bool(node.peer.problem)


class IncidentsView(TableView[IncidentView]):
    name = "incidents"
    summary = "what a person should know, newest first"
    topics: ClassVar[frozenset[Topic]] = frozenset(("messages", "room", "ledger"))
    columns = (
        Column("Class", 18),
        Column("Raised", 8),
        Column("Status", 9),
        Column("Subject"),
        Column("Detail", is_wide=True),
    )
    empty = "no incidents"

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[IncidentView]:
        page = await api.get("/v1/incidents", IncidentPage, limit=MAX_ROWS)
        return page.incidents

    def key(self, item: IncidentView) -> str:
        return item.id

    def cells(self, item: IncidentView, now_ms: int) -> tuple[str, ...]:
        status = "over" if item.status == "open" and item.ended_at is not None else item.status
        return item.class_, format_age(item.raised_at, now_ms), status, item.subject, item.detail

    def style(self, item: IncidentView) -> str:
        return "dim" if item.status != "open" or item.ended_at is not None else ""

    async def describe(self, api: OperatorApi, item: IncidentView, now_ms: int) -> list[Fact]:
        return [
            ("incident", item.id),
            ("class", item.class_),
            ("subject", item.subject),
            ("detail", item.detail),
            ("raised", f"{format_time(item.raised_at)} by {item.source}"),
            ("status", item.status),
            ("over", "" if item.ended_at is None else format_time(item.ended_at)),
            ("conversations", ", ".join(item.corr_ids)),
        ]

    def actions(self, item: IncidentView) -> tuple[Action, ...]:
        return (resolve_incident(item),) if item.status == "open" else ()
