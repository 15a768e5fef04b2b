"""The tasks of a simulated mesh: who creates them, and who works on them."""

from random import Random
from typing import Any

import msgspec

from gatepost.events.reserved_names import OPERATOR
from gatepost.tasks.policy import Operator
from simulation.gateways.gateway import SimulatedGateway
from simulation.gateways.network import SimulatedNetwork
from simulation.gateways.observer import MeshObserver
from simulation.gateways.room import SimulatedRoom
from simulation.gateways.task_users import (
    SimulatedCreator,
    SimulatedSessions,
    SimulatedWork,
    WorkManners,
)
from simulation.history import ObservedTask, ObservedWork


class TaskTraffic:
    def __init__(
        self,
        gateways: dict[str, SimulatedGateway],
        network: SimulatedNetwork,
        observer: MeshObserver,
        room: SimulatedRoom,
        seed: int,
    ) -> None:
        self._gateways = gateways
        self._network = network
        self._observer = observer
        self._room = room
        self._seed = seed
        self.manners = WorkManners()
        # Agent → the gateway whose hub runs it.
        self.hub_agents: dict[str, str] = {}

    def create_task(
        self,
        requester: str,
        agent: str,
        large_bytes: int = 0,
        cancel_after: int | None = None,
        **fields: Any,
    ) -> ObservedTask | None:
        """Have a client create a task, and cancel it after some time. None if it has no gateway."""
        node = self._room.owner_of(requester)
        if not node:
            return None
        creator = self._begin_task(node, requester, agent, large_bytes, None, **fields)
        if cancel_after is not None:
            self._network.loop.call_after(cancel_after, creator.cancel)
        return creator.seen

    def create_task_of_operator(self, node: str, agent: str) -> ObservedTask:
        """Have the operator of a gateway create a task."""
        return self._begin_task(node, OPERATOR, agent, 0, Operator()).seen

    def _begin_task(
        self,
        node: str,
        requester: str,
        agent: str,
        large_bytes: int,
        by: Operator | None,
        **fields: Any,
    ) -> SimulatedCreator:
        tasks = self._observer.seen.tasks
        seen = ObservedTask(node, requester, agent, f"t{len(tasks)}", self._network.loop.now)
        tasks.append(seen)
        files = self._network.links[node].files
        creator = SimulatedCreator(self._gateways[node], seen, files, large_bytes, by, **fields)
        creator.create()
        return creator

    def run_agent_by_hub(self, name: str, node: str) -> None:
        """From now on sessions of the hub of `node` do the tasks of this agent there."""
        gateway = self._gateways[node]
        if not gateway.hub.definitions:
            files = self._network.links[node].files
            SimulatedSessions(gateway, files, self.manners, self._seed, self._note_work)
        definition = {"name": name, "command": ["true"], "eta_seconds": 5}
        gateway.hub.definitions[f"{name}.json"] = msgspec.json.encode(definition)
        gateway.hub.load_agents()
        self.hub_agents[name] = node

    def begin_work(self, node: str, name: str, task_id: str) -> None:
        """An agent has accepted a task, and works on it."""
        seen = ObservedWork(node, name, task_id, self._network.loop.now)
        self._note_work(seen)
        random = Random(f"{self._seed}/{node}/{task_id}/work")
        files = self._network.links[node].files
        SimulatedWork(self._gateways[node], files, self.manners, random, seen).go_on()

    def _note_work(self, seen: ObservedWork) -> None:
        self._observer.seen.works.append(seen)
        self._observer.trace(seen.node, f"{seen.agent} works on {seen.task_id}")
