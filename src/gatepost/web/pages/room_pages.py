"""The room: its gateways, agents and mailboxes, capabilities with reviews, and its records."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import NOTHING, Child, Markup, join, tag
from gatepost.web.layout import (
    Frame,
    action_link,
    command_text,
    empty,
    heading,
    link,
    panel,
    table,
)
from gatepost.web.mesh_drawing import draw_mesh
from gatepost.web.page_data import MeshView, read_mesh
from gatepost.web.words import ago, chip, count_of, node_tone
from gatepost.wire.capabilities import CapabilityHealth, CapabilityView
from gatepost.wire.gateway_views import AgentInfo, MailboxCounts
from gatepost.wire.operations import Summaries
from gatepost.wire.report_views import EtaAdviceView, ReviewView
from gatepost.wire.room_views import NodeView, RoomAgentView, RoomView

_MAX_RECORDS = 500
_MAX_HEALTH = 30


async def mesh_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    view = await read_mesh(calls)
    release = action_link(frame, "release", "Hand the lease over…", {})
    if view.nodes is None:
        alone = empty("This gateway is alone. Another machine joins with ", "gatepost invite")
        return "Mesh", [heading("Mesh"), panel("map", "Map", alone)]
    problems = [tag("li", None, problem) for problem in view.nodes.mesh_problems]
    return "Mesh", [
        heading("Mesh", release),
        panel(
            "map",
            "Map",
            draw_mesh(view.nodes.nodes, view.publisher),
            live="nodes room",
            aside=f"♛ publisher: {view.publisher or 'none'}",
            size="full mesh",
        ),
        panel("problems", "Problems", tag("ul", None, *problems)) if problems else NOTHING,
        panel("nodes", "Gateways", _node_table(frame, view), live="nodes room"),
    ]


def _node_table(frame: Frame, view: MeshView) -> Markup:
    columns = (("Gateway", ""), ("State", ""), ("Waits for it", ""), ("", "w-act"))
    nodes = [] if view.nodes is None else view.nodes.nodes
    rows = (
        (
            join(
                [
                    tag("b", {"id": f"node-{node.id}"}, node.id),
                    tag("span", {"class": "dim"}, f" {node.tier}"),
                    " ♛" if node.id == view.publisher else "",
                    tag("span", {"class": "why mono"}, node.fingerprint[:23]),
                ]
            ),
            join(
                [
                    chip(node_tone(node.status), node.status),
                    tag("span", {"class": "why"}, node.state),
                ]
            ),
            _waiting(node, frame.now),
            _node_actions(frame, node),
        )
        for node in nodes
    )
    return table("Gateways", columns, rows)


def _waiting(node: NodeView, now: int) -> Markup:
    peer = node.peer
    if peer is None or not peer.waiting:
        return tag("span", {"class": "dim"}, "nothing")
    why = tag("span", {"class": "why"}, peer.why)
    return join([count_of(peer.waiting, "message"), " since ", ago(peer.waiting_since, now), why])


def _node_actions(frame: Frame, node: NodeView) -> Markup:
    if node.is_self:
        return NOTHING
    parts = [action_link(frame, "revoke", "Revoke…", {"node": node.id}, danger=True)]
    if node.peer is not None and node.peer.waiting:
        parts = [
            action_link(frame, "reroute", "Re-route…", {}),
            action_link(frame, "give-up", "Give up…", {"node": node.id}, danger=True),
            *parts,
        ]
    return join([part for each in parts for part in (each, " ")])


async def agents_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    here, boxes, room = await asyncio.gather(
        calls.get("/v1/agents", list[AgentInfo]),
        calls.get("/v1/mailboxes", list[MailboxCounts]),
        _room_agents(calls),
    )
    counts = {box.name: box for box in boxes}
    known = {agent.id: agent for agent in here}
    homes = {agent.id: agent.owner or "" for agent in room}
    names = sorted({*known, *homes, *counts})
    columns = (
        ("Agent", ""),
        ("Lives", ""),
        ("Pending", "w-n"),
        ("In flight", "w-n"),
        ("Dead", "w-n"),
        ("Seen", "w-a hide-s"),
    )
    rows = []
    for name in names:
        box, agent = counts.get(name), known.get(name)
        numbers = (
            ("–", "–", "–")
            if box is None
            else (f"{box.waiting:,}", f"{box.in_flight:,}", f"{box.dead_letters:,}")
        )
        seen: Child = ago(agent.seen_at, frame.now) if agent is not None else "–"
        lives = homes.get(name) or (frame.status.node_id if agent is not None else "mailbox only")
        rows.append((link(f"/agents/{name}", name), lives, *numbers, seen))
    write = tag("a", {"class": "btn", "href": "/write"}, "Write to all…")
    shown = table("Agents", columns, rows) if rows else empty("No agents. ", "gatepost agent add A")
    return "Agents", [
        heading("Agents", None if frame.read_only else write),
        panel("list", "Agents and mailboxes", shown, live="room messages"),
    ]


async def _room_agents(calls: ApiCalls) -> list[RoomAgentView]:
    from gatepost.errors import GatepostError

    try:
        return await calls.get("/v1/room/agents", list[RoomAgentView])
    except GatepostError:
        return []


async def agent_page(frame: Frame, calls: ApiCalls, name: str) -> tuple[str, list[Child]]:
    from gatepost.errors import GatepostError

    try:
        mail = (await calls.get(f"/v1/mailboxes/{name}", Summaries, limit=100)).messages
    except GatepostError:
        mail = []
    columns = (("Message", ""), ("State", "w-s"), ("Attempt", "w-n"), ("Age", "w-a"))
    rows = (
        (
            join(
                [
                    link(f"/messages/{m.msg_id}", m.subject or m.msg_id),
                    tag("span", {"class": "why"}, f"from {m.from_}"),
                ]
            ),
            m.state,
            str(m.attempt),
            ago(m.created_at * 1000, frame.now),
        )
        for m in mail
    )
    queue = table("Mailbox", columns, rows) if mail else empty("Its mailbox here is empty.")
    purge = action_link(frame, "purge", "Purge…", {"mailbox": name}, danger=True) if mail else None
    return name, [
        heading(name, link(f"/messages?agent={name}", "Its messages")),
        panel("queue", "Mailbox", queue, live="messages", aside=purge, size="wide"),
        NOTHING if frame.read_only else panel("write", "Write", write_form(name), size="narrow"),
    ]


def write_form(agent: str = "") -> Markup:
    to = tag("input", {"name": "agent", "value": agent, "required": True, "autocomplete": "off"})
    return tag(
        "form",
        {"class": "filters tall", "method": "get", "action": "/do/send", "data-action": True},
        tag("label", None, "To (* is every agent)", to),
        tag("label", None, "Subject", tag("input", {"name": "subject", "maxlength": 200})),
        tag("label", None, "Text", tag("textarea", {"name": "text", "rows": 4, "required": True})),
        tag("input", {"type": "hidden", "name": "back", "value": "/messages"}),
        tag("button", {"class": "btn prim", "type": "submit"}, "Send…"),
    )


async def write_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    content = empty("This session is read-only.") if frame.read_only else write_form()
    return "Write", [heading("Write"), panel("write", "A message", content)]


async def capabilities_page(frame: Frame, calls: ApiCalls) -> tuple[str, list[Child]]:
    found, reviews, advice = await asyncio.gather(
        calls.get("/v1/capabilities", list[CapabilityView]),
        calls.get("/v1/reviews", list[ReviewView], limit=100),
        calls.get("/v1/eta-advice", list[EtaAdviceView]),
    )
    health = await asyncio.gather(
        *(
            calls.get(f"/v1/capabilities/{each.capability_id}/health", CapabilityHealth)
            for each in found[:_MAX_HEALTH]
        )
    )
    return "Capabilities", [
        heading("Capabilities"),
        panel("reviews", "Reviews", _review_table(frame, reviews), live="messages room"),
        panel("list", "Published", _capability_table(found, health, advice), live="room tasks"),
    ]


def _capability_table(
    found: list[CapabilityView], health: list[CapabilityHealth], advice: list[EtaAdviceView]
) -> Markup:
    if not found:
        return empty("No capability is published. ", "gatepost capability publish FILE")
    fares = {each.capability.capability_id: each for each in health}
    eta = {each.capability_id: each for each in advice}
    columns = (("Capability", ""), ("Status", "w-s"), ("Tasks", ""), ("Skills", ""), ("ETA", ""))
    rows = []
    for each in found:
        fare, told = fares.get(each.capability_id), eta.get(each.capability_id)
        tasks = "" if fare is None else ", ".join(f"{n} {s}" for s, n in fare.tasks.items())
        skills = "" if fare is None else _installs(fare)
        promised = f"{each.default_eta_seconds:,} s"
        measured = "" if told is None else f"; p95 {told.p95_secs:,.0f} s"
        name = join(
            [
                tag("b", None, each.name),
                tag(
                    "span",
                    {"class": "why"},
                    f"{each.capability_id} {each.version} of {each.owner_agent_id}",
                ),
            ]
        )
        rows.append((name, each.status, tasks or "none", skills, promised + measured))
    return table("Capabilities", columns, rows)


def _installs(fare: CapabilityHealth) -> str:
    counts = Counter(each.status for each in fare.installs)
    return ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "none"


def _review_table(frame: Frame, reviews: list[ReviewView]) -> Markup:
    if not reviews:
        return empty("No capability misfired.")
    columns = (("Capability, and why", ""), ("Status", "w-s"), ("Age", "w-a"), ("", "w-act"))
    rows = (
        (
            join(
                [
                    tag("b", None, each.capability_id),
                    tag(
                        "span",
                        {"class": "why"},
                        f"{each.failure_class.replace('_', ' ')}, {count_of(each.count, 'time')}",
                    ),
                ]
            ),
            each.status,
            ago(each.raised_at, frame.now),
            join(
                [
                    action_link(frame, "resolve-review", "Resolve…", {"id": each.id}),
                    " ",
                    action_link(frame, "dismiss-review", "Dismiss…", {"id": each.id}),
                ]
            )
            if each.status == "open"
            else NOTHING,
        )
        for each in reviews
    )
    return table("Reviews", columns, rows)


async def room_page(
    frame: Frame, calls: ApiCalls, given: Mapping[str, str]
) -> tuple[str, list[Child]]:
    room = await calls.get("/v1/room", RoomView)
    maps = sorted({record.map for record in room.records})
    wanted = given.get("map", "")
    records = [record for record in room.records if wanted in ("", record.map)][:_MAX_RECORDS]
    columns = (("Record", ""), ("Writer", ""), ("Version", "w-n"), ("State", "w-s"))
    rows = (
        (
            tag(
                "details",
                None,
                tag("summary", None, f"{r.map} {r.key}"),
                tag("pre", None, bytes(r.record).decode("utf-8", "replace")[:4000]),
            ),
            r.writer,
            str(r.version),
            r.state,
        )
        for r in records
    )
    links = join(part for name in maps for part in (link(f"/room?map={name}", name), " "))
    verify = command_text("gatepost room verify")
    return "Room", [
        heading("Room", tag("span", {"class": "mono dim"}, f"{room.room}, epoch {room.epoch}")),
        panel(
            "records",
            f"{len(records):,} of {len(room.records):,} records",
            links,
            table("Records", columns, rows),
            live="room",
            aside=verify,
        ),
    ]
