"""Views of mail: agents with their mailboxes, dead letters, undelivered messages."""

from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from msgspec import Struct

from gatepost.display_text import format_age, format_size, format_time, payload_text
from gatepost.tui.actions import (
    Action,
    discard_letter,
    discard_message,
    purge_mailbox,
    replay_all_letters,
    replay_letter,
    replay_message,
)
from gatepost.tui.operator_api import OperatorApi
from gatepost.tui.row_filter import RowFilter
from gatepost.tui.table_view import ID_WIDTH, MAX_ROWS, Column, Fact, TableView
from gatepost.wire.gateway_views import AgentInfo, MailboxCounts, Undelivered, UndeliveredPage
from gatepost.wire.operations import DeadLetter, DeadLetters, Peek, Summaries, Summary
from gatepost.wire.overview_views import Topic

_MAIL: frozenset[Topic] = frozenset(("messages",))
_PAYLOAD_CHARS = 4000


class AgentRow(Struct, frozen=True):
    """An agent of this gateway, or a mailbox without one, and its mail."""

    box: MailboxCounts
    agent: AgentInfo | None = None


class AgentsView(TableView[AgentRow]):
    name = "agents"
    summary = "agents of this gateway and their mailboxes"
    topics: ClassVar[frozenset[Topic]] = frozenset(("messages", "room"))
    columns = (
        Column("Agent"),
        Column("Pending", 9, is_number=True),
        Column("In flight", 9, is_number=True),
        Column("Dead letters", 12, is_number=True),
        Column("Role", 9, is_wide=True),
        Column("Seen", 10),
        Column("Problem", 40, is_wide=True),
    )
    empty = "no agents yet: gatepost agent add NAME"

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[AgentRow]:
        boxes = await api.get("/v1/mailboxes", list[MailboxCounts])
        agents = await api.get("/v1/agents", list[AgentInfo])
        return join_agents(agents, boxes)

    def key(self, item: AgentRow) -> str:
        return item.box.name

    def cells(self, item: AgentRow, now_ms: int) -> tuple[str, ...]:
        box, agent = item.box, item.agent
        counts = (f"{box.waiting:,}", f"{box.in_flight:,}", f"{box.dead_letters:,}")
        if agent is None:
            return box.name, *counts, "", "", "a mailbox without an agent"
        problem = agent.problem or ("stands in" if agent.standby else "")
        seen = f"{format_age(agent.seen_at, now_ms)}" if agent.seen_at else "never"
        return box.name, *counts, agent.role or "", seen, problem

    def style(self, item: AgentRow) -> str:
        return "yellow" if item.box.dead_letters or (item.agent and item.agent.problem) else ""

    def open(self, item: AgentRow) -> "TableView[Any]":
        return MailView(item.box.name)

    def actions(self, item: AgentRow) -> tuple[Action, ...]:
        found = (purge_mailbox(item.box),) if item.box.waiting else ()
        return (*found, replay_all_letters(item.box.name)) if item.box.dead_letters else found


def join_agents(agents: Sequence[AgentInfo], boxes: Sequence[MailboxCounts]) -> list[AgentRow]:
    """All agents and mailboxes, those with dead letters or mail first."""
    by_name = {agent.id: agent for agent in agents}
    rows = [AgentRow(box, by_name.pop(box.name, None)) for box in boxes]
    rows += [AgentRow(MailboxCounts(agent.id, 0, 0, 0), agent) for agent in by_name.values()]
    rows.sort(key=lambda row: (-row.box.dead_letters, -row.box.waiting, row.box.name))
    return rows


class MailView(TableView[Summary]):
    """The mail of one agent."""

    name = "mail"
    summary = "mail of an agent that is not settled"
    topics = _MAIL
    columns = (
        Column("Message", ID_WIDTH),
        Column("From", 16),
        Column("Age", 8),
        Column("Retries", 7, is_number=True),
        Column("State"),
        Column("Size", 9, is_wide=True),
        Column("Subject", 40, is_wide=True),
    )
    empty = "no mail"

    def __init__(self, agent: str) -> None:
        self._agent = agent

    @property
    def title(self) -> str:
        return f"mail of {self._agent}"

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[Summary]:
        peek = Peek(mailbox=self._agent, limit=MAX_ROWS)
        return (await api.ask("/v1/operations", peek, Summaries)).messages

    def key(self, item: Summary) -> str:
        return item.msg_id

    def cells(self, item: Summary, now_ms: int) -> tuple[str, ...]:
        age = format_age(item.created_at * 1000, now_ms)
        facts = (item.msg_id, item.from_, age, str(item.attempt), item.state)
        return (*facts, format_size(item.size), item.subject or "")


class DeadLettersView(TableView[DeadLetter]):
    name = "dead"
    summary = "dead letters: mail whose turns failed"
    topics = _MAIL
    columns = (
        Column("Message", ID_WIDTH),
        Column("Agent", 14),
        Column("From", 14, is_wide=True),
        Column("Failed", 8),
        Column("Attempts", 8, is_wide=True, is_number=True),
        Column("Reason"),
        Column("Replayed as", ID_WIDTH, is_wide=True),
    )
    empty = "no dead letters"
    searched = frozenset(("agent",))

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[DeadLetter]:
        named = wanted.named(self.searched).get("agent")
        found: list[DeadLetter] = []
        for agent in [named] if named else await self._agents(api):
            if (left := MAX_ROWS - len(found)) > 0:
                path = f"/v1/mailboxes/{quote(agent, safe='')}/dead-letters"
                found += (await api.get(path, DeadLetters, limit=left)).messages
        return found

    async def _agents(self, api: OperatorApi) -> list[str]:
        boxes = await api.get("/v1/mailboxes", list[MailboxCounts])
        return [box.name for box in boxes if box.dead_letters]

    def key(self, item: DeadLetter) -> str:
        return f"{item.to} {item.msg_id}"

    def cells(self, item: DeadLetter, now_ms: int) -> tuple[str, ...]:
        failed = format_age(item.failed_at * 1000, now_ms)
        facts = (item.msg_id, item.to, item.from_, failed, str(item.attempts), item.reason)
        return (*facts, item.replayed_as or "")

    def style(self, item: DeadLetter) -> str:
        return "dim" if item.replayed_as else ""

    async def describe(self, api: OperatorApi, item: DeadLetter, now_ms: int) -> list[Fact]:
        box = f"/v1/mailboxes/{quote(item.to, safe='')}/dead-letters"
        letter = await api.get(f"{box}/{quote(item.msg_id, safe='')}", DeadLetter)
        return [
            ("message", letter.msg_id),
            ("to", letter.to),
            ("from", letter.from_),
            ("subject", letter.subject or ""),
            ("sent", format_time(letter.created_at * 1000)),
            ("failed", format_time(letter.failed_at * 1000)),
            ("attempts", str(letter.attempts)),
            ("reason", letter.reason),
            ("replayed as", letter.replayed_as or ""),
            ("payload", payload_text(letter.payload)[:_PAYLOAD_CHARS]),
        ]

    def actions(self, item: DeadLetter) -> tuple[Action, ...]:
        if item.replayed_as:
            return (discard_letter(item),)
        return replay_letter(item), replay_all_letters(item.to), discard_letter(item)


class UndeliveredView(TableView[Undelivered]):
    name = "undelivered"
    summary = "messages from here that this gateway gave up"
    topics = _MAIL
    columns = (
        Column("Message", ID_WIDTH),
        Column("From", 14, is_wide=True),
        Column("To", 14),
        Column("Gateway", 14, is_wide=True),
        Column("Given up", 8),
        Column("Reason"),
        Column("Its gateway said", 24, is_wide=True),
    )
    empty = "no undelivered messages"
    searched = frozenset(("agent",))

    async def load(self, api: OperatorApi, wanted: RowFilter) -> list[Undelivered]:
        named = wanted.named(self.searched)
        page = await api.get("/v1/undelivered", UndeliveredPage, limit=MAX_ROWS, **named)
        return page.messages

    def key(self, item: Undelivered) -> str:
        return item.event_id

    def cells(self, item: Undelivered, now_ms: int) -> tuple[str, ...]:
        at = format_age(item.failed_at, now_ms)
        facts = (item.event_id, item.from_agent, item.to_agent, item.node or "", at, item.reason)
        return (*facts, item.verdict or "")

    def style(self, item: Undelivered) -> str:
        return "dim" if item.replayed_as else ""

    def actions(self, item: Undelivered) -> tuple[Action, ...]:
        if item.replayed_as:
            return (discard_message(item),)
        return replay_message(item), discard_message(item)
