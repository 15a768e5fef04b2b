"""Changes of tasks that the rest of the gateway hears of, once they are on disk."""

from collections.abc import Callable, Iterable

import msgspec

from gatepost.capabilities.contract import Contract, find_contract
from gatepost.capabilities.misfires import MisfireClass, RoutingMisses, note_misfire
from gatepost.config.hub_settings import HubSettings
from gatepost.delivery.assembly import DeliveryCore
from gatepost.errors import TaskQueueFull
from gatepost.events import TaskInfo
from gatepost.hub import tasks
from gatepost.hub.policy import Policy, PolicyAgent
from gatepost.hub.registry import AgentRegistry
from gatepost.hub.task_routing import TaskRouter
from gatepost.hub.task_states import TaskState
from gatepost.hub.task_tokens import revoke_task_tokens
from gatepost.hub.tasks import CONTRACT_MISMATCH, Executor, Task
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome


class TaskChanges:
    """A participant of the commit group. `on_changed` is called in the event loop."""

    def __init__(self) -> None:
        self.on_changed: Callable[[Task], None] = lambda task: None
        # Called in the transaction in which a task that was requested here fails.
        self.on_failed: Callable[[Tx, Task], None] = lambda tx, task: None
        self._changed: list[Task] = []

    def note_change(self, tx: Tx, task: Task) -> None:
        tx.add_effect(lambda: self._changed.append(task))

    def note_end(self, tx: Tx, task: Task) -> None:
        """A task has ended: so have its tokens. A failure of a capability is to be reviewed."""
        if task.executor == "session":
            revoke_task_tokens(tx, task.id)
        self.note_change(tx, task)
        if task.state is TaskState.FAILED and task.requester_node is None:
            is_mismatch = task.error_code == CONTRACT_MISMATCH
            failure: MisfireClass = "contract_mismatch" if is_mismatch else "terminal_error"
            note_misfire(tx, msgspec.json.decode(task.info, type=TaskInfo), failure, task.id)
            self.on_failed(tx, task)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        """Nothing: every change is made by an operation."""

    def after_commit(self) -> list[JobOutcome]:
        changed, self._changed = self._changed, []
        return [(self._tell_loop, task, None) for task in changed]

    def rolled_back(self) -> None:
        self._changed.clear()

    def next_due(self, tx: Tx) -> int | None:
        return None

    def _tell_loop(self, task: Task, error: object) -> None:
        self.on_changed(task)


class HubParts:
    """The parts of the hub that both roles of a gateway use."""

    def __init__(
        self, core: DeliveryCore, registry: AgentRegistry, policy: Policy, settings: HubSettings
    ) -> None:
        self.core = core
        self.registry = registry
        self.policy = policy
        self.settings = settings
        self.router = TaskRouter(core.agents, core.routes)
        self.changes = TaskChanges()
        self.misses = RoutingMisses()

    def describe_agent(self, tx: Tx, name: str) -> PolicyAgent:
        """An agent as the policy sees it."""
        definition = self.registry.agents.get(name)
        gateway = self.core.routes.remote_owner(name) or ""
        if definition is None or gateway:
            return PolicyAgent(name, gateway, self.router.is_active(tx, name))
        return PolicyAgent(name, "", True, definition.hardened, definition.capabilities)

    def find_contract(self, tx: Tx, info: bytes) -> Contract | None:
        """The contract of a task's capability, if it has one and this gateway knows it."""
        return self.contract_of(tx, msgspec.json.decode(info, type=TaskInfo))

    def contract_of(self, tx: Tx, info: TaskInfo) -> Contract | None:
        capability = info.capability_id
        entry = None if capability is None else self.router.capabilities.get(capability)
        return None if entry is None or not entry.contract else find_contract(tx, entry.contract)

    def find_executor(self, tx: Tx, agent: str) -> tuple[Executor, str | None]:
        """What executes the tasks of an agent, and the node if that is another one than this."""
        route = self.core.routes.find_route(tx, agent)
        if route.node != self.core.node.id:
            return "remote", route.node
        return ("session" if agent in self.registry.agents else "agent"), None

    def note_routing_miss(self, tx: Tx, capabilities: Iterable[str]) -> None:
        """A request for published capabilities found no agent."""
        for id in capabilities:
            entry = self.router.capabilities.get(id)
            if entry is not None and self.misses.is_repeated(id, tx.now):
                note_misfire(tx, entry.public_part, "routing_miss", None)

    def require_capacity(self, tx: Tx, coming: int = 0) -> None:
        """Raise TaskQueueFull if no further task may wait for a session, behind those `coming`.

        As many open tasks as there are places for sessions do not wait: they have one at once.
        """
        waiting = coming + tasks.count_open_tasks(tx, "session") - self.settings.max_sessions
        if waiting >= self.settings.max_queued:
            raise TaskQueueFull(
                f"{waiting} tasks wait for a session already; try again later,"
                " or raise hub.max_queued",
                retry_after=1.0,
            )
