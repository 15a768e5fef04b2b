"""Chooses the agents of a task: those it names, or one with all the required capabilities."""

from collections.abc import Mapping

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from gatepost.delivery.agents import Agents
from gatepost.delivery.routes import RouteFinder
from gatepost.errors import (
    CapabilityUnavailable,
    InvalidTargets,
    MissingRouteFields,
    NoRoute,
    UnknownAgent,
)
from gatepost.events import TaskInfo, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.room.records import CapabilityRecord, EligibilityRecord, EscalationPolicy, SkillRef
from gatepost.wire.tasks import NewTask


class CapabilityEntry(Struct, frozen=True, kw_only=True):
    """A capability of the catalog, with the agents that are eligible for it now."""

    id: str
    version: str
    owner_agent: str
    delegation_skill: SkillRef
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
            delegation_skill_version=self.delegation_skill.version,
            executor_skill_version=self.executor_skill_version,
        )


def routing_entry(
    id: str, record: CapabilityRecord, index: EligibilityRecord | None
) -> CapabilityEntry:
    """A capability as the room describes it. Without an index entry no task is routed by it."""
    return CapabilityEntry(
        id=id,
        version=record.version,
        owner_agent=record.owner_agent_id,
        delegation_skill=record.delegation_skill_ref,
        executor_skill_version=record.executor_skill_ref.version,
        default_eta_secs=record.default_eta_seconds,
        progress_secs=record.progress_seconds,
        is_active=record.status != "disabled" and index is not None,
        eligible=() if index is None else index.eligible_agent_ids,
        policy_version=0 if index is None else index.policy_version,
        contract=record.contract_schema_ref,
        max_attempts=record.max_attempts,
        escalation=record.escalation,
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
            agents = [self._choose_agent(tx, entries, task_id, may_wait=new.may_wait)]
        else:
            raise MissingRouteFields("a task needs `to_agents` or `required_capabilities`")
        return [TaskTarget(agent, info, version, eta) for agent in agents]

    def is_active(self, tx: Tx, agent: str) -> bool:
        home = self._routes.directory.agents.get(agent)
        is_here = self._agents.is_registered(tx, agent)
        return is_here or (home is not None and home.owner is not None)

    def _is_reachable(self, tx: Tx, agent: str) -> bool:
        """Whether a task for an agent would go to a gateway that is online."""
        try:
            node = self._routes.find_route(tx, agent).node
        except (NoRoute, UnknownAgent):
            return False
        return node == self._routes.own_node or self._routes.is_online(node)

    def _find_entry(self, id: str) -> CapabilityEntry:
        entry = self.capabilities.get(id)
        if entry is None:
            raise NoRoute(f"no capability {id!r} is published; see `gatepost capability list`")
        return entry

    def _choose_agent(
        self, tx: Tx, entries: list[CapabilityEntry], task_id: str, *, may_wait: bool
    ) -> str:
        """Choose an agent; every gateway chooses the same one for the same task, index and room."""
        for entry in entries:
            if not entry.is_active:
                raise CapabilityUnavailable(f"the capability {entry.id!r} is disabled")
            if not self.is_active(tx, entry.owner_agent):
                raise CapabilityUnavailable(
                    f"the capability {entry.id!r} is published, but its executor"
                    f" {entry.owner_agent!r} is not available"
                )
            if not (may_wait or self._is_reachable(tx, entry.owner_agent)):
                raise CapabilityUnavailable(
                    f"the gateway of {entry.owner_agent!r}, the executor of the capability"
                    f" {entry.id!r}, is offline: try later, or let the task wait (`may_wait`)"
                )
        eligible = set.intersection(*(set(entry.eligible) for entry in entries))
        active = sorted(agent for agent in eligible if self.is_active(tx, agent))
        if not active:
            names = ", ".join(entry.id for entry in entries)
            raise NoRoute(f"no agent is eligible for {names}")
        if not may_wait:
            active = [agent for agent in active if self._is_reachable(tx, agent)]
        if not active:
            raise CapabilityUnavailable(
                "the gateways of all eligible agents are offline: try later, or let the task wait"
                " (`may_wait`)"
            )
        number = int.from_bytes(parse_event_id(task_id)[8:], "big")
        return active[number % len(active)]


def _describe_task(new: NewTask, entries: list[CapabilityEntry]) -> TaskInfo:
    info = entries[0].public_part if entries else TaskInfo()
    return replace(info, task_type=new.task_type or None)
