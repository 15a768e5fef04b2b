"""Stands in for the operator's API of a gateway: fixed answers, and changes that a test sends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Raw

from gatepost.errors import NotFound, Unavailable
from gatepost.ledger import Ledger
from gatepost.tui.operator_api import ActionAnswer
from gatepost.wire.gateway_views import (
    AgentInfo,
    MailboxCounts,
    PeerStatus,
    Status,
    Undelivered,
    UndeliveredPage,
)
from gatepost.wire.hub_views import LogView, TaskList
from gatepost.wire.operations import DeadLetter, DeadLetters, Summaries, Summary
from gatepost.wire.overview_views import (
    BrokenPromise,
    ChangeNotice,
    Need,
    NeedAction,
    NeedList,
    NodeLedger,
    RoomLedger,
    SentMessageView,
    SentPage,
    Topic,
)
from gatepost.wire.report_views import IncidentPage, IncidentView, Journey, JourneyStep
from gatepost.wire.room_views import NodeList, NodeView
from gatepost.wire.tasks import TaskView

T = TypeVar("T")

NOW = 1_800_000_000_000
ALL_TOPICS: tuple[Topic, ...] = ("messages", "tasks", "ledger", "room", "nodes")


def _id(end: str) -> str:
    return f"01a1f646-ac83-73df-ae66-{end.rjust(12, '0')}"


MESSAGE, TASK = _id("1"), _id("a1")
LEDGER = Ledger(sent=1204, processed=1180, in_motion=3, waiting=19, dead_letters=2, expired=0)


class StandInApi:
    """`answers`: path → answer. What was asked and done is in `asked` and `done`."""

    def __init__(self) -> None:
        self.place = "http://127.0.0.1:7433"
        self.answers: dict[str, Any] = make_answers()
        self.asked: list[str] = []
        self.done: list[tuple[str, str, bytes]] = []
        self.answer = ActionAnswer()
        self._notices: asyncio.Queue[ChangeNotice | None] = asyncio.Queue()
        self.listened = 0
        self.notify(*ALL_TOPICS)

    async def get(self, path: str, kind: type[T], **params: object) -> T:
        query = {name: value for name, value in params.items() if value is not None}
        query.pop("limit", None)
        named = f"{path}?{urlencode(query)}" if query else path
        self.asked.append(named)
        found = self.answers.get(named, self.answers.get(path))
        if found is None:
            raise NotFound(f"nothing is at {path}")
        # As over HTTP: what does not fit the type is an error.
        return msgspec.json.decode(msgspec.json.encode(found), type=kind)

    async def ask(self, path: str, body: object, kind: type[T]) -> T:
        return await self.get(path, kind)

    async def act(self, method: str, path: str, body: Raw) -> ActionAnswer:
        self.done.append((method, path, bytes(body)))
        return self.answer

    async def close(self) -> None:
        pass

    def notify(self, *topics: Topic) -> None:
        self._notices.put_nowait(ChangeNotice(list(topics), NOW))

    def go_away(self) -> None:
        self._notices.put_nowait(None)

    async def changes(self) -> AsyncIterator[ChangeNotice]:
        self.listened += 1
        while True:
            notice = await self._notices.get()
            if notice is None:
                raise Unavailable("the gateway at http://lab:7433 cannot be reached: it is gone")
            yield notice


def make_answers() -> dict[str, Any]:
    return {
        "/v1/status": Status("lab", "1", 1, True, None, 3, 19, 3, 2, 9, 1),
        "/v1/ledger": make_room_ledger(),
        "/v1/needs": NeedList(make_needs()),
        "/v1/room/nodes": NodeList(make_nodes(), [], {}),
        "/v1/mailboxes": [
            MailboxCounts("billing", 12, 1, 2),
            MailboxCounts("triage", 7, 2, 0),
            MailboxCounts("old", 0, 0, 0),
        ],
        "/v1/agents": [
            AgentInfo("billing", "local", NOW - 9_000_000, NOW - 3000),
            AgentInfo("triage", "local", NOW - 9_000_000, NOW - 60_000),
            AgentInfo("idle", "local", NOW - 9_000_000, 0, problem="vps-2 owns it"),
        ],
        "/v1/operations": Summaries([
            Summary(_id("b1"), "alice", (NOW - 61_000) // 1000, 0, "pending", 812),
        ]),
        "/v1/mailboxes/billing/dead-letters": DeadLetters(make_dead_letters()),
        f"/v1/mailboxes/billing/dead-letters/{MESSAGE}": make_dead_letters()[0],
        "/v1/undelivered": UndeliveredPage([
            Undelivered(
                _id("c1"), "message", "alice", "carol", "order-7", "vps-2",
                "unreachable", 5, NOW - 7_200_000, True, "it never took it",
            ),
        ]),
        "/api/hub/tasks": TaskList(make_tasks()),
        f"/api/hub/tasks/{TASK}": make_tasks()[0],
        f"/api/hub/tasks/{TASK}/log": LogView(0, 20, "cloning\nreading 12 files\n", False),
        "/v1/messages": SentPage(make_messages()),
        "/v1/incidents": IncidentPage(make_incidents(), {"abuse": 1}),
        f"/v1/trace/{MESSAGE}": make_journey(),
    }  # fmt: skip


def make_room_ledger(broken: bool = False) -> RoomLedger:
    nodes = [
        NodeLedger("lab", Ledger(sent=1000, processed=1000), NOW),
        NodeLedger("mbp", Ledger(sent=200, processed=180, waiting=19, in_motion=1), NOW),
        NodeLedger("vps-1", Ledger(sent=4, in_motion=2, dead_letters=2), NOW),
    ]
    promise = BrokenPromise(
        "processed",
        "every_message_is_processed_once",
        "order-7 was processed twice",
        NOW,
        "gatepost pipeline audit",
    )
    return RoomLedger(LEDGER, NOW, nodes, [], [promise] if broken else [])


def make_needs() -> list[Need]:
    replay = NeedAction(
        "Replay",
        "gatepost dlq replay billing --all",
        "POST",
        "/v1/mailboxes/billing/dead-letters/replay",
        Raw(b'{"replayed":false}'),
    )
    look = NeedAction("Re-route", "gatepost route set AGENT --owner vps-2 --fallback NODE")
    return [
        Need("dlq-billing", 2, "dead_letters", "2 dead letters of billing", replay,
             "the ledger service is down", NOW - 240_000, "billing"),
        Need("node-vps-2", 2, "node", "vps-2 is offline · 19 messages waiting for 5 min", look,
             "no link: connection refused", NOW - 300_000, "vps-2"),
    ]  # fmt: skip


def make_nodes() -> list[NodeView]:
    far = PeerStatus("vps-2", "offline", False, None, NOW - 300_000, 19, NOW - 300_000, 0,
                     "it is offline", "connection refused")  # fmt: skip
    near = PeerStatus("mbp", "online", True, None, NOW - 1000)
    return [
        _node("lab", "core", "online", "this gateway, publisher of term 3", None),
        _node("mbp", "core", "online", "online, linked, heard 1 s ago", near),
        _node("vps-2", "edge", "offline", "offline, silent for 5 min: connection refused", far),
    ]


def _node(id: str, tier: str, status: str, state: str, peer: PeerStatus | None) -> NodeView:
    return NodeView(
        id, tier, status, "ab12 cd34", f"https://{id}.example:7433", "lab", NOW - 1000, 1,
        peer is None, peer, state,
    )  # fmt: skip


def make_dead_letters() -> list[DeadLetter]:
    at = NOW // 1000
    return [
        DeadLetter(MESSAGE, "alice", "billing", at - 900, 5, "the ledger service is down",
                   at - 240, 5, Raw(b'{"invoice":4711}')),
        DeadLetter(_id("2"), "mallory\x1b[2J", "billing", at - 800, 1,
                   "rejected: \x1b[31mred[/] [bold]text", at - 200, 1),
    ]  # fmt: skip


def make_tasks() -> list[TaskView]:
    return [
        TaskView(TASK, "code-reviewer", "running", "running", "alice",
                 description="review the change of the billing service", progress=0.4,
                 note="reading 12 files", eta_at=NOW + 300_000, created_at=NOW - 120_000),
        TaskView(_id("a2"), "deployer", "failed", "failed", "alice",
                 description="deploy", error_code="timeout", created_at=NOW - 900_000,
                 ended_at=NOW - 60_000),
        TaskView(_id("a3"), "writer", "completed", "completed", "bob",
                 description="write the notes", progress=1.0, created_at=NOW - 800_000,
                 ended_at=NOW - 90_000),
    ]  # fmt: skip


def make_messages() -> list[SentMessageView]:
    return [
        SentMessageView(_id("3"), "waiting", "alice", "carol", "order-9",
                        "message", "emitted", None, None, "vps-2", 1, NOW - 20_000),
        SentMessageView(MESSAGE, "dead_letters", "alice", "billing", "order-8", "message",
                        "processed", "dead_letter", "the ledger service is down", "lab", 1,
                        NOW - 900_000, NOW - 899_000, NOW - 240_000),
        SentMessageView(_id("0"), "processed", "bob", "triage", "order-7",
                        "message", "replied", "ok", None, "mbp", 1, NOW - 1_000_000),
    ]  # fmt: skip


def make_incidents() -> list[IncidentView]:
    return [
        IncidentView("i-1", "source_stale", "vps-2", "no event for 5 min", NOW - 300_000,
                     "lab", []),
        IncidentView("i-2", "dead_letter", MESSAGE, "the ledger service is down", NOW - 240_000,
                     "lab", ["order-8"], "resolved"),
    ]  # fmt: skip


def make_journey() -> Journey:
    ids = [MESSAGE]
    steps = [
        JourneyStep(NOW - 900_000, "lab", "sent", MESSAGE, "message", "alice", "billing", "lab"),
        JourneyStep(NOW - 899_000, "lab", "accepted", MESSAGE, "ack", "billing", "alice", "lab"),
        JourneyStep(NOW - 240_000, "lab", "turn_failed", MESSAGE, "", "", "billing", "",
                    "attempt 5, the ledger service is down"),
    ]  # fmt: skip
    return Journey(MESSAGE, "order-8", ids, steps, {"vps-2": "it is offline"})
