"""Floods: one gateway asks for more of a shared thing than there is, and others go on.

Each is planned once a run, apart from the other faults.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from gatepost.delivery.abuse import AbuseKind
from gatepost.room.records import SkillRef
from gatepost.tasks.capabilities.contract import ContractDocument
from gatepost.tasks.capabilities.publication import NewCapability
from gatepost.tasks.skill_installs import MAX_OFFERS_OF_NODE
from simulation.gateways.mesh import SimulatedMesh

# What a flood of skills consists of.
_CLAIMED = 30
_PUBLISHED = 3
# More tasks than fit in the queue of sessions of a simulated hub.
_FLOOD_OF_TASKS = 70
# More skills than a gateway takes from another one.
_FLOOD_OF_CAPABILITIES = MAX_OFFERS_OF_NODE + 5


def flood_with_skills(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway publishes capabilities. Another one claims many agents, and refuses all skills."""
    publisher, refuser = random.sample(list(mesh.gateways), 2)
    owners = mesh.room.agents_behind(publisher)
    if not owners:
        return
    mesh.trace("room", f"{publisher} publishes capabilities, and {refuser} refuses their skills")
    mesh.room.claim_agents([f"x{number}" for number in range(_CLAIMED)], refuser)
    documents = [_new_capability(f"c{number}", owners[0]) for number in range(_PUBLISHED)]
    mesh.publish_capabilities(publisher, documents, unseen_by=refuser)


def flood_with_tasks(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway asks for tasks without end. Another one and the operator ask for a few then."""
    run = [item for item in mesh.tasks.hub_agents.items() if mesh.room.owner_of(item[0]) == item[1]]
    if not run:
        return
    agent, victim = random.choice(run)
    sources = [id for id in mesh.gateways if id != victim and mesh.room.agents_behind(id)]
    if len(sources) < 2:
        return
    flooder, other = random.sample(sources, 2)
    mesh.trace(flooder, f"floods {agent} behind {victim} with tasks")
    mesh.expect_abuse(AbuseKind.TASK_FLOOD)
    requester = mesh.room.agents_behind(flooder)[0]
    for _ in range(_FLOOD_OF_TASKS):
        mesh.tasks.create_task(requester, agent)
    few = partial(mesh.tasks.create_task, mesh.room.agents_behind(other)[0], agent)
    for ask in (few, few, partial(mesh.tasks.create_task_of_operator, victim, agent)):
        mesh.loop.call_after(random.randint(1_000, 5_000), ask)


def flood_with_capabilities(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway publishes capabilities without end. Another one publishes a few then."""
    owners = [id for id in mesh.gateways if mesh.room.agents_behind(id)]
    if len(owners) < 2:
        return
    flooder, other = random.sample(owners, 2)
    mesh.trace("room", f"{flooder} publishes {_FLOOD_OF_CAPABILITIES} capabilities")
    mesh.expect_abuse(AbuseKind.QUOTA_EXCEEDED)
    _publish(mesh, flooder, "f", _FLOOD_OF_CAPABILITIES)
    few = partial(_publish, mesh, other, "h", _PUBLISHED)
    mesh.loop.call_after(random.randint(8_000, 12_000), few)


def _publish(mesh: SimulatedMesh, node: str, prefix: str, number: int) -> None:
    owners = mesh.room.agents_behind(node)
    if owners and not mesh.healed:
        documents = [_new_capability(f"{prefix}{n}", owners[0], 10) for n in range(number)]
        mesh.publish_capabilities(node, documents)


def _new_capability(id: str, owner: str, size: int = 1_000) -> NewCapability:
    skill = SkillRef(ref=f"skills/{id}", version="1")
    return NewCapability(
        capability_id=id,
        name=id,
        version="1",
        owner_agent_id=owner,
        delegation_skill=skill,
        executor_skill=skill,
        default_eta_seconds=60,
        contract=ContractDocument(input={"description": "x" * size}),
    )


# Each flood, and how many runs have it.
FLOODS: dict[str, tuple[Callable[[SimulatedMesh, Random], None], float]] = {
    "skill_flood": (flood_with_skills, 1.0),
    "task_flood": (flood_with_tasks, 1.0),
    "capability_flood": (flood_with_capabilities, 0.2),
}


def plan_floods(mesh: SimulatedMesh, seed: int, over_ms: int, kinds: list[str]) -> int:
    """Floods begin in the first half of the time to come: a refusal has to repeat.

    Returns how many requests to other gateways they come to at most.
    """
    requests = 0
    for kind, (fault, odds) in FLOODS.items():
        random = Random(f"{seed}/{kind}")
        moment = random.randint(0, over_ms // 2)
        if kind in kinds and random.random() < odds:
            mesh.loop.call_after(moment, partial(fault, mesh, random))
            if fault is flood_with_capabilities:
                requests += _FLOOD_OF_CAPABILITIES * len(mesh.gateways)
    return requests
