"""Carries the mail of one agent elsewhere: takes it, sends it, follows its task, ends the turn.

The mail is leased for as long as the agent works on it. What the agent has taken is recorded, so
that after a restart of the gateway the courier goes on with that task and sends nothing again. In
between, the same mail may be sent twice: with the same messageId, by which the agent can tell.
While the agent is away no mail is taken, and so none loses an attempt.
"""

import asyncio
import contextlib
import logging
from typing import Any

import msgspec
from a2a.types import a2a_pb2 as pb
from msgspec import UNSET, Raw, Struct, UnsetType

from gatepost.a2a.door_records import DoorRecords, OutsideAgent, OutsideTurn
from gatepost.a2a.json_text import encode_json
from gatepost.a2a.outside.outside_client import (
    OutsideAway,
    OutsideClient,
    OutsideRefused,
    OutsideTaskLost,
)
from gatepost.a2a.task_events import ask_for_input, draft_message, read_outcome, read_parts
from gatepost.errors import Forbidden, GatepostError, UnknownTask, WrongState, error_from_code
from gatepost.gateway.doors import DoorServices
from gatepost.wire.operations import (
    Ack,
    Dequeue,
    EventInfo,
    Extend,
    LeasedMessage,
    Messages,
    Nack,
    Settled,
)
from gatepost.wire.tasks import TaskAwait, TaskAwaited, TaskReport, TaskReports, TasksReported

log = logging.getLogger(__name__)

_MAX_TURNS = 32
_TAKE_SECS = 20.0
_FIRST_POLL_SECS, _LAST_POLL_SECS = 0.1, 3.0
# A task whose executor is silent for longer fails.
_BEAT_SECS = 10.0
_RETRY_SECS = 2.0
_FIRST_PAUSE_SECS, _LAST_PAUSE_SECS = 0.5, 30.0
_KEEP_SECS = 7 * 86_400.0
_MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
_S = pb.TaskState
_FAILED = (_S.TASK_STATE_FAILED, _S.TASK_STATE_CANCELED, _S.TASK_STATE_REJECTED)
_ASKS = (_S.TASK_STATE_INPUT_REQUIRED, _S.TASK_STATE_AUTH_REQUIRED)

# Why a report does not count: the task has ended, or is not this agent's any more.
_HAS_ENDED = (WrongState, UnknownTask, Forbidden)

_event_decoder = msgspec.json.Decoder(EventInfo)


class _Request(Struct):
    """The payload of mail that brings a task."""

    description: str = ""
    input: Any = UNSET


class _Failure(Exception):
    """The turn fails, and is not tried again."""


class _EndedElsewhere(Exception):
    """The task has ended without its executor: it was cancelled, or is another's now."""


class Courier:
    def __init__(self, services: DoorServices, records: DoorRecords, agent: OutsideAgent) -> None:
        self._services = services
        self._records = records
        self._agent = agent
        self._caller = services.local_caller(agent.name, is_operator=False)
        self._client = OutsideClient(agent)
        self._places = asyncio.Semaphore(_MAX_TURNS)
        # Message → its latest lease handle. What is here is being carried.
        self._handles: dict[str, str] = {}
        self._lease_secs = 30.0
        self._is_away = True
        self._pause = _FIRST_PAUSE_SECS
        self._turns: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        keeping = asyncio.create_task(self._keep_leases())
        try:
            await self._services.register(self._caller)
            await self._forget_old_turns()
            for turn in await self._records.list_outside_turns(self._agent.name):
                if turn.fabric_task:
                    self._spawn(self._resume_task(turn))
            while True:
                await self._take_mail()
        finally:
            running = [keeping, *self._turns]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._client.close()

    async def _forget_old_turns(self) -> None:
        """Forget turns whose mail has ended without their courier, such as mail that was purged."""
        secs = self._services.settings.a2a.outside_deadline_secs
        oldest = self._services.clock.now() - int((secs + _KEEP_SECS) * 1000)
        await self._records.remove_outside_turns_before(self._agent.name, oldest)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._turns.add(task)
        task.add_done_callback(self._turns.discard)

    async def _take_mail(self) -> None:
        if self._is_away and not await self._reach():
            return
        async with self._places:
            pass  # There is room for another turn.
        try:
            op = Dequeue(mailbox=self._agent.name, wait_secs=_TAKE_SECS)
            taken: Messages = await self._perform(op)
        except GatepostError as error:
            log.warning("mail of %s cannot be taken: %s", self._agent.name, error.message)
            await asyncio.sleep(1.0)
            return
        if self._services.waits.is_stopping:
            await asyncio.Event().wait()
        for mail in taken.messages:
            self._lease_secs = mail.lease_secs or self._lease_secs
            is_new = mail.msg_id not in self._handles
            self._handles[mail.msg_id] = mail.receipt
            if is_new:
                await self._places.acquire()
                self._spawn(self._carry(mail))

    async def _reach(self) -> bool:
        """Whether the agent answers; a pause before that grows with each failure."""
        try:
            await self._client.connect()
        except OutsideAway as error:
            log.warning("agent %s is away: %s", self._agent.name, error)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, _LAST_PAUSE_SECS)
            return False
        self._is_away, self._pause = False, _FIRST_PAUSE_SECS
        return True

    async def _perform(self, op: Any) -> Any:
        return await self._services.perform(self._caller, op)

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(min(8.0, self._lease_secs / 3))
            if not self._handles:
                continue
            op = Extend(mailbox=self._agent.name, receipts=list(self._handles.values()))
            with contextlib.suppress(GatepostError):
                await self._perform(op)

    # -- one turn

    async def _carry(self, mail: LeasedMessage) -> None:
        try:
            await self._carry_mail(mail)
        except OutsideAway as error:
            self._is_away = True
            await self._nack(mail, f"{self._agent.name} is away: {error}", retry=True)
        except OutsideTaskLost:
            await self._records.remove_outside_turn(self._agent.name, mail.msg_id)
            await self._nack(mail, f"{self._agent.name} has lost its task", retry=True)
        except (_Failure, OutsideRefused) as error:
            await self._nack(mail, str(error), retry=False)
        except GatepostError as error:
            log.warning("a turn of %s did not end: %s", self._agent.name, error.message)
        except Exception:
            log.exception("a turn of %s failed unexpectedly", self._agent.name)
        finally:
            self._handles.pop(mail.msg_id, None)
            self._places.release()

    async def _carry_mail(self, mail: LeasedMessage) -> None:
        event = None if isinstance(mail.event, UnsetType) else _event_decoder.decode(mail.event)
        kind = "message" if event is None else event.kind
        if kind == "task_create":
            await self._carry_task(mail, event)
        elif kind == "message":
            await self._carry_message(mail, event)
        else:
            # An agent elsewhere sends nothing here, so it waits for no answer.
            await self._settle(mail, Ack(mailbox=self._agent.name))

    async def _carry_message(self, mail: LeasedMessage, event: EventInfo | None) -> None:
        now, conversation = self._services.clock.now(), "" if event is None else event.corr_id
        turn = await self._records.find_outside_turn(self._agent.name, mail.msg_id)
        if turn is None:
            value = await self._read_payload(mail, event)
            text, data = (value, UNSET) if isinstance(value, str) else ("", value)
            message = draft_message(mail.msg_id, text, data, {"sender": mail.from_})
            await self._continue_conversation(message, mail.from_, conversation)
            answer = await self._client.send(message)
            if isinstance(answer, pb.Message):
                await self._reply(mail, read_parts(answer.parts))
                return
            turn = self._record_of(mail, answer, "", now)
            await self._records.add_outside_turn(turn)
        task = await self._follow(turn)
        await self._note_conversation(mail.from_, conversation, task)
        if task.status.state in _FAILED:
            raise _Failure(_why_failed(self._agent.name, task))
        result = ask_for_input(task) if task.status.state in _ASKS else read_outcome(task)
        await self._reply(mail, result)

    async def _continue_conversation(
        self, message: pb.Message, sender: str, conversation: str
    ) -> None:
        """Answer the task that waits for this sender, or go on in the context of before."""
        if not conversation:
            return
        known = await self._records.find_conversation(self._agent.name, sender, conversation)
        if known is not None:
            message.task_id, message.context_id = known

    async def _note_conversation(self, sender: str, conversation: str, task: pb.Task) -> None:
        if not conversation:
            return
        waiting = task.id if task.status.state in _ASKS else ""
        key = (self._agent.name, sender, conversation)
        now = self._services.clock.now()
        await self._records.note_conversation(*key, (waiting, task.context_id), now)

    def _record_of(
        self, mail: LeasedMessage, task: pb.Task, fabric_task: str, now: int
    ) -> OutsideTurn:
        ids = (self._agent.name, mail.msg_id, task.id, task.context_id)
        return OutsideTurn(*ids, fabric_task, now)

    async def _follow(self, turn: OutsideTurn) -> pb.Task:
        """The task once it has ended or asks; _Failure at its deadline. The agent may be away."""
        pause = _FIRST_POLL_SECS
        while True:
            with contextlib.suppress(OutsideAway):
                task = await self._client.get_task(turn.remote_task)
                if task.status.state in (*_FAILED, *_ASKS, _S.TASK_STATE_COMPLETED):
                    return task
            await self._check_deadline(turn)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_POLL_SECS)

    async def _check_deadline(self, turn: OutsideTurn) -> None:
        secs = self._services.settings.a2a.outside_deadline_secs
        if self._services.clock.now() < turn.begun_at + secs * 1000:
            return
        with contextlib.suppress(OutsideAway, OutsideRefused, OutsideTaskLost):
            await self._client.cancel_task(turn.remote_task)
        raise _Failure(f"{self._agent.name} did not end its task within {secs:g} s")

    async def _read_payload(self, mail: LeasedMessage, event: EventInfo | None) -> Any:
        raw = bytes(mail.payload)
        if event is not None and event.payload_ref is not None:
            raw = b""
            async for piece in await self._services.read_blob(self._caller, event.payload_ref):
                raw += piece
                if len(raw) > _MAX_PAYLOAD_BYTES:
                    raise _Failure(f"the payload is too large for {self._agent.name}")
        try:
            return msgspec.json.decode(raw)
        except msgspec.MsgspecError:
            raise _Failure("the payload is not JSON, and A2A carries no other here") from None

    # -- ends

    async def _reply(self, mail: LeasedMessage, result: Any) -> None:
        op = Ack(mailbox=self._agent.name)
        if result is not None:
            op.replies = {"": Raw(encode_json(result))}
        await self._settle(mail, op)

    async def _nack(self, mail: LeasedMessage, reason: str, *, retry: bool) -> None:
        op = Nack(mailbox=self._agent.name, reason=reason[:2000], retry=retry)
        with contextlib.suppress(GatepostError):
            await self._settle(mail, op)

    async def _settle(self, mail: LeasedMessage, op: Ack | Nack) -> None:
        """End the turn with the latest lease of its mail, and then forget what was recorded."""
        handle = self._handles.get(mail.msg_id, mail.receipt)
        op.receipts = [handle]
        if isinstance(op, Ack) and op.replies:
            op.replies = {handle: op.replies[""]}
        settled: Settled = await self._perform(op)
        for failure in settled.failures:
            log.warning("a turn of %s: %s", self._agent.name, failure.message)
        if not settled.failures and not (isinstance(op, Nack) and op.retry):
            await self._records.remove_outside_turn(self._agent.name, mail.msg_id)

    # -- tasks

    async def _carry_task(self, mail: LeasedMessage, event: EventInfo | None) -> None:
        turn = await self._records.find_outside_turn(self._agent.name, mail.msg_id)
        if turn is None:
            answer = await self._client.send(await self._draft_task(mail, event))
            if isinstance(answer, pb.Message):
                with contextlib.suppress(_EndedElsewhere):
                    await self._accept(mail)
                    await self._end_task(mail.msg_id, read_parts(answer.parts))
                return
            turn = self._record_of(mail, answer, mail.msg_id, self._services.clock.now())
            await self._records.add_outside_turn(turn)
        # The agent has the task, and so it is accepted; this settles the mail. If the task has
        # ended meanwhile, its first report says so again, and the agent is told.
        with contextlib.suppress(_EndedElsewhere):
            await self._accept(mail)
        self._spawn(self._resume_task(turn))

    async def _draft_task(self, mail: LeasedMessage, event: EventInfo | None) -> pb.Message:
        value = await self._read_payload(mail, event)
        try:
            given = msgspec.convert(value, _Request)
        except msgspec.ValidationError:
            raise _Failure("this is no task") from None
        metadata = {"sender": mail.from_, "task": mail.msg_id}
        return draft_message(mail.msg_id, given.description, given.input, metadata)

    async def _accept(self, mail: LeasedMessage) -> None:
        handle = self._handles.get(mail.msg_id, mail.receipt)
        await self._report(mail.msg_id, "accept", receipt=handle)

    async def _resume_task(self, turn: OutsideTurn) -> None:
        """Follow a task to its end, whatever the gateway refuses for a while."""
        while True:
            try:
                if await self._follow_to_end(turn):
                    await self._records.remove_outside_turn(turn.agent, turn.msg_id)
                return
            except GatepostError as error:
                log.warning("task %s waits: %s", turn.fabric_task, error.message)
            except Exception:
                log.exception("task %s failed unexpectedly", turn.fabric_task)
            await asyncio.sleep(_RETRY_SECS)

    async def _follow_to_end(self, turn: OutsideTurn) -> bool:
        """Whether the task has ended; if not, its mail comes again."""
        try:
            await self._follow_task(turn)
        except (_Failure, OutsideTaskLost, OutsideRefused) as error:
            await self._fail_task(turn, "failed", str(error))
        except _EndedElsewhere:
            if await self._is_pending(turn.fabric_task):
                # The gateway ended before the task was accepted.
                return False
            with contextlib.suppress(OutsideAway, OutsideRefused, OutsideTaskLost):
                await self._client.cancel_task(turn.remote_task)
        return True

    async def _is_pending(self, id: str) -> bool:
        try:
            answer: TaskAwaited = await self._perform(TaskAwait(task_id=id, wait_secs=0))
        except GatepostError:
            return False
        return answer.task.state == "pending"

    async def _follow_task(self, turn: OutsideTurn) -> None:
        loop = asyncio.get_running_loop()
        pause, note, beat_at = _FIRST_POLL_SECS, "", loop.time()
        while True:
            task = None
            with contextlib.suppress(OutsideAway):
                task = await self._client.get_task(turn.remote_task)
            if task is not None and task.status.state in (*_FAILED, *_ASKS):
                await self._end_badly(turn, task)
                return
            if task is not None and task.status.state == _S.TASK_STATE_COMPLETED:
                await self._end_task(turn.fabric_task, read_outcome(task))
                return
            said = "" if task is None else str(read_parts(task.status.message.parts) or "")[:2000]
            if said != note or loop.time() >= beat_at:
                await self._report(turn.fabric_task, "update", note=said or UNSET)
                note, beat_at = said, loop.time() + _BEAT_SECS
            await self._check_deadline(turn)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_POLL_SECS)
            if self._is_away:
                # After a restart, the card has to be read before the first call.
                await self._reach()

    async def _end_badly(self, turn: OutsideTurn, task: pb.Task) -> None:
        if task.status.state in _ASKS:
            await self._end_task(turn.fabric_task, ask_for_input(task))
            return
        is_rejected = task.status.state == _S.TASK_STATE_REJECTED
        code = "rejected" if is_rejected else "failed"
        await self._fail_task(turn, code, _why_failed(self._agent.name, task))

    async def _end_task(self, id: str, result: Any) -> None:
        raw = Raw(encode_json("" if result is None else result))
        await self._report(id, "complete", result=raw)

    async def _fail_task(self, turn: OutsideTurn, code: str, error: str) -> None:
        with contextlib.suppress(_EndedElsewhere):
            await self._report(turn.fabric_task, "fail", error_code=code, error=error[:2000])

    async def _report(self, id: str, action: Any, **fields: Any) -> None:
        report = TaskReport(id, self._agent.name, action, **fields)
        answer: TasksReported = await self._perform(TaskReports(reports=[report]))
        for refused in answer.refused:
            log.info("%s of task %s: %s", action, id, refused.error)
            error = error_from_code(refused.code, refused.error)
            raise _EndedElsewhere if isinstance(error, _HAS_ENDED) else error


def _why_failed(agent: str, task: pb.Task) -> str:
    said = read_outcome(task)
    state = _S.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    return f"{agent}: {state}: {said}" if said else f"{agent}: {state}"
