"""The users of tasks in a simulated mesh: creators, agents that work on tasks, and sessions.

They note the answers they get, for that is all that anybody knows of a task.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from gatepost.delivery.blob_records import keep_uploaded_blob
from gatepost.errors import GatepostError, InvalidRequest, PayloadTooLarge, StorageFailed
from gatepost.events import fingerprint_content
from gatepost.journal import Tx
from gatepost.journal.transaction import try_operation
from gatepost.tasks import sessions
from gatepost.tasks.policy import Operator
from gatepost.tasks.session_runtime import SessionExit, SessionHandle
from gatepost.tasks.session_states import SessionState
from gatepost.tasks.session_tasks import ClaimedTask, SessionTasks
from gatepost.tasks.sessions import Session
from gatepost.tasks.task_request import RequestContent, encode_request
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task, TaskPayload
from gatepost.wire.tasks import NewTask, TaskReport
from simulation.gateways.blob_files import SimulatedBlobFiles
from simulation.gateways.gateway import SimulatedGateway
from simulation.history import ObservedTask, ObservedWork

_RECONNECT_MS = 300
# Longer than any fault but the loss of a gateway.
_PATIENCE = 200
_EXITED, _LOST = SessionExit("exited", 0), SessionExit("lost")
# What a session leaves in place of a result, and what reading that gives. To judge a result that is
# nested too deeply raises an error.
LeftResult = Literal["fine", "deep", "undecodable", "huge", "absent"]
_LEFT: tuple[LeftResult, ...] = ("fine", "deep", "undecodable", "huge", "absent")
_RESULTS: dict[LeftResult, TaskPayload | GatepostError | None] = {
    "fine": TaskPayload(result=b"1", mark=fingerprint_content(b"1")),
    "undecodable": InvalidRequest("its result file cannot be used"),
    "huge": PayloadTooLarge("its result has too many bytes"),
    "absent": None,
}


class WorkManners(Struct, frozen=True):
    """How executors work: how often they fail, vanish, contradict themselves, or have much to say.

    Of the sessions that run while their gateway loses power, `orphaned` end with it. As many as
    `bad_end` exit without a report, and leave something in place of their result.
    """

    launch_ms: tuple[int, int] = (1, 300)
    steps: tuple[int, int] = (0, 3)
    step_ms: tuple[int, int] = (20, 2_000)
    fail: float = 0.1
    vanish: float = 0.1
    contradict: float = 0.15
    large_result: float = 0.15
    orphaned: float = 0.3
    bad_end: float = 0.25


class PatientCall:
    """One operation at a gateway, repeated until there is an answer that is not `storage_failed`.

    `done` gets the answer; nobody is told if there never is one.
    """

    def __init__(
        self,
        gateway: SimulatedGateway,
        operation: Callable[[Tx], Any],
        done: Callable[[Any, GatepostError | None], None],
    ) -> None:
        self._gateway = gateway
        self._operation = operation
        self._done = done
        self._patience = _PATIENCE

    def submit(self) -> None:
        self._gateway.submit(self._operation, self._take_answer, self._try_again)

    def _take_answer(self, value: Any, error: GatepostError | None) -> None:
        if isinstance(error, StorageFailed):
            self._try_again()
        else:
            self._done(value, error)

    def _try_again(self) -> None:
        self._patience -= 1
        if self._patience and not self._gateway.destroyed:
            self._gateway.loop.call_after(_RECONNECT_MS, self.submit)


class SimulatedCreator:
    """Creates one task, and perhaps cancels it later."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        seen: ObservedTask,
        files: SimulatedBlobFiles,
        large_bytes: int = 0,
        by: Operator | None = None,
        **fields: Any,
    ) -> None:
        self._gateway = gateway
        self._by = by
        self.seen = seen
        self._files = files
        self._is_large = large_bytes > 0
        given = Raw(msgspec.json.encode({"n": seen.key, "x": "x" * large_bytes}))
        self._new = NewTask(
            seen.requester, "simulated", to_agents=[seen.agent], input=given,
            idempotency_key=seen.key, **fields,
        )  # fmt: skip
        self._patience = _PATIENCE

    def create(self) -> None:
        """Create the task. A large request is stored before, as the gateway does it."""
        payload = encode_request(self._new)
        mark = fingerprint_content(payload)
        if not self._is_large:
            self._submit(RequestContent(mark, payload))
            return
        try:
            if not self._gateway.up:
                raise StorageFailed("it is down")
            blob, key = self._files.write_blob(payload)
        except GatepostError:
            self._patience -= 1
            if self._patience and not self._gateway.destroyed:
                self._gateway.loop.call_after(_RECONNECT_MS, self.create)
            return
        content = RequestContent(mark, digest=blob.digest)
        keep = PatientCall(
            self._gateway,
            lambda tx: keep_uploaded_blob(tx, blob, key),
            lambda value, error: None if error else self._submit(content),
        )
        keep.submit()

    def _submit(self, content: RequestContent) -> None:
        gateway = self._gateway
        PatientCall(
            gateway,
            lambda tx: gateway.hub.engine.requested.create_tasks(tx, self._new, content, self._by),
            self._note_answer,
        ).submit()

    def _note_answer(self, made: list[Task], error: GatepostError | None) -> None:
        if error is None:
            self.seen.task_id, self.seen.result = made[0].id, "acknowledged"
        else:
            self.seen.result = f"refused: {error.code}"

    def cancel(self) -> None:
        if not self.seen.task_id:
            return
        gateway, id = self._gateway, self.seen.task_id
        PatientCall(
            gateway,
            lambda tx: gateway.hub.engine.cancel_task(tx, id, "simulated"),
            self._note_cancelled,
        ).submit()

    def _note_cancelled(self, task: Task, error: GatepostError | None) -> None:
        self.seen.cancel = "acknowledged" if error is None else f"refused: {error.code}"


class SimulatedWork:
    """The work on one task that was accepted: some updates, then an end, or nothing more.

    It goes on while its gateway is down, and reports when that is back.
    """

    def __init__(
        self,
        gateway: SimulatedGateway,
        files: SimulatedBlobFiles,
        manners: WorkManners,
        random: Random,
        seen: ObservedWork,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_gone` is called if whoever does the work dies without a report."""
        self._gateway = gateway
        self._files = files
        self._manners = manners
        self._random = random
        self.seen = seen
        self._on_gone = on_gone
        self.started = self.ended = False
        self._steps = random.randint(*manners.steps)
        luck = random.random()
        self.vanishes = luck < manners.vanish
        self._fails = manners.vanish <= luck < manners.vanish + manners.fail
        self._contradicts = random.random() < manners.contradict
        is_large = random.random() < manners.large_result
        self._large_bytes = random.randint(1, 3_000) if is_large else 0

    def go_on(self) -> None:
        """Do the next step after a while."""
        self.started = True
        self._gateway.loop.call_after(self._random.randint(*self._manners.step_ms), self._step)

    def abandon(self) -> None:
        """Whoever does the work is gone."""
        self.ended = True

    def _step(self) -> None:
        if self.ended:
            return
        if self._steps:
            self._steps -= 1
            self._report("update", self._take_update, progress=0.5, note="simulated")
        elif self.vanishes:
            self.ended = True
        elif self._fails:
            self._report("fail", self._take_failure, error_code="simulated", error="sorry")
        else:
            self._complete(self._result(""), self._take_completion)

    def _result(self, suffix: str) -> bytes:
        filler = "x" * self._large_bytes
        return msgspec.json.encode({"of": self.seen.task_id + suffix, "x": filler})

    def _report(self, action: Any, done: Callable[..., None], **fields: Any) -> None:
        gateway, seen = self._gateway, self.seen
        report = TaskReport(seen.task_id, seen.agent, action, **fields)

        def apply(tx: Tx) -> Task:
            (task,) = gateway.hub.engine.reports.apply_reports(tx, [report])
            return task

        PatientCall(gateway, apply, done).submit()

    def _take_update(self, task: Task, error: GatepostError | None) -> None:
        if error is None:
            self.go_on()
        else:
            self.ended = True

    def _take_failure(self, task: Task, error: GatepostError | None) -> None:
        self.ended = True
        if error is None:
            self.seen.outcome, self.seen.code = "failed", "simulated"

    def _complete(self, result: bytes, done: Callable[..., None]) -> None:
        if not self._large_bytes:
            self._report("complete", partial(done, result), result=Raw(result))
            return
        try:
            if not self._gateway.up:
                raise StorageFailed("it is down")
            blob, key = self._files.write_blob(result)
        except GatepostError:
            self.ended = True  # As an agent that cannot upload its result, and dies.
            self._on_gone()
            return

        def stored(value: Any, error: GatepostError | None) -> None:
            if error is None:
                self._report("complete", partial(done, result), result_ref=blob.digest)

        PatientCall(self._gateway, lambda tx: keep_uploaded_blob(tx, blob, key), stored).submit()

    def _take_completion(self, result: bytes, task: Task, error: GatepostError | None) -> None:
        self.ended = True
        if error is not None:
            return
        self.seen.outcome, self.seen.result = "completed", sha256(result).hexdigest()
        if self._contradicts:
            self._complete(self._result("again"), self._take_contradiction)

    def _take_contradiction(self, result: bytes, task: Task, error: GatepostError | None) -> None:
        """A second result may be refused; nobody may take it for the first."""
        self.seen.contradicted = error is None


class SilentAgent:
    """An agent that accepts its tasks and says nothing more, until it is removed.

    While its gateway is down its calls wait, in their order: it is not removed before it began.
    """

    def __init__(self, gateway: SimulatedGateway, name: str) -> None:
        self._gateway = gateway
        self._name = name
        # The first of them is under way.
        self._calls: deque[PatientCall] = deque()
        self._call(lambda tx: gateway.agents.register(tx, name))

    def accept_tasks(self) -> None:
        self._call(self._accept_all)

    def remove(self) -> None:
        """Nothing waits for it then, so all that is left are the tasks it works on."""

        def remove(tx: Tx) -> None:
            self._accept_all(tx)
            self._gateway.agents.remove(tx, self._name, "simulation")

        self._call(remove)

    def _call(self, operation: Callable[[Tx], object]) -> None:
        self._calls.append(PatientCall(self._gateway, operation, self._call_next))
        if len(self._calls) == 1:
            self._calls[0].submit()

    def _call_next(self, value: object, error: GatepostError | None) -> None:
        self._calls.popleft()
        if self._calls:
            self._calls[0].submit()

    def _accept_all(self, tx: Tx) -> None:
        gateway, name = self._gateway, self._name
        for mail in gateway.dispatcher.dequeue(tx, name, "silent", 1_000):
            report = TaskReport(mail.msg_id, name, "accept", mail.receipt)
            apply = partial(gateway.hub.engine.reports.apply_reports, reports=[report])
            if try_operation(tx, apply)[1] is not None:
                # It was cancelled.
                gateway.coordinator.ack(tx, name, [mail.receipt], [], {})


class SimulatedSessions:
    """The sessions of one gateway. They outlive its process; some end while it is down."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        files: SimulatedBlobFiles,
        manners: WorkManners,
        seed: int,
        note: Callable[[ObservedWork], None],
    ) -> None:
        self._gateway = gateway
        self._files = files
        self._manners = manners
        self._random = Random(f"{seed}/{gateway.id}/sessions")
        self._note = note
        # Task → its claim, and the work on it.
        self._claimed: dict[str, ClaimedTask] = {}
        # One claim at a time, as in the hub's service.
        self._is_claiming = self._looks_again = False
        self._ended_meanwhile: set[str] = set()
        self._works: dict[str, SimulatedWork] = {}
        # Names of the sessions that were launched: their folders, which stay.
        self._launched: set[str] = set()
        # Name → what an exited session left in place of its result, until that is judged.
        self._left: dict[str, LeftResult] = {}
        self._gone: dict[str, ObservedWork] = {}
        self._ends = Random(f"{seed}/{gateway.id}/ends")
        gateway.on_up.append(self._recover)
        gateway.on_down.append(self._lose_some)
        gateway.hub.listeners.append(self._note_change)

    @property
    def _max_sessions(self) -> int:
        settings = self._gateway.settings.hub
        return settings.max_sessions if settings is not None else 0

    @property
    def _records(self) -> SessionTasks:
        return self._gateway.hub.engine.session_tasks

    def _note_change(self, task: Task) -> None:
        if task.has_ended and task.id in self._claimed:
            self._release(task.id, self._claimed.pop(task.id).session_name)
        elif task.has_ended and task.id in self._works:
            work = self._works.pop(task.id)
            work.abandon()
            self._note_ended(task.id, work.seen.session)
            self._look_for_tasks()
        elif task.has_ended and self._is_claiming:
            self._ended_meanwhile.add(task.id)
        elif task.executor == "session" and task.state is TaskState.PENDING:
            self._look_for_tasks()

    def _look_for_tasks(self) -> None:
        self._launch_claimed()
        wanted = 2 * self._max_sessions - len(self._works) - len(self._claimed)
        self._looks_again = self._is_claiming
        if wanted > 0 and not self._is_claiming:
            self._is_claiming = True
            self._gateway.submit(partial(self._claim_tasks, wanted), self._take_claims)

    def _claim_tasks(self, capacity: int, tx: Tx) -> list[ClaimedTask]:
        return self._records.claim_tasks(tx, capacity)

    def _take_claims(self, claimed: list[ClaimedTask] | None, error: GatepostError | None) -> None:
        self._is_claiming = False
        if error is not None:
            self._gateway.loop.call_after(_RECONNECT_MS, self._look_for_tasks)
        for each in claimed or ():
            self._claimed[each.task.id] = each
        for id in sorted(self._claimed.keys() & self._ended_meanwhile):
            self._release(id, self._claimed.pop(id).session_name)
        self._ended_meanwhile.clear()
        self._launch_claimed()
        if self._looks_again:
            self._look_for_tasks()

    def _launch_claimed(self) -> None:
        while self._gateway.up and self._claimed and len(self._works) < self._max_sessions:
            id = next(iter(self._claimed))
            self._launch(id, self._claimed.pop(id))

    def _launch(self, id: str, claimed: ClaimedTask) -> None:
        name, now = claimed.session_name, self._gateway.loop.now
        self._launched.add(name)
        seen = ObservedWork(self._gateway.id, claimed.task.agent, id, now, session=name)
        self._note(seen)
        work = SimulatedWork(
            self._gateway, self._files, self._manners, self._random, seen,
            partial(self._end_lost, id),
        )  # fmt: skip
        self._works[id] = work
        if work.vanishes:
            self._gateway.loop.call_after(8_000, partial(self._end_hanging, id))
        launch_ms = self._random.randint(*self._manners.launch_ms)
        self._gateway.loop.call_after(launch_ms, partial(self._note_start, claimed, work))

    def _note_start(self, claimed: ClaimedTask, work: SimulatedWork) -> None:
        """A session runs now, unless its gateway crashed meanwhile."""
        handle = SessionHandle(claimed.session_name, {})
        if not work.ended:
            self._gateway.submit(
                lambda tx: self._records.note_started(tx, claimed, handle),
                partial(self._follow_work, work),
            )

    def _follow_work(self, work: SimulatedWork, value: object, error: GatepostError | None) -> None:
        if error is None and self._ends.random() < self._manners.bad_end:
            work.started = True
            exit_ms = self._ends.randint(*self._manners.step_ms)
            self._gateway.loop.call_after(exit_ms, partial(self._exit, work))
        elif error is None:
            work.go_on()
        else:
            self._end_lost(work.seen.task_id)

    # -- sessions that exit without a report

    def _exit(self, work: SimulatedWork) -> None:
        """A session exits, whether its gateway is up or not."""
        id, name = work.seen.task_id, work.seen.session
        if self._works.get(id) is not work or work.ended:
            return
        del self._works[id]
        work.abandon()
        self._left[name] = self._ends.choice(_LEFT)
        self._gone[name] = work.seen
        if self._gateway.up:
            self._record_exit(id, name)

    def _record_exit(self, id: str, name: str) -> None:
        """Record the end, and judge what was left behind some time later."""
        PatientCall(
            self._gateway,
            lambda tx: self._records.record_end(tx, id, name, _EXITED),
            partial(self._note_gone, name),
        ).submit()
        judge_ms = self._ends.randint(1, 1_000)
        self._gateway.loop.call_after(judge_ms, partial(self._judge, id, name))

    def _note_gone(self, name: str, value: object, error: GatepostError | None) -> None:
        if error is None:
            self._gone[name].is_gone = True
        self._look_for_tasks()

    def _judge(self, id: str, name: str) -> None:
        left = self._left.get(name)
        if left is not None:
            self._settle(id, name, left, partial(self._take_verdict, id, name))

    def _settle(
        self, id: str, name: str, left: "LeftResult", done: Callable[[Any, Any], None]
    ) -> None:
        def settle(tx: Tx) -> None:
            if left == "deep":
                raise InvalidRequest("judging it raised an error")
            self._records.settle_task(tx, id, name, _EXITED, _RESULTS[left], "")

        PatientCall(self._gateway, settle, done).submit()

    def _take_verdict(self, id: str, name: str, value: object, error: GatepostError | None) -> None:
        """What cannot be judged fails the task."""
        if error is None:
            self._left.pop(name, None)
        elif self._left.get(name) != "undecodable":
            self._left[name] = "undecodable"
            self._judge(id, name)

    # -- sessions that do not end by themselves

    def _end_hanging(self, id: str) -> None:
        """A session that hangs is ended at its time limit."""
        if id in self._works:
            self._end_lost(id)

    def _end_lost(self, id: str) -> None:
        work = self._works.pop(id, None)
        if work is not None:
            work.abandon()
            self._lose(id, work.seen.session)

    def _lose(self, id: str, name: str) -> None:
        """As the hub does it: the end is recorded before its task ends, whatever that meets."""
        self._record(lambda tx: self._records.record_end(tx, id, name, _LOST))
        self._record(
            lambda tx: self._records.settle_task(tx, id, name, _LOST, None, "its session was lost")
        )

    def _release(self, id: str, name: str) -> None:
        self._record(lambda tx: self._records.release_claim(tx, id, name))

    def _note_ended(self, id: str, name: str) -> None:
        ended = SessionExit("exited", 0)
        self._record(lambda tx: self._records.settle_task(tx, id, name, ended, None, ""))

    def _record(self, operation: Callable[[Tx], None]) -> None:
        PatientCall(self._gateway, operation, lambda value, error: self._look_for_tasks()).submit()

    # -- power cuts

    def _lose_some(self) -> None:
        self._claimed.clear()
        self._is_claiming = False
        for id, work in list(self._works.items()):
            if not work.started or self._random.random() < self._manners.orphaned:
                self._works.pop(id).abandon()

    def _recover(self) -> None:
        """Follow the sessions that still run, and give up all others."""
        known = sessions.open_sessions(Tx(self._gateway.connection, self._gateway.loop.now))
        for session in known:
            if session.name in self._left:
                self._record_exit(session.task_id, session.name)
            elif session.task_id not in self._works:
                self._give_up(session)
        for id in sorted(self._works.keys() - {session.task_id for session in known}):
            self._works.pop(id).abandon()  # Restored from a backup that does not know it.
        self._look_for_tasks()

    def _give_up(self, session: Session) -> None:
        is_claim = session.state is SessionState.CLAIMED
        if is_claim and session.name not in self._launched:
            self._release(session.task_id, session.name)
        else:
            self._lose(session.task_id, session.name)
