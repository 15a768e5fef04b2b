"""Tasks of A2A on the fabric.

A task of A2A is a chain of tasks of the fabric, one for each message of the client. A turn whose
result is `{"input_required": QUESTION}` leaves it waiting for the next message. The first turn has
the id of the task, and the ids of the others follow from it: so one follow-up of several wins.
The state is always read from the fabric. A message that was seen before begins nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gatepost.a2a.callers import A2aCaller
from gatepost.a2a.door_records import MAX_TASKS_PER_CALLER, DoorRecords, TaskRecord, TurnRecord
from gatepost.a2a.json_text import encode_json
from gatepost.errors import (
    Conflict,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    RateLimited,
    UnknownAgent,
    UnknownTask,
    WrongState,
    error_from_code,
)
from gatepost.events import format_event_id, new_event_id, parse_event_id
from gatepost.gateway.doors import DoorServices
from gatepost.wire.capabilities import CapabilityView
from gatepost.wire.tasks import (
    NewTask,
    TaskAwait,
    TaskAwaited,
    TaskCancel,
    TaskCreate,
    TasksCreated,
    TaskView,
)

TASK_TYPE = "a2a"
SKILL_PREFIX = "skill:"
CANCELLED = "cancelled"
_MAX_TURNS = 100
_MAX_RESULT_BYTES = 4 * 1024 * 1024
_WATCH_SECS = 15.0
_CANCEL_SECS = 3.0
# A message that comes again later than this finds its task, or none: it makes none.
_REPEAT_MS = 7 * 86_400_000
_FINAL = ("completed", "failed", CANCELLED)


class InputRequired(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a turn that needs another message: what the agent asks."""

    input_required: str


class MessageDraft(Struct, frozen=True):
    """A message of a client. `message` is all of it as JSON; `text` and `input` are for the agent.

    `task` and `context` are what the client says; empty if it says nothing.
    """

    message_id: str
    task: str
    context: str
    skill: str
    message: bytes
    text: str
    input: Raw | UnsetType


class Snapshot(Struct, frozen=True):
    """A task of A2A at one moment."""

    record: TaskRecord
    turns: list[TurnRecord]
    view: TaskView
    result: Any = UNSET

    @property
    def question(self) -> str | None:
        """What the agent asks, if the task waits for the client."""
        if self.record.ended_as or not isinstance(self.result, InputRequired):
            return None
        return self.result.input_required

    @property
    def state(self) -> str:
        """`input_required`, or a state of the fabric."""
        if self.record.ended_as == CANCELLED:
            return CANCELLED
        return self.view.state if self.question is None else "input_required"

    @property
    def is_final(self) -> bool:
        return self.state in _FINAL

    @property
    def mark(self) -> str:
        """Differs between two snapshots if a client should hear of it."""
        view = self.view
        return msgspec.json.encode(
            (len(self.turns), self.state, view.note, view.progress, view.error)
        ).decode()


class TaskDesk:
    def __init__(self, services: DoorServices, records: DoorRecords) -> None:
        self._services = services
        self._records = records
        # Task → futures of those that wait for its next turn, or for its end by the door.
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    # -- which agents can be reached

    def list_skills(self, agent: str | None = None) -> list[CapabilityView]:
        """The capabilities that tasks are routed by, of one agent or of all."""
        return [
            each
            for each in self._services.list_capabilities()
            if each.status != "disabled" and agent in (None, each.owner_agent_id)
        ]

    def is_reachable(self, agent: str) -> bool:
        return agent in self._services.settings.a2a.agents or bool(self.list_skills(agent))

    def find_target(self, agent: str | None, skill: str) -> str:
        """The agent, or at the door of the whole gateway the capability, that a task is for."""
        if agent is not None:
            if not self.is_reachable(agent):
                raise UnknownAgent(f"no agent {agent} can be reached through A2A here")
            return agent
        skills = {each.capability_id for each in self.list_skills()}
        if not skill and len(skills) == 1:
            (skill,) = skills
        if skill not in skills:
            raise InvalidRequest("name a skill of the agent card in `metadata.skill`")
        return SKILL_PREFIX + skill

    # -- messages

    async def begin(self, caller: A2aCaller, agent: str | None, draft: MessageDraft) -> Snapshot:
        """The task that a message begins or continues, once that is on disk."""
        if not caller.is_anonymous:
            known = await self._records.find_turn(caller.key, draft.message_id)
            if known is not None:
                return await self._repeat(caller, known, agent, draft)
        if draft.task:
            return await self._continue(caller, agent, draft)
        await self._make_room(caller)
        id = new_event_id(self._services.clock)
        task = TaskRecord(id, caller.key, draft.context or id, self.find_target(agent, draft.skill))
        return await self._add_turn(caller, task, [], agent, draft)

    async def _repeat(
        self, caller: A2aCaller, known: TurnRecord, agent: str | None, draft: MessageDraft
    ) -> Snapshot:
        task = await self._find_own(caller, known.task)
        is_same = bool(draft.task) or self.find_target(agent, draft.skill) == task.target
        if known.message != draft.message or not is_same:
            raise IdempotencyConflict("this messageId was used with another message")
        try:
            return await self.load(caller, task.id)
        except UnknownTask:
            if self._services.clock.now() - _begun_at(task) > _REPEAT_MS:
                raise
            # The gateway ended before it had created what it had recorded.
            turns = await self._records.list_turns(task.id)
            await self._create(caller, task, known, turns[: known.number - 1], draft)
            return await self.load(caller, task.id)

    async def _continue(
        self, caller: A2aCaller, agent: str | None, draft: MessageDraft
    ) -> Snapshot:
        now = await self.load(caller, draft.task)
        if draft.context and draft.context != now.record.context:
            raise InvalidRequest("the contextId is not that of the task")
        if now.question is None:
            raise WrongState(f"task {draft.task} is {now.state} and waits for no message")
        if len(now.turns) >= _MAX_TURNS:
            raise WrongState(f"task {draft.task} has had {_MAX_TURNS} messages: begin another")
        return await self._add_turn(caller, now.record, now.turns, agent, draft, now.question)

    async def _add_turn(
        self,
        caller: A2aCaller,
        task: TaskRecord,
        before: list[TurnRecord],
        agent: str | None,
        draft: MessageDraft,
        question: str = "",
    ) -> Snapshot:
        number = len(before) + 1
        by = None if caller.is_anonymous else caller.key
        id = turn_id(task.id, number)
        turn = TurnRecord(task.id, number, id, by, draft.message_id, draft.message)
        if not await self._records.add_turn(task, turn, question):
            known = by and await self._records.find_turn(by, draft.message_id)
            if not known:
                raise Conflict("another message has answered the task")
            return await self._repeat(caller, known, agent, draft)
        if before:
            before = [*before[:-1], msgspec.structs.replace(before[-1], question=question)]
        view = await self._create(caller, task, turn, before, draft)
        self._wake(task.id)
        return Snapshot(task, [*before, turn], view)

    async def _create(
        self,
        caller: A2aCaller,
        task: TaskRecord,
        turn: TurnRecord,
        before: list[TurnRecord],
        draft: MessageDraft,
    ) -> TaskView:
        """Create the turn's task on the fabric, and forget the turn if that is refused."""
        new = NewTask(caller.door.agent or "", draft.text, task_type=TASK_TYPE)
        new.task_id, new.may_wait = turn.fabric_id, True
        new.input = _build_input(task, before, draft)
        if task.target.startswith(SKILL_PREFIX):
            new.required_capabilities = [task.target.removeprefix(SKILL_PREFIX)]
        else:
            new.to_agents = [task.target]
        answer: TasksCreated = await self._services.perform(caller.door, TaskCreate(tasks=[new]))
        (made,) = answer.results
        if made.code:
            if made.code != IdempotencyConflict.code:
                await self._records.remove_turn(turn)
            raise error_from_code(made.code, made.error)
        return made.tasks[0]

    async def _make_room(self, caller: A2aCaller) -> None:
        if await self._records.count_tasks(caller.key) < MAX_TASKS_PER_CALLER:
            return
        oldest = await self._records.find_oldest_ended(caller.key)
        if oldest is None:
            raise RateLimited("too many tasks that have not ended", retry_after=60.0)
        await self._records.remove_task(oldest)

    # -- states

    async def load(self, caller: A2aCaller, id: str) -> Snapshot:
        """A task of this caller as it is now. UnknownTask if it is another's, or there is none."""
        task = await self._find_own(caller, id)
        turns = await self._records.list_turns(id)
        if not turns:
            raise _unknown(id)
        view = await self._show(caller, turns[-1].fabric_id)
        return await self._take_snapshot(caller, task, turns, view)

    async def _find_own(self, caller: A2aCaller, id: str) -> TaskRecord:
        found = await self._records.find_task(id) if len(id) <= 64 else None
        if found is None or found.caller != caller.key:
            raise _unknown(id)
        return found

    async def _show(
        self, caller: A2aCaller, fabric_id: str, secs: float = 0.0, known: int = 0
    ) -> TaskView:
        op = TaskAwait(task_id=fabric_id, wait_secs=secs, known=known)
        try:
            answer: TaskAwaited = await self._services.perform(caller.door, op)
        except Forbidden:
            raise _unknown(fabric_id) from None
        return answer.task

    async def _take_snapshot(
        self, caller: A2aCaller, task: TaskRecord, turns: list[TurnRecord], view: TaskView
    ) -> Snapshot:
        result = await self._read_result(caller, view) if view.state == "completed" else UNSET
        shot = Snapshot(task, turns, view, result)
        if shot.is_final and not task.ended_as:
            await self._records.note_end(task.id, shot.state)
            shot = msgspec.structs.replace(
                shot, record=msgspec.structs.replace(task, ended_as=shot.state)
            )
        return shot

    async def _read_result(self, caller: A2aCaller, view: TaskView) -> Any:
        raw = b"null" if isinstance(view.result, UnsetType) else bytes(view.result)
        if view.result_ref is not None:
            raw = b""
            async for piece in await self._services.read_blob(caller.door, view.result_ref):
                raw += piece
                if len(raw) > _MAX_RESULT_BYTES:
                    return f"The result is too large to be shown here: {view.result_ref}"
        try:
            return msgspec.json.decode(raw, type=InputRequired)
        except msgspec.MsgspecError:
            return msgspec.json.decode(raw)

    async def watch(
        self, caller: A2aCaller, first: Snapshot, *, until_question: bool
    ) -> AsyncIterator[Snapshot]:
        """A task after each change, until it has ended or the gateway stops.

        Changes in quick succession may be one.
        """
        shot = first
        while not (shot.is_final or (until_question and shot.question is not None)):
            if self._services.waits.is_stopping:
                return
            before, shot = shot.mark, await self._await_change(caller, shot)
            if shot.mark != before:
                yield shot

    async def _await_change(self, caller: A2aCaller, shot: Snapshot) -> Snapshot:
        if shot.question is None:
            last = shot.turns[-1].fabric_id
            view = await self._show(caller, last, _WATCH_SECS, shot.view.updated_at)
            task = await self._find_own(caller, shot.record.id)
            return await self._take_snapshot(caller, task, shot.turns, view)
        turned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(shot.record.id, set())
        waiting.add(turned)
        try:
            now = await self.load(caller, shot.record.id)
            if now.mark == shot.mark:
                await self._services.waits.wait_for(turned, _WATCH_SECS)
        finally:
            waiting.discard(turned)
            if not waiting:
                self._waiting.pop(shot.record.id, None)
        return await self.load(caller, shot.record.id)

    def _wake(self, task: str) -> None:
        for future in self._waiting.get(task, ()):
            if not future.done():
                future.set_result(None)

    # -- cancel and list

    async def cancel(self, caller: A2aCaller, id: str) -> Snapshot:
        """Cancel a task. If another gateway executes it, that one decides."""
        shot = await self.load(caller, id)
        if shot.is_final:
            raise WrongState(f"task {id} is {shot.state}")
        if shot.question is not None:
            # No turn is open on the fabric.
            await self._records.note_end(id, CANCELLED)
            self._wake(id)
            return await self.load(caller, id)
        fabric_id = shot.turns[-1].fabric_id
        await self._services.perform(caller.door, TaskCancel(task_id=fabric_id))
        await self._show(caller, fabric_id, _CANCEL_SECS)
        return await self.load(caller, id)

    async def list_records(self, caller: A2aCaller, context: str) -> list[TaskRecord]:
        if caller.is_anonymous:
            raise Forbidden("callers without a token see only tasks whose id they know")
        return await self._records.list_tasks(caller.key, context)


def turn_id(task: str, number: int) -> str:
    """The id of a turn's task on the fabric; that of the first is the task's own."""
    if number == 1:
        return task
    id = parse_event_id(task)
    digits = sha256(id + number.to_bytes(4, "big")).hexdigest()
    return format_event_id(bytes.fromhex(f"{id[:6].hex()}7{digits[:3]}8{digits[3:18]}"))


def _begun_at(task: TaskRecord) -> int:
    return int.from_bytes(parse_event_id(task.id)[:6], "big")


def _build_input(
    task: TaskRecord, before: list[TurnRecord], draft: MessageDraft
) -> Raw | UnsetType:
    """The input of a turn. Later ones bring what was said before, since each task stands alone."""
    if not before:
        return draft.input
    said = [{"message": Raw(turn.message), "question": turn.question} for turn in before]
    input = None if isinstance(draft.input, UnsetType) else draft.input
    return Raw(encode_json({"task_id": task.id, "before": said, "input": input}))


def _unknown(id: str) -> UnknownTask:
    return UnknownTask(f"no task {id[:64]!r}")
