"""The rules of tasks: each has one end, and its creator is told what really happened."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec
from msgspec import Struct, field

from gatepost.errors import InvalidRequest, TaskQueueFull
from gatepost.events.reserved_names import GATEWAY
from simulation.history.histories import CheckedMesh
from simulation.history.journals import GatewayJournal, JournalEvent, JournalTask
from simulation.history.verdict import HistoryViolation, ObservedWait

# Ends that the creator's gateway decides if it hears nothing from an executor.
_UNHEARD = ("executor_lost", "expired", "undeliverable", "rejected")
# A task ends this long after everything healed; later only if a gateway never came back.
_BOUND_MS = 240_000
_LOST_BOUND_MS = 960_000
# Requests to one gateway for one skill, however it answers.
_MAX_SKILL_REQUESTS = 6
# Skills of one gateway at another, and what an honest one has.
_MAX_OFFERS = 100
_FEW_SKILLS = 10
# Sessions that another source can have more than the source of a task that waits: those that run or
# are claimed when the task arrives, and a few turns that start anew after a crash.
_MAX_PASSED_BY = 10
_FEW_TASKS = 10


class _PublicPart(Struct, rename="camel"):
    failure_class: str = ""


class _ReportBody(Struct):
    task: _PublicPart = field(default_factory=_PublicPart)


class TaskHistory(Struct):
    """A task at its creator's gateway, and as (node, task) at every gateway that dealt with it."""

    node: str
    task: JournalTask
    executions: list[tuple[str, JournalTask]] = field(default_factory=list)
    relays: list[tuple[str, JournalTask]] = field(default_factory=list)

    def involves(self, nodes: set[str]) -> bool:
        others = {node for node, _ in self.executions + self.relays}
        others.add(self.task.executor_node or self.node)
        return self.node in nodes or not nodes.isdisjoint(others)


def _collect_tasks(mesh: CheckedMesh) -> list[TaskHistory]:
    originals: dict[str, str] = {}
    for journal in mesh.journals.values():
        originals.update(journal.forwards)

    def root_of(id: str) -> str:
        while id in originals:
            id = originals[id]
        return id

    found = {
        id: TaskHistory(journal.node, task)
        for journal in mesh.journals.values()
        for id, task in journal.tasks.items()
        if task.requester_node is None
    }
    for journal in mesh.journals.values():
        for id, task in journal.tasks.items():
            history = found.get(root_of(id))
            if history is not None and task.executor != "remote":
                history.executions.append((journal.node, task))
            elif history is not None and task.requester_node is not None:
                history.relays.append((journal.node, task))
    return list(found.values())


def _check_kept(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for seen in mesh.seen.tasks:
        is_lost = seen.task_id not in mesh.journals[seen.node].tasks
        if seen.result == "acknowledged" and is_lost and seen.node not in mesh.seen.restored:
            detail = f"{seen.requester} to {seen.agent}"
            yield HistoryViolation("task kept", seen.node, seen.task_id, detail)


def _check_ended(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    silent = mesh.seen.absent | mesh.seen.lost
    for journal in mesh.journals.values() if mesh.drained else ():
        for task in journal.tasks.values():
            if not task.has_ended and journal.node not in silent:
                detail = f"it is {task.state}, executed by {task.executor} {task.executor_node}"
                yield HistoryViolation("task ended", journal.node, task.id, detail)
    bound = _LOST_BOUND_MS if mesh.seen.lost else _BOUND_MS
    for end in mesh.seen.task_ends:
        if mesh.seen.healed_at and end.at > mesh.seen.healed_at + bound:
            late = end.at - mesh.seen.healed_at
            detail = f"it ended {late} ms after everything healed"
            yield HistoryViolation("task ended", end.node, end.task_id, detail)


def _check_one_end(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """All ends that a gateway told of are one, and that one is in its journal."""
    told: dict[tuple[str, str], list[tuple[str, str | None]]] = defaultdict(list)
    for end in mesh.seen.task_ends:
        told[end.node, end.task_id].append((end.state, end.code))
    for (node, id), ends in told.items():
        task = mesh.journals[node].tasks.get(id)
        if node in mesh.seen.restored:
            continue
        known = None if task is None else (task.state, task.error_code)
        *presumed, last = ends
        if last != known or len(presumed) > 1 or any(code not in _UNHEARD for _, code in presumed):
            detail = f"told were {ends}, and the journal has {known}"
            yield HistoryViolation("task one end", node, id, detail)


def _check_same_end(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in _collect_tasks(mesh):
        if history.involves(mesh.seen.restored):
            continue
        if not history.executions and mesh.seen.restored:
            # It went, handed on or by a fallback, to a gateway that has lost its memory.
            continue
        done = [(node, task) for node, task in history.executions if task.state == "completed"]
        if len(done) > 1:
            detail = f"completed by {[node for node, _ in done]}"
            yield HistoryViolation("task same end", history.node, history.task.id, detail)
        detail = _compare_ends(mesh, history)
        if detail and history.node not in mesh.seen.lost:
            yield HistoryViolation("task same end", history.node, history.task.id, detail)


def _compare_ends(mesh: CheckedMesh, history: TaskHistory) -> str:
    """The difference between the creator's end and those of executors; nothing if there is none."""
    told = history.task
    ends = [(task.state, task.error_code, task.result) for _, task in history.executions]
    completed = any(task.state == "completed" for _, task in history.executions)
    if not told.has_ended:
        return ""
    if (told.state, told.error_code, told.result) in ends and completed == (
        told.state == "completed"
    ):
        return ""
    # Nobody hears of the end at a gateway that never comes back, or counts no more.
    unheard = history.involves(mesh.seen.lost | mesh.seen.revoked)
    unheard |= not any(task.has_ended for _, task in history.executions)
    if told.state != "completed" and told.error_code in _UNHEARD and unheard:
        return ""
    return f"its creator was told {told.state} {told.error_code}, its executors say {ends}"


def _check_work(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for work in mesh.seen.works:
        journal = mesh.journals[work.node]
        id = work.task_id
        while id not in journal.tasks and id in journal.forwards:
            id = journal.forwards[id]
        task = journal.tasks.get(id)
        if not work.outcome or work.node in mesh.seen.restored:
            continue
        said = (work.outcome, work.code or None, work.result)
        known = task and (task.state, task.error_code, task.result)
        if said != known or work.contradicted:
            detail = f"{work.agent} reported {said}, and the journal has {known}"
            yield HistoryViolation("task work", work.node, work.task_id, detail)


def _check_launches(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Every attempt at a task has a session of its own name."""
    launches = Counter((work.node, work.session) for work in mesh.seen.works if work.session)
    for (node, session), count in launches.items():
        if count > 1 and node not in mesh.seen.restored:
            yield HistoryViolation("task launch", node, session, f"it was launched {count} times")


def _check_tokens(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """No token outlives its session, or its task."""
    latest = {(work.node, work.task_id): work for work in mesh.seen.works if work.session}
    for journal in mesh.journals.values():
        for id in journal.live_tokens:
            task, work = journal.tasks.get(id), latest.get((journal.node, id))
            if task is None or task.has_ended:
                yield HistoryViolation("task token", journal.node, id, "its task has ended")
            elif work is not None and work.is_gone and journal.node not in mesh.seen.restored:
                yield HistoryViolation("task token", journal.node, id, f"{work.session} is gone")


def _check_cancelled(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Compare the places of receipts for cancellations and of ends in the executors' outboxes.

    Of one commit group, the receipts are written before anything that follows from its events.
    """
    cancels = {
        event.event_id: event.ref_event_id or ""
        for journal in mesh.journals.values()
        for event in journal.events
        if event.kind == "task_cancel"
    }
    for journal in mesh.journals.values():
        if journal.node in mesh.seen.restored:
            continue
        ends = _ends_in_outbox(journal)
        for event in journal.events:
            id = cancels.get(event.ref_event_id or "", "") if _is_last_receipt(event) else ""
            executed = journal.tasks.get(id)
            if not id or executed is None or executed.executor == "remote":
                continue
            ended_at = ends.get(id)
            last = journal.last_of_group(event.seq)
            if executed.state != "cancelled" and (ended_at is None or ended_at > last):
                detail = f"it was cancelled at {event.seq}, and {executed.state} at {ended_at}"
                yield HistoryViolation("task cancelled", journal.node, id, detail)


def _is_last_receipt(event: JournalEvent) -> bool:
    return event.kind == "ack" and event.read_payload().get("status") == "processed"


def _ends_in_outbox(journal: GatewayJournal) -> dict[str, int]:
    """The number of the event that reports the end of each task."""
    ends: dict[str, int] = {}
    for event in journal.events:
        if event.kind in ("task_complete", "task_failed") or _reports_cancelled(event):
            ends.setdefault(event.ref_event_id or "", event.seq)
    return ends


def _reports_cancelled(event: JournalEvent) -> bool:
    if event.kind != "task_update":
        return False
    return msgspec.json.decode(event.body, type=_ReportBody).task.failure_class == "cancelled"


def _check_skills(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """A gateway asks another one a few times for each skill, whatever that one claims and says."""
    for journal in mesh.journals.values():
        asked = {
            (event.to_node_id, event.event_id)
            for event in journal.events
            if event.kind == "task_create"
            and event.source_agent_id == GATEWAY
            and event.to_node_id not in (None, journal.node)
        }
        for node, count in Counter(node for node, _ in asked).items():
            if count > _MAX_SKILL_REQUESTS * journal.published:
                detail = f"it asked {node} {count} times for {journal.published} skills"
                yield HistoryViolation("skill requests", journal.node, node or "", detail)


def _check_offers(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """A gateway takes so many skills of another, and those of one that has a few."""
    asked = {
        event.event_id: journal
        for journal in mesh.journals.values()
        for event in journal.events
        if event.kind == "task_create" and event.source_agent_id == GATEWAY
    }
    for journal in mesh.journals.values():
        for source, count in journal.offers.items():
            if count > _MAX_OFFERS:
                detail = f"it has {count} skills of {source}"
                yield HistoryViolation("skill offers", journal.node, source, detail)
        for id, task in journal.tasks.items():
            asker = asked.get(id)
            if asker is None or asker is journal or task.error_code != InvalidRequest.code:
                continue
            if asker.published <= _FEW_SKILLS and asker.node not in mesh.seen.restored:
                detail = f"{asker.node} has {asker.published} skills, and this one was refused"
                yield HistoryViolation("skill share", journal.node, id, detail)


def _check_turns(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Sessions go to sources in turns. A session ends, so a task waits for a bounded time."""
    launches: dict[str, list[tuple[int, ObservedWait]]] = defaultdict(list)
    for work in mesh.seen.works:
        wait = mesh.seen.waits.get((work.node, work.session))
        if wait is not None and work.node not in mesh.seen.restored:
            launches[work.node].append((work.begun_at, wait))
    for node, launched in launches.items():
        for at, wait in launched:
            before = Counter(other.source for time, other in launched if wait.since <= time < at)
            bound = before.pop(wait.source, 0) + _MAX_PASSED_BY
            for source, count in before.items():
                if count > bound:
                    detail = f"{count} tasks of {source} came before one of {wait.source}"
                    yield HistoryViolation("task turn", node, str(wait.since), detail)


def _check_shares(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Whatever others ask for, a source that asks for few tasks finds places for them."""
    asked: Counter[tuple[str, str]] = Counter()
    refused: dict[tuple[str, str], str] = {}
    for journal in mesh.journals.values():
        for task in journal.tasks.values():
            if task.requester_node is not None and task.executor != "remote":
                asked[journal.node, task.requester_node] += 1
                if task.error_code == TaskQueueFull.code:
                    refused[journal.node, task.requester_node] = task.id
    for seen in mesh.seen.tasks:
        asked[seen.node, seen.requester] += 1
        if seen.result == f"refused: {TaskQueueFull.code}":
            refused[seen.node, seen.requester] = seen.key
    for (node, source), id in refused.items():
        if asked[node, source] <= _FEW_TASKS and node not in mesh.seen.restored:
            detail = f"{source} asked for {asked[node, source]} tasks and was refused"
            yield HistoryViolation("task share", node, id, detail)


TASK_RULES = (
    _check_turns,
    _check_shares,
    _check_skills,
    _check_offers,
    _check_kept,
    _check_ended,
    _check_one_end,
    _check_same_end,
    _check_work,
    _check_launches,
    _check_tokens,
    _check_cancelled,
)
