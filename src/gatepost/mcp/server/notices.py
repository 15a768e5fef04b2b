"""Notices: information for a client's model that it did not ask for.

The output of a hook has the rank of the system. So a notice holds nothing that another agent could
have written: how many messages wait, their ids, their verified senders, what became of the agent's
own sends, and the tool to call. Ids that a sender chose itself are left out, and names are cut.

A client's session has at most one waiter. A newer one takes its place, and the end of the session
ends it.
"""

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct, UnsetType, field

from gatepost.errors import GatepostError
from gatepost.gateway.doors import DoorCaller, DoorServices
from gatepost.mcp.server.agent_desk import AgentDesks, FollowedSend
from gatepost.mcp.server.moments import format_time_of_day
from gatepost.wire.operations import Await, Awaited, Peek, Sent, Summaries, Summary
from gatepost.wire.tasks import TaskAwait, TaskAwaited, TaskView

# Which ends of the agent's sends are told: all, or those it waits for and those that went wrong.
EndsToTell = Literal["all", "awaited"]
NoticeEvent = Literal["start", "prompt", "stop", "wait", "end"]

# A turn is held for a task of the agent that is promised within this time.
_HOLD_SECS = 15.0
_MAX_SESSIONS = 4096
_MAX_TOLD = 1000
_MAX_WATCHED = 24
_MAX_NAMED = 5
_MAX_PEEKED = 100
_MAX_NAME_CHARS = 48
_WAIT_SECS = 50.0
_is_uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


class NoticeRequest(Struct):
    """A hook of a client asks. `is_repeated`: the turn that ends was begun by such a notice."""

    event: NoticeEvent
    session: Annotated[str, Meta(max_length=128)] = ""
    is_repeated: bool = False


class NoticeAnswer(Struct, omit_defaults=True):
    """`text` is empty if there is nothing to tell."""

    text: str = ""


class ClientSession(Struct):
    """A session of a client: the messages it was told of, and the waiter it has."""

    told: OrderedDict[str, None] = field(default_factory=OrderedDict)
    waiter: "asyncio.Future[None] | None" = None

    def note_told(self, ids: Iterable[str]) -> None:
        self.told.update(dict.fromkeys(ids))
        while len(self.told) > _MAX_TOLD:
            self.told.popitem(last=False)

    def end_waiter(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class NoticeDesk:
    def __init__(self, services: DoorServices, desks: AgentDesks) -> None:
        self._services = services
        self._desks = desks
        self._sessions: OrderedDict[tuple[str, str], ClientSession] = OrderedDict()

    async def answer(
        self, caller: DoorCaller, asked: NoticeRequest, reader: asyncio.StreamReader
    ) -> NoticeAnswer:
        """Answer a hook. A waiter also ends when the hook hangs up at `reader`."""
        session = self._open_session(caller, asked.session)
        if asked.event == "end":
            session.end_waiter()
            self._sessions.pop((caller.agent or "", asked.session), None)
            return NoticeAnswer()
        if asked.event == "start":
            await self._services.register(caller)
        if asked.event == "wait":
            return NoticeAnswer(await self._wait(caller, session, reader))
        if asked.event == "stop":
            if asked.is_repeated:
                return NoticeAnswer()
            await self._hold_for_promised(caller)
            return NoticeAnswer(await self._tell_new(caller, session))
        if asked.event == "prompt":
            return NoticeAnswer(await self._remind(caller, session))
        return NoticeAnswer(await self._tell_all(caller, session))

    def _open_session(self, caller: DoorCaller, id: str) -> ClientSession:
        key = (caller.agent or "", id)
        session = self._sessions.setdefault(key, ClientSession())
        self._sessions.move_to_end(key)
        while len(self._sessions) > _MAX_SESSIONS:
            _, oldest = self._sessions.popitem(last=False)
            oldest.end_waiter()
        return session

    # -- what is told

    async def _tell_all(self, caller: DoorCaller, session: ClientSession) -> str:
        """All mail that waits, and the ends of the agent's sends that it was not told yet."""
        waiting = await self._list_waiting(caller)
        session.note_told(each.msg_id for each in waiting)
        return _join(self._describe_mail(caller, waiting), await self._describe_ends(caller))

    async def _remind(self, caller: DoorCaller, session: ClientSession) -> str:
        """As `_tell_new`; mail that this session was told of before is counted only."""
        waiting = await self._list_waiting(caller)
        known = sum(each.msg_id in session.told for each in waiting)
        news = await self._tell_new(caller, session)
        still = f"Gatepost: {known} of the messages you were told of still wait." if known else ""
        return _join(news, still)

    async def _tell_new(
        self, caller: DoorCaller, session: ClientSession, ends: EndsToTell = "all"
    ) -> str:
        """New mail for this session, and ends that the agent was not told yet."""
        waiting = await self._list_waiting(caller)
        new = [each for each in waiting if each.msg_id not in session.told]
        session.note_told(each.msg_id for each in new)
        return _join(self._describe_mail(caller, new), await self._describe_ends(caller, ends))

    async def _list_waiting(self, caller: DoorCaller) -> list[Summary]:
        op = Peek(mailbox=caller.agent or "", limit=_MAX_PEEKED)
        found: Summaries = await self._services.perform(caller, op)
        return [each for each in found.messages if each.state == "pending" and not each.not_before]

    def _describe_mail(self, caller: DoorCaller, waiting: list[Summary]) -> str:
        if not waiting:
            return ""
        count = f"{len(waiting)}{'+' if len(waiting) == _MAX_PEEKED else ''}"
        are = "message waits" if count == "1" else "messages wait"
        named = [self._name_mail(each) for each in waiting[:_MAX_NAMED]]
        more = ", and more" if len(waiting) > _MAX_NAMED else ""
        return (
            f"Gatepost: {count} {are} for {caller.agent}: {', '.join(named)}{more}."
            " Call the tool `inbox` of the server gatepost to read and settle them."
        )

    def _name_mail(self, mail: Summary) -> str:
        sender = self._name_agent(mail.from_)
        return f"{mail.msg_id} from {sender}" if _is_uuid(mail.msg_id) else f"one from {sender}"

    def _name_agent(self, agent: str, node: str | None = None) -> str:
        home = node or self._services.find_home(agent)
        away = home not in ("", self._services.node_id) and "@" not in agent
        return f"{_cut(agent)}@{_cut(home)}" if away else _cut(agent)

    async def _describe_ends(self, caller: DoorCaller, ends: EndsToTell = "all") -> str:
        """The ends of the agent's sends, each told once."""
        desk = self._desks.find_desk(caller)
        lines = []
        for each in list(desk.followed.values()):
            if each.told:
                desk.followed.pop(each.id, None)
            elif line := await self._describe_end(caller, each, ends):
                lines.append(line)
                desk.followed.pop(each.id, None)
        return "Gatepost: " + " ".join(lines) if lines else ""

    async def _describe_end(self, caller: DoorCaller, send: FollowedSend, ends: EndsToTell) -> str:
        try:
            if send.is_task:
                op = TaskAwait(task_id=send.id, wait_secs=0)
                seen: TaskAwaited = await self._services.perform(caller, op)
                return self._describe_task(seen.task)
            sent: Awaited = await self._services.perform(
                caller, Await(event_id=send.id, wait_secs=0)
            )
            if ends == "awaited" and not _is_awaited(send, sent.result):
                return ""
            return self._describe_send(sent.result, send)
        except GatepostError:
            # It ended long ago, because the journal has forgotten it.
            return ""

    def _describe_send(self, sent: Sent, send: FollowedSend) -> str:
        if sent.processed_at is None:
            return ""
        receiver = self._name_agent(send.to, sent.node)
        what = "processed" if sent.outcome in (None, "ok") else f"ended as {sent.outcome}"
        line = f"{send.id}: {what} by {receiver}, {format_time_of_day(sent.processed_at)}"
        has_reply = sent.reply_ref is not None or not isinstance(sent.reply, UnsetType)
        if send.is_request and has_reply:
            line += "; reply waiting, call `request` with this event_id"
        return line + "."

    def _describe_task(self, task: TaskView) -> str:
        if task.ended_at is None:
            return ""
        executor = self._name_agent(task.agent_name, task.executor_node)
        when = format_time_of_day(task.ended_at)
        return f"task {task.id}: {task.state} by {executor}, {when}; call `task_status`."

    async def _hold_for_promised(self, caller: DoorCaller) -> None:
        """Wait for a task whose executor has promised its end within seconds."""
        tasks = [each for each in self._desks.find_desk(caller).followed.values() if each.is_task]
        deadline = asyncio.get_running_loop().time() + _HOLD_SECS
        for each in tasks[-_MAX_WATCHED:]:
            with contextlib.suppress(GatepostError):
                seen: TaskAwaited = await self._services.perform(
                    caller, TaskAwait(task_id=each.id, wait_secs=0)
                )
                eta, now = seen.task.eta_at, self._services.clock.now()
                left = deadline - asyncio.get_running_loop().time()
                if not seen.task.has_ended and eta is not None and 0 <= eta - now <= left * 1000:
                    wait = TaskAwait(task_id=each.id, wait_secs=max(0.0, left))
                    await self._services.perform(caller, wait)

    # -- waiting

    async def _wait(
        self, caller: DoorCaller, session: ClientSession, reader: asyncio.StreamReader
    ) -> str:
        """Wait for something to tell; empty if a newer waiter came, or the hook hung up."""
        session.end_waiter()
        ended = session.waiter = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(reader.read(1))
        telling = asyncio.ensure_future(self._wait_for_news(caller, session))
        try:
            await asyncio.wait((ended, gone, telling), return_when=asyncio.FIRST_COMPLETED)
            return telling.result() if telling.done() and not gone.done() else ""
        finally:
            if session.waiter is ended:
                session.waiter = None
            for each in (gone, telling):
                each.cancel()
            await asyncio.gather(gone, telling, return_exceptions=True)

    async def _wait_for_news(self, caller: DoorCaller, session: ClientSession) -> str:
        waits = self._services.waits
        async with self._services.watching_mail(caller) as news:
            while not waits.is_stopping:
                news.clear()
                async with self._watching_sends(caller, news):
                    if text := await self._tell_new(caller, session, "awaited"):
                        return text
                    waiting = asyncio.ensure_future(news.wait())
                    await waits.wait_for(waiting, _WAIT_SECS)
                    waiting.cancel()
        return ""

    @contextlib.asynccontextmanager
    async def _watching_sends(self, caller: DoorCaller, news: asyncio.Event) -> AsyncIterator[None]:
        """Set `news` when one of the agent's latest sends ends, or there is another one."""
        desk = self._desks.find_desk(caller)
        desk.waiting.add(news)
        open_sends = [each for each in desk.followed.values() if not each.told]
        watching = [
            asyncio.create_task(self._watch_send(caller, each, news))
            for each in open_sends[-_MAX_WATCHED:]
        ]
        try:
            yield
        finally:
            desk.waiting.discard(news)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _watch_send(
        self, caller: DoorCaller, send: FollowedSend, news: asyncio.Event
    ) -> None:
        with contextlib.suppress(GatepostError):
            while not self._services.waits.is_stopping:
                if send.is_task:
                    op = TaskAwait(task_id=send.id, wait_secs=_WAIT_SECS)
                    seen: TaskAwaited = await self._services.perform(caller, op)
                    has_ended = seen.task.has_ended
                else:
                    until = Await(event_id=send.id, wait_secs=_WAIT_SECS)
                    sent: Awaited = await self._services.perform(caller, until)
                    has_ended = sent.result.has_reached("processed")
                if has_ended:
                    news.set()
                    return


def _is_awaited(send: FollowedSend, sent: Sent) -> bool:
    """Whether the end of a message is worth a turn of an idle model."""
    return send.is_request or sent.outcome not in (None, "ok")


def _cut(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…"


def _join(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
