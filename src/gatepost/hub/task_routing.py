"""Which agents a task goes to: those it names, or one that has all the required capabilities."""

from collections.abc import Mapping

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from gatepost.delivery.agents import Agents
from gatepost.delivery.routes import RouteFinder
from gatepost.errors import CapabilityUnavailable, InvalidTargets, MissingRouteFields, NoRoute
from gatepost.events import TaskInfo, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.room.records import EscalationPolicy
from gatepost.task_wire import NewTask


class CapabilityEntry(Struct, frozen=True, kw_only=True):
    """A capability of the catalog, with the agents that are eligible for it now."""

    id: str
    version: str
    owner_agent: str
    delegation_skill_version: str
    executor_skill_version: str
    default_eta_secs: int
    is_active: bool
    eligible: tuple[str, ...]
    policy_version: int
    contract: str = ""
    max_attempts: int = 1
    progress_secs: int | None = None
    escalation: EscalationPolicy | None = None

    @property
    def public_part(self) -> TaskInfo:
        return TaskInfo(
            capability_id=self.id,
            capability_version=self.version,
            delegation_skill_version=self.delegation_skill_version,
            executor_skill_version=self.executor_skill_version,
        )


class TaskTarget(Struct, frozen=True):
    """The agent that a task goes to, the public part of the task, and the version of the index."""

    agent: str
    info: TaskInfo
    policy_version: int | None = None
    eta_secs: int | None = None


class TaskRouter:
    """`capabilities` is replaced whenever the room changes."""

    def __init__(self, agents: Agents, routes: RouteFinder) -> None:
        self._agents = agents
        self._routes = routes
        self.capabilities: Mapping[str, CapabilityEntry] = {}

    def find_targets(self, tx: Tx, new: NewTask, task_id: str) -> list[TaskTarget]:
        """The targets of a task; an error with its code if there is none."""
        wanted = new.required_capabilities
        entries = [] if isinstance(wanted, UnsetType) else [self._find_entry(id) for id in wanted]
        info = _describe_task(new, entries)
        version = max((entry.policy_version for entry in entries), default=None)
        eta = entries[0].default_eta_secs if entries else None
        if not isinstance(new.to_agents, UnsetType):
            agents = [agent for agent in dict.fromkeys(new.to_agents) if self.is_active(tx, agent)]
            if not agents:
                raise InvalidTargets("none of these agents exists, or all of them have left")
        elif entries:
            agents = [self._choose_agent(tx, entries, task_id)]
        else:
            raise MissingRouteFields("a task needs `to_agents` or `required_capabilities`")
        return [TaskTarget(agent, info, version, eta) for agent in agents]

    def is_active(self, tx: Tx, agent: str) -> bool:
        home = self._routes.directory.agents.get(agent)
        is_here = self._agents.is_registered(tx, agent)
        return is_here or (home is not None and home.owner is not None)

    def _find_entry(self, id: str) -> CapabilityEntry:
        entry = self.capabilities.get(id)
        if entry is None:
            raise NoRoute(f"no capability {id!r} is published; see `gatepost capability list`")
        return entry

    def _choose_agent(self, tx: Tx, entries: list[CapabilityEntry], task_id: str) -> str:
        """The same agent for the same task and the same index, whoever asks."""
        for entry in entries:
            if not entry.is_active:
                raise CapabilityUnavailable(f"the capability {entry.id!r} is disabled")
            if not self.is_active(tx, entry.owner_agent):
                raise CapabilityUnavailable(
                    f"the capability {entry.id!r} is published, but its executor"
                    f" {entry.owner_agent!r} is not available"
                )
        eligible = set.intersection(*(set(entry.eligible) for entry in entries))
        active = sorted(agent for agent in eligible if self.is_active(tx, agent))
        if not active:
            names = ", ".join(entry.id for entry in entries)
            raise NoRoute(f"no agent is eligible for {names}")
        number = int.from_bytes(parse_event_id(task_id)[8:], "big")
        return active[number % len(active)]


def _describe_task(new: NewTask, entries: list[CapabilityEntry]) -> TaskInfo:
    info = entries[0].public_part if entries else TaskInfo()
    return replace(info, task_type=new.task_type or None)
