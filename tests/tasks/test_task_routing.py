import pytest
from msgspec import UNSET
from msgspec.structs import replace

from gatepost.errors import CapabilityUnavailable, NoRoute
from gatepost.room.records import SkillRef
from gatepost.tasks.task_routing import CapabilityEntry, TaskTarget
from gatepost.wire.tasks import NewTask
from tests.tasks.task_mesh import TaskMesh


def entry(id: str, *eligible: str, owner: str = "B", active: bool = True) -> CapabilityEntry:
    return CapabilityEntry(
        id=id,
        version="1.0",
        owner_agent=owner,
        delegation_skill=SkillRef(ref="ask", version="1.1"),
        executor_skill_version="1.2",
        default_eta_secs=60,
        is_active=active,
        eligible=eligible,
        policy_version=7,
    )


def find(
    mesh: TaskMesh, *capabilities: str, id: str | None = None, may_wait: bool = False
) -> list[TaskTarget]:
    new = NewTask("A", "x", UNSET, list(capabilities), may_wait=may_wait)
    task_id = id or mesh.a.gate.node.event_ids.next_id()
    found: list[TaskTarget] = mesh.a.gate.do(
        lambda tx: mesh.a.engine.parts.router.find_targets(tx, new, task_id)
    )
    return found


def test_a_capability_leads_to_an_eligible_agent_with_its_versions() -> None:
    mesh = TaskMesh()
    mesh.a.engine.parts.router.capabilities = {"review": entry("review", "B")}
    (target,) = find(mesh, "review")
    assert (target.agent, target.policy_version, target.eta_secs) == ("B", 7, 60)
    assert target.info.capability_id == "review"
    assert target.info.delegation_skill_version == "1.1"
    assert target.info.executor_skill_version == "1.2"


def test_the_choice_is_the_same_for_the_same_task_and_spread_over_tasks() -> None:
    mesh = TaskMesh()
    mesh.a.engine.parts.router.capabilities = {"review": entry("review", "A", "B")}
    ids = [mesh.a.gate.node.event_ids.next_id() for _ in range(50)]
    first = [find(mesh, "review", id=id)[0].agent for id in ids]
    assert first == [find(mesh, "review", id=id)[0].agent for id in ids]
    assert set(first) == {"A", "B"}


def test_several_capabilities_need_one_agent_with_all_of_them() -> None:
    mesh = TaskMesh()
    router = mesh.a.engine.parts.router
    router.capabilities = {"x": entry("x", "A", "B"), "y": entry("y", "B"), "z": entry("z", "A")}
    assert find(mesh, "x", "y")[0].agent == "B"
    with pytest.raises(NoRoute):
        find(mesh, "y", "z")


@pytest.mark.parametrize(
    "broken", [entry("review", "B", active=False), entry("review", "B", owner="gone")]
)
def test_a_capability_without_its_executor_is_unavailable(broken: CapabilityEntry) -> None:
    mesh = TaskMesh()
    mesh.a.engine.parts.router.capabilities = {"review": broken}
    with pytest.raises(CapabilityUnavailable):
        find(mesh, "review")


def set_online(mesh: TaskMesh, node: str, online: bool) -> None:
    routes = mesh.a.engine.parts.core.routes
    gateways = routes.directory.gateways
    changed = gateways | {node: replace(gateways[node], online=online)}
    routes.follow_directory(replace(routes.directory, gateways=changed))


def test_an_offline_executor_makes_a_capability_unavailable_unless_the_task_may_wait() -> None:
    mesh = TaskMesh()
    mesh.a.engine.parts.router.capabilities = {"review": entry("review", "B")}
    set_online(mesh, "b", online=False)
    with pytest.raises(CapabilityUnavailable, match="is offline"):
        find(mesh, "review")
    assert find(mesh, "review", may_wait=True)[0].agent == "B"
    set_online(mesh, "b", online=True)
    assert find(mesh, "review")[0].agent == "B"


def test_a_task_goes_to_an_eligible_agent_whose_gateway_is_online() -> None:
    mesh = TaskMesh()
    own = entry("review", "A", "B", owner="A")
    mesh.a.engine.parts.router.capabilities = {"review": own}
    set_online(mesh, "b", online=False)
    assert {find(mesh, "review")[0].agent for _ in range(20)} == {"A"}


def test_a_capability_that_nobody_is_eligible_for_has_no_route() -> None:
    mesh = TaskMesh()
    mesh.a.engine.parts.router.capabilities = {"review": entry("review")}
    with pytest.raises(NoRoute):
        find(mesh, "review")
