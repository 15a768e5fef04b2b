"""The second act of the demo: a capability is published, delegated to, broken and stalled.

lab-jane publishes the capability *review* of its agent. The agents of all other gateways install
the delegation skill. Then vps-jane delegates three times: a review that goes well, one whose result
breaks the contract, and one that misses its ETA.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from msgspec import Struct
from rich.table import Table

from gatepost.client import Agent, AgentTask, Client
from gatepost.testing import GatewayProcess
from gatepost.wire.tasks import TaskView

OWNER_HOME, REQUESTER_HOME = "lab-jane", "vps-jane"
REVIEW = {
    "capability_id": "review",
    "name": "Code review",
    "version": "1.0",
    "owner_agent_id": "reviewer",
    "delegation_skill": {"ref": "skills/ask-for-a-review", "version": "1.0"},
    "executor_skill": {"ref": "skills/review", "version": "1.0"},
    "default_eta_seconds": 60,
    "contract": {
        "input": {"type": "object", "required": ["change"]},
        "output": {
            "type": "object",
            "required": ["verdict"],
            "properties": {"verdict": {"type": "string"}},
        },
    },
}
TIMEOUT_SECS = 60.0


class Gateways(Protocol):
    """The part of the demo's mesh that this act needs."""

    gateways: dict[str, GatewayProcess]

    def call_api(self, name: str, method: str, path: str, body: object = None) -> Any: ...


class DelegationResult(Struct):
    """What the requester saw. `reviews` is its review queue: class of the misfire → id."""

    installed: dict[str, str]
    states: list[str]
    eta_seconds: float
    progress: list[float]
    result: Any
    broken: str
    stalled: str
    reviews: dict[str, str]

    @property
    def fine(self) -> bool:
        return (
            bool(self.installed)
            and set(self.installed.values()) == {"installed"}
            and self.states[-1] == "completed"
            and self.eta_seconds > 0
            and 0.5 in self.progress
            and self.result == {"verdict": "fine"}
            and self.broken == "contract_mismatch"
            and self.stalled == "cancelled"
            and {"contract_mismatch", "eta_breach"} <= self.reviews.keys()
        )


class DelegationAct:
    def __init__(self, town: Gateways, others: list[str]) -> None:
        """`others` are the agents that have to install the delegation skill."""
        self._town = town
        self._others = others
        # The executor goes on once the requester has seen how far it is.
        self._seen_half = asyncio.Event()

    async def play(self) -> DelegationResult:
        async with self._reviewer():
            await self._call(OWNER_HOME, "PUT", "/capabilities/review", REVIEW)
            installed = await self._wait_for_skills()
            gateway = self._town.gateways[REQUESTER_HOME]
            async with Client("architect", url=gateway.url, token=gateway.token) as client:
                good, seen = await self._delegate(client, "fine")
                result = await client.load_result(good)
                broken, _ = await self._delegate(client, "broken")
                stalled = await self._stall(client)
            return DelegationResult(
                installed=installed,
                states=list(dict.fromkeys(view.state for view in seen)),
                eta_seconds=((good.eta_at or 0) - (good.accepted_at or 0)) / 1000,
                progress=[view.progress for view in seen if view.progress is not None],
                result=result,
                broken=broken.error_code or broken.state,
                stalled=stalled.error_code or stalled.state,
                reviews=await self._read_reviews(),
            )

    @contextlib.asynccontextmanager
    async def _reviewer(self) -> AsyncIterator[None]:
        gateway = self._town.gateways[OWNER_HOME]
        agent = Agent("reviewer", url=gateway.url, token=gateway.token)

        @agent.on_task(eta_secs=5.0)
        async def review(task: AgentTask) -> Any:
            manner = task.input["change"]
            if manner == "stalled":
                await task.update(0.1, "thinking", eta_secs=0.1)
                await asyncio.sleep(1000)
            if manner == "broken":
                return {"verdict": 17}
            await task.update(0.5, "half of it is read")
            await asyncio.wait_for(self._seen_half.wait(), TIMEOUT_SECS)
            return {"verdict": "fine"}

        async with agent:
            yield

    async def _wait_for_skills(self) -> dict[str, str]:
        """Wait until all others have the delegation skill; returns the status of each."""

        async def statuses() -> dict[str, str]:
            health = await self._call(OWNER_HOME, "GET", "/capabilities/review/health")
            known = {each["agent"]: each["status"] for each in health["installs"]}
            return {agent: known.get(agent, "missing") for agent in self._others}

        found: dict[str, str] = await wait_for(
            statuses, lambda known: set(known.values()) == {"installed"}
        )
        return found

    async def _delegate(self, client: Client, manner: str) -> tuple[TaskView, list[TaskView]]:
        """Delegate a review and watch it; returns its end, and all that was seen of it."""
        made = await client.create_task(
            f"review this change ({manner})", capabilities=["review"], input={"change": manner}
        )
        seen = [made]
        async for view in client.watch_task(made.id, timeout=TIMEOUT_SECS):
            seen.append(view)
            if view.progress == 0.5:
                self._seen_half.set()
        return seen[-1], seen

    async def _stall(self, client: Client) -> TaskView:
        """Delegate a review that never ends; cancel it once its ETA is missed."""
        made = await client.create_task(
            "review this change (stalled)", capabilities=["review"], input={"change": "stalled"}
        )
        await wait_for(self._read_reviews, lambda found: "eta_breach" in found)
        await client.cancel_task(made.id, reason="it takes too long")
        return await client.await_task(made.id, timeout=TIMEOUT_SECS)

    async def _read_reviews(self) -> dict[str, str]:
        gateway = self._town.gateways[REQUESTER_HOME]
        found = await asyncio.to_thread(gateway.get, "/v1/reviews")
        ours = [each for each in found if each["capability_id"] == "review"]
        return {each["failure_class"]: each["id"] for each in ours}

    async def _call(self, name: str, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self._town.call_api, name, method, path, body)


async def wait_for(read: Callable[[], Any], is_enough: Callable[[Any], bool]) -> Any:
    """Read until it is enough; the last value if that takes too long."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_SECS
    while True:
        found = await read()
        if is_enough(found) or asyncio.get_running_loop().time() > deadline:
            return found
        await asyncio.sleep(0.1)


def build_table(seen: DelegationResult) -> Table:
    """What happened, in words that need no glossary."""
    table = Table(title="Work that one machine gives to another", title_justify="left")
    table.add_column("step")
    table.add_column("what happened")
    skilled = sum(status == "installed" for status in seen.installed.values())
    progress = ", ".join(f"{value:.0%}" for value in dict.fromkeys(seen.progress))
    for step, what in (
        (
            f"{OWNER_HOME} publishes what its agent can do: review",
            f"{skilled} of {len(seen.installed)} agents on the other machines learned how to ask"
            f" for it: {', '.join(sorted(seen.installed))}",
        ),
        (
            f"{REQUESTER_HOME} asks for a review",
            f"promised within {seen.eta_seconds:.0f} s; progress {progress};"
            f" {seen.states[-1]}: {seen.result}",
        ),
        (
            "the reviewer answers with something that breaks the agreed form",
            f"the task failed: {seen.broken}; a review item is "
            + ("open" if "contract_mismatch" in seen.reviews else "MISSING"),
        ),
        (
            "the reviewer stalls beyond the time it promised",
            "noticed as eta_breach; a review item is "
            + ("open" if "eta_breach" in seen.reviews else "MISSING")
            + f"; the task was {seen.stalled}",
        ),
    ):
        table.add_row(step, what)
    return table
