"""Gates linked in memory, each with a hub's engine: see tests/delivery/mesh.py."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.config.hub_settings import HubSettings
from gatepost.events import EventKind, fingerprint_content
from gatepost.tasks.policy import Policy
from gatepost.tasks.registry import AgentRegistry
from gatepost.tasks.session_runtime import SessionHandle
from gatepost.tasks.session_tasks import ClaimedTask
from gatepost.tasks.task_engine import TaskEngine
from gatepost.tasks.task_request import RequestContent, encode_request
from gatepost.tasks.task_table import Task, TaskPayload, find_task, load_payload, load_task
from gatepost.wire.tasks import NewTask, TaskReport
from tests.delivery.mesh import Gate, Mesh


class TaskGate:
    """The engine of one gate. Its agent has the gate's name in capitals."""

    def __init__(self, gate: Gate, settings: HubSettings) -> None:
        self.gate = gate
        self.registry = AgentRegistry()
        self.policy = Policy()
        self.engine = TaskEngine(gate.core, self.registry, self.policy, settings)
        self.agent = gate.id.upper()

    def run_by_hub(self, **fields: Any) -> None:
        """From now on sessions of the hub do the work of the gate's agent."""
        definition = msgspec.json.encode({"name": self.agent, "command": ["true"], **fields})
        self.registry.load_files({"a.json": definition})
        self.gate.agents.hub_run = frozenset({self.agent})

    def create(self, to: "TaskGate", description: str = "do it", **fields: Any) -> str:
        given = fields.pop("input", UNSET)
        raw = given if given is UNSET else Raw(msgspec.json.encode(given))
        new = NewTask(self.agent, description, to_agents=[to.agent], input=raw, **fields)
        return self.create_new(new)[0].id

    def create_new(self, new: NewTask) -> list[Task]:
        payload = encode_request(new)
        content = RequestContent(fingerprint_content(payload), payload)
        made: list[Task] = self.gate.do(
            lambda tx: self.engine.requested.create_tasks(tx, new, content)
        )
        return made

    def report(self, id: str, action: Any, **fields: Any) -> Task:
        report = TaskReport(id, self.agent, action, **fields)
        (task,) = self.gate.do(lambda tx: self.engine.reports.apply_reports(tx, [report]))
        changed: Task = task
        return changed

    def claim(self, capacity: int = 10) -> list[ClaimedTask]:
        """Claim tasks for sessions."""
        claimed: list[ClaimedTask] = self.gate.do(
            lambda tx: self.engine.session_tasks.claim_tasks(tx, capacity)
        )
        return claimed

    def note_started(self, claimed: ClaimedTask) -> bool:
        """Note that the session of a claimed task runs; returns whether the task has ended."""
        handle = SessionHandle(claimed.session_name, {})
        has_ended: bool = self.gate.do(
            lambda tx: self.engine.session_tasks.note_started(tx, claimed, handle)
        )
        return has_ended

    def complete(self, id: str, result: object) -> Task:
        return self.report(id, "complete", result=Raw(msgspec.json.encode(result)))

    def take_mail(self) -> list[Any]:
        mail: list[Any] = self.gate.do(
            lambda tx: self.gate.dispatcher.dequeue(tx, self.agent, "c", 100)
        )
        return mail

    def accept(self, id: str, **fields: Any) -> Task:
        """Take the task's mail, as an agent that runs by itself does, and accept it."""
        (handle,) = (mail.receipt for mail in self.take_mail() if mail.msg_id == id)
        return self.report(id, "accept", receipt=handle, **fields)

    def cancel(self, id: str) -> Task:
        task: Task = self.gate.do(lambda tx: self.engine.cancel_task(tx, id, "enough"))
        return task

    def task(self, id: str) -> Task:
        task: Task = self.gate.do(lambda tx: load_task(tx, id))
        return task

    def knows(self, id: str) -> bool:
        return self.gate.do(lambda tx: find_task(tx, id)) is not None

    def payload(self, id: str) -> TaskPayload:
        payload: TaskPayload = self.gate.do(lambda tx: load_payload(tx, id))
        return payload

    def kinds(self) -> list[str]:
        """The kinds of its events about tasks, in order."""
        return [each.kind for each in self.gate.events() if each.kind.startswith("task_")]


class TaskMesh:
    """Two gates, `a` and `b`, with a link between them, and perhaps others."""

    def __init__(self, nodes: tuple[str, ...] = ("a", "b"), **settings: Any) -> None:
        self.mesh = Mesh(*nodes)
        self.a = TaskGate(self.mesh["a"], HubSettings(**settings))
        self.b = TaskGate(self.mesh["b"], HubSettings(**settings))
        self.wire = self.mesh.link("a", "b")
        self.mesh.flow()

    def flow(self) -> None:
        self.mesh.flow()

    def create(self, **fields: Any) -> str:
        """A task of the agent A for the agent B, that has arrived."""
        id = self.a.create(self.b, **fields)
        self.flow()
        return id

    def states(self, id: str) -> tuple[str, str]:
        return self.a.task(id).state, self.b.task(id).state


REPORTS = [EventKind.TASK_ACCEPT, EventKind.TASK_UPDATE, EventKind.TASK_COMPLETE]
