"""Reports changes of tasks to the rest of the gateway once they are on disk."""

from collections.abc import Callable, Iterable

import msgspec

from gatepost.config.hub_settings import HubSettings
from gatepost.delivery.assembly import DeliveryCore
from gatepost.errors import ContractUnchecked
from gatepost.events import TaskInfo
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.tasks.capabilities.contract import (
    ContractPart,
    ContractVerdicts,
    KeptContract,
    find_contract,
)
from gatepost.tasks.capabilities.misfires import (
    MisfireClass,
    RoutingMisses,
    note_misfire,
    withdraw_misfire,
)
from gatepost.tasks.policy import Policy, PolicyAgent
from gatepost.tasks.registry import AgentRegistry
from gatepost.tasks.task_queue import TaskQueue
from gatepost.tasks.task_routing import CapabilityEntry, TaskRouter
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import CONTRACT_MISMATCH, Executor, Task
from gatepost.tasks.task_tokens import revoke_task_tokens


class TaskChanges:
    """A participant of the commit group. `on_changed` is called in the event loop."""

    def __init__(self) -> None:
        self.on_changed: Callable[[Task], None] = lambda task: None
        # Called in the transaction in which a task that was requested here fails.
        self.on_failed: Callable[[Tx, Task], None] = lambda tx, task: None
        # Called in the transaction in which such a failure turns out not to be one.
        self.on_amended: Callable[[Tx, Task], None] = lambda tx, task: None
        # Called in the transaction in which an install that was requested here ends.
        self.on_distribution_ended: Callable[[Tx, Task], None] = lambda tx, task: None
        self._changed: list[Task] = []

    def note_change(self, tx: Tx, task: Task) -> None:
        tx.add_effect(lambda: self._changed.append(task))

    def note_end(self, tx: Tx, task: Task) -> None:
        """A task has ended: revoke its tokens, and count a failure as a misfire."""
        if task.executor == "session":
            revoke_task_tokens(tx, task.id)
        self.note_change(tx, task)
        if task.requester_node is None and task.is_distribution:
            self.on_distribution_ended(tx, task)
        if task.state is TaskState.FAILED and task.requester_node is None:
            is_mismatch = task.error_code == CONTRACT_MISMATCH
            failure: MisfireClass = "contract_mismatch" if is_mismatch else "terminal_error"
            note_misfire(tx, msgspec.json.decode(task.info, type=TaskInfo), failure, task.id)
            self.on_failed(tx, task)

    def note_amendment(self, tx: Tx, before: Task, task: Task) -> None:
        """A presumed end was wrong: withdraw the misfire that it counted."""
        if before.requester_node is None:
            info = msgspec.json.decode(before.info, type=TaskInfo)
            withdraw_misfire(tx, info, "terminal_error", before.id)
            if task.state is not TaskState.FAILED:
                self.on_amended(tx, task)
        self.note_end(tx, task)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        """Does nothing, because all changes are made by operations."""

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
    """The parts of the hub that both roles, requester and executor, use."""

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
        self.queue = TaskQueue(settings, core.abuse)
        self.verdicts = ContractVerdicts()

    def describe_agent(self, tx: Tx, name: str) -> PolicyAgent:
        """An agent as the policy sees it."""
        definition = self.registry.agents.get(name)
        gateway = self.core.routes.remote_owner(name) or ""
        if definition is None or gateway:
            return PolicyAgent(name, gateway, self.router.is_active(tx, name))
        return PolicyAgent(name, "", True, definition.hardened, definition.capabilities)

    def find_eta(self, agent: str, info: TaskInfo | None) -> int | None:
        """The ETA of an agent's task in seconds, from its definition or else its capability."""
        definition = self.registry.agents.get(agent)
        if definition is not None and definition.eta_seconds is not None:
            return definition.eta_seconds
        entry = self._capability_of(info)
        return None if entry is None else entry.default_eta_secs

    def find_policy_version(self, info: TaskInfo | None) -> int | None:
        """The version of the index of a task's capability, as the room has it now."""
        entry = self._capability_of(info)
        return None if entry is None else entry.policy_version

    def _capability_of(self, info: TaskInfo | None) -> CapabilityEntry | None:
        id = None if info is None else info.capability_id
        return None if id is None else self.router.capabilities.get(id)

    def find_contract(self, tx: Tx, info: bytes) -> KeptContract | None:
        """The contract of a task's capability, if it has one and this gateway knows it."""
        return self.contract_of(tx, msgspec.json.decode(info, type=TaskInfo))

    def contract_of(self, tx: Tx, info: TaskInfo) -> KeptContract | None:
        entry = self._capability_of(info)
        return None if entry is None else self.load_contract(tx, entry.contract)

    def load_contract(self, tx: Tx, digest: str) -> KeptContract | None:
        return find_contract(tx, digest) if digest else None

    def find_mismatch(self, tx: Tx, contract: KeptContract, part: ContractPart, mark: bytes) -> str:
        """Why a content does not fit; empty if it does. ContractUnchecked without a verdict."""
        verdict = self.verdicts.find(contract, part, mark, tx.now)
        if verdict is None:
            raise ContractUnchecked(
                "it has not been checked against the contract of its capability; try again",
                retry_after=1.0,
            )
        return verdict.problem

    def find_executor(self, tx: Tx, agent: str) -> tuple[Executor, str | None]:
        """The executor of an agent's tasks, and its node; None if that is this node."""
        route = self.core.routes.find_route(tx, agent)
        if route.node != self.core.node.id:
            return "remote", route.node
        return ("session" if agent in self.registry.agents else "agent"), None

    def note_routing_miss(self, tx: Tx, capabilities: Iterable[str]) -> None:
        """A request for published capabilities found no agent."""
        for id in capabilities:
            entry = self.router.capabilities.get(id)
            if entry is not None and self.misses.count_miss(id, tx.now):
                note_misfire(tx, entry.public_part, "routing_miss", None)
