"""Delegation skills: one request for each gateway, and no more than a few to one that refuses."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from gatepost.events import SKILL_DISTRIBUTION, fingerprint_content
from gatepost.room.records import SkillRef
from gatepost.routing import AgentHome
from gatepost.tasks.capabilities.contract import ContractDocument
from gatepost.tasks.capabilities.publication import (
    NewCapability,
    PublishedCapability,
    catalog_record,
    index_record,
    keep_publication,
)
from gatepost.tasks.policy import Operator
from gatepost.tasks.skill_distribution import describe_distribution
from gatepost.tasks.skill_installs import MAX_ASKED_AT_ONCE, MAX_OFFERS_OF_NODE, SkillInstall
from gatepost.tasks.task_request import RequestContent, encode_request
from gatepost.tasks.task_routing import routing_entry
from gatepost.tasks.task_table import Task
from gatepost.wire.tasks import NewTask
from tests.tasks.task_mesh import TaskGate, TaskMesh

BIG = ContractDocument(input={"description": "x" * 60_000})
HOUR = 3600
# Each request, and an hour in which nothing more is asked.
REPEATS = (1, 4, 16, 64, 256, HOUR)


def capability(id: str = "review", **fields: Any) -> NewCapability:
    given: dict[str, Any] = {
        "capability_id": id,
        "name": "Review",
        "version": "1.0",
        "owner_agent_id": "A",
        "delegation_skill": SkillRef(ref="skills/ask", version="1.1"),
        "executor_skill": SkillRef(ref="skills/do", version="1.2"),
        "default_eta_seconds": 60,
        "contract": ContractDocument(),
    }
    return NewCapability(**(given | fields))


class SkillMesh(TaskMesh):
    """`a` publishes for its agent A. `catalogs` are the gates that see it in the room."""

    def publish(self, *news: NewCapability, catalogs: str = "ab") -> list[PublishedCapability]:
        def keep(tx: Any) -> list[PublishedCapability]:
            return [keep_publication(tx, new, lambda agent: True) for new in news]

        found: list[PublishedCapability] = self.a.gate.do(keep)
        for gate in (self.a, self.b):
            if gate.gate.id in catalogs:
                self.show(gate, *found)
        return found

    def show(self, gate: TaskGate, *published: PublishedCapability) -> None:
        """The room's catalog shows these to a gate."""
        ids = [each.document.capability_id for each in published]
        records = [(catalog_record(each, 1), index_record(each, 1)) for each in published]
        gate.engine.parts.router.capabilities = {
            id: routing_entry(id, *pair) for id, pair in zip(ids, records, strict=True)
        }

    def distribute(self, gate: TaskGate | None = None) -> None:
        for each in (self.a, self.b) if gate is None else (gate,):
            while each.gate.do(each.engine.skills.distribute):
                pass
        self.flow()

    def wait(self, secs: float) -> None:
        self.mesh.clock.advance(int(secs * 1000))
        self.distribute()

    def register(self, agent: str, gate: TaskGate, **options: Any) -> None:
        gate.gate.do(lambda tx: gate.gate.agents.register(tx, agent, **options))
        self.claim(gate.gate.id, agent)

    def claim(self, node: str, *agents: str) -> None:
        for gate in self.mesh.gates.values():
            known = gate.directory.agents | {agent: AgentHome(node) for agent in agents}
            gate.see(replace(gate.directory, agents=known))

    def installs(self, published: PublishedCapability) -> dict[str, str]:
        found: list[SkillInstall] = self.a.gate.do(
            lambda tx: self.a.engine.skills.list_installs(tx, published)
        )
        return {each.agent: each.status for each in found}

    def requests(self, node: str = "b") -> list[Any]:
        """The distributions that `a` has sent to a gate."""
        return [
            each
            for each in self.mesh["a"].events()
            if each.is_skill_distribution and each.to_node_id == node
        ]

    def offers(self) -> list[Task]:
        """The distributions that `b` has heard of."""
        return [self.b.task(each.event_id) for each in self.requests()]


@pytest.fixture
def mesh() -> SkillMesh:
    return SkillMesh()


def test_one_request_covers_all_agents_of_a_gateway(mesh: SkillMesh) -> None:
    for agent in ("b1", "b2"):
        mesh.register(agent, mesh.b, takes_skills=True)
    mesh.register("b3", mesh.b)
    (published,) = mesh.publish(capability())
    mesh.distribute()
    (request,) = mesh.requests()
    assert (request.source_agent_id, request.order) == ("gateway", "none")
    assert mesh.installs(published) == dict.fromkeys(("b1", "b2"), "pending") | dict.fromkeys(
        ("B", "b3"), "pending"
    ), "b has 20 s to answer"
    for agent in ("b1", "b2"):
        _install(mesh.b, agent)
    mesh.flow()
    expected = {"B": "not_asked", "b1": "installed", "b2": "installed", "b3": "not_asked"}
    assert mesh.installs(published) == expected
    mesh.wait(2 * HOUR)
    assert len(mesh.requests()) == 1, "there is nothing more to know"


def _install(gate: TaskGate, agent: str) -> None:
    (mail,) = gate.gate.do(lambda tx: gate.gate.dispatcher.dequeue(tx, agent, "c", 100))
    assert mail.from_ == "gateway"
    before, gate.agent = gate.agent, agent
    gate.report(mail.msg_id, "accept", receipt=mail.receipt)
    gate.complete(mail.msg_id, {"status": "installed"})
    gate.agent = before


def test_agents_that_take_no_skills_get_no_task_and_no_incident(mesh: SkillMesh) -> None:
    mesh.register("a2", mesh.a)
    (published,) = mesh.publish(capability())
    mesh.distribute()
    mesh.wait(24 * 3600)
    assert mesh.installs(published) == {"a2": "not_asked", "B": "not_asked"}
    assert mesh.mesh["a"].mail() == mesh.mesh["b"].mail() == []
    assert mesh.mesh["a"].incidents() == mesh.mesh["b"].incidents() == []


def test_a_gateway_answers_in_time_and_is_asked_again_for_agents_that_are_away(
    mesh: SkillMesh,
) -> None:
    mesh.register("b1", mesh.b, takes_skills=True)
    (published,) = mesh.publish(capability())
    mesh.distribute()
    mesh.wait(21)
    assert mesh.installs(published) == {"B": "not_asked", "b1": "pending"}
    _install(mesh.b, "b1")
    mesh.wait(30)
    mesh.wait(30)
    assert mesh.installs(published) == {"B": "not_asked", "b1": "installed"}
    assert len(mesh.requests()) == 2


def test_a_gateway_that_refuses_costs_six_requests_whatever_it_claims(mesh: SkillMesh) -> None:
    """`b` claims 400 agents, and knows of no capability."""
    mesh.claim("b", *(f"x{n}" for n in range(400)))
    (published,) = mesh.publish(capability(contract=BIG), catalogs="a")
    mesh.distribute()
    before = _journal_bytes(mesh)
    for secs in REPEATS * 5:
        mesh.wait(secs + 1)
    assert len(mesh.requests()) == 6
    assert {task.error_code for task in mesh.offers()} == {"unknown_capability"}
    assert [each.partition("@")[0] for each in mesh.mesh["a"].incidents("skill_refused")] == ["b"]
    assert set(mesh.installs(published).values()) == {"failed"}
    assert _journal_bytes(mesh) - before < 1 << 20


def _journal_bytes(mesh: SkillMesh) -> int:
    connection = mesh.mesh["a"].connection
    return int(connection.pragma("page_count") * connection.pragma("page_size"))


def test_a_gateway_that_never_takes_a_skill_leaves_no_dead_letters(mesh: SkillMesh) -> None:
    (published,) = mesh.publish(capability(contract=BIG))
    mesh.distribute()
    mesh.wire.cut()
    newer = capability(delegation_skill=SkillRef(ref="skills/ask", version="2.0"), contract=BIG)
    (published,) = mesh.publish(newer)
    for _ in range(20):
        mesh.wait(25 * HOUR)
    assert len({each.event_id for each in mesh.requests()}) == 7
    assert mesh.installs(published) == {"B": "failed"}
    assert mesh.mesh["a"].incidents("dead_letter") == []
    assert mesh.mesh["a"].value("SELECT count(*) FROM undelivered") == 0
    assert len(mesh.mesh["a"].incidents("skill_refused")) == 1


def test_a_gateway_that_refuses_many_skills_is_one_incident(mesh: SkillMesh) -> None:
    mesh.publish(*(capability(f"c{n}") for n in range(40)), catalogs="a")
    for secs in REPEATS * 5:
        mesh.wait(secs + 1)
    assert len(mesh.requests()) == 6 * 40
    assert len(mesh.mesh["a"].incidents("skill_refused")) == 1


def test_a_gateway_that_does_not_answer_has_few_open_requests(mesh: SkillMesh) -> None:
    mesh.wire.cut()
    mesh.publish(*(capability(f"c{n}") for n in range(2 * MAX_ASKED_AT_ONCE)))
    mesh.distribute()
    assert len(mesh.requests()) == 16


def test_a_skill_that_no_agent_takes_is_asked_for_six_times(mesh: SkillMesh) -> None:
    mesh.register("a2", mesh.a, takes_skills=True)
    (published,) = mesh.publish(capability())
    mesh.distribute()
    refused = 0
    for secs in REPEATS * 3:
        for mail in mesh.a.gate.do(lambda tx: mesh.a.gate.dispatcher.dequeue(tx, "a2", "c", 100)):
            mesh.a.gate.do(
                lambda tx, mail=mail: mesh.a.gate.coordinator.nack(  # type: ignore[misc]
                    tx, "a2", [mail.receipt], [], "no", retry=False
                )
            )
            refused += 1
        mesh.wait(secs + 1)
    assert refused == 6
    assert mesh.installs(published)["a2"] == "failed"


def test_a_new_version_is_asked_for_again(mesh: SkillMesh) -> None:
    mesh.publish(capability(), catalogs="a")
    for secs in (0, *REPEATS):
        mesh.wait(secs + 1)
    newer = capability(delegation_skill=SkillRef(ref="skills/ask", version="2.0"))
    (published,) = mesh.publish(newer)
    mesh.wait(1)
    assert mesh.installs(published) == {"B": "not_asked"}


# -- skills that do not count


def offer(
    mesh: SkillMesh, published: PublishedCapability, by: TaskGate, to: TaskGate, sender: str
) -> Task:
    """A distribution as an attacker may make it up."""
    raw = Raw(msgspec.json.encode(describe_distribution(published)))
    new = NewTask(sender, "install", [to.agent], UNSET, raw, task_type=SKILL_DISTRIBUTION)
    payload = encode_request(new)
    content = RequestContent(fingerprint_content(payload), payload)
    (task,) = by.gate.do(lambda tx: by.engine.requested.create_tasks(tx, new, content, Operator()))
    mesh.flow()
    return by.task(task.id)


def test_an_agent_distributes_no_skill(mesh: SkillMesh) -> None:
    """Not even the owner of the capability, and it is named."""
    (published,) = mesh.publish(capability())
    for sender in ("A", "mallory"):
        task = offer(mesh, published, mesh.a, mesh.b, sender)
        assert (task.state, task.error_code) == ("failed", "foreign_skill")
    assert _abuse(mesh.b) == {("a", "foreign_skill"): 2}
    assert mesh.mesh["b"].mail() == []


def test_a_gateway_distributes_no_skill_of_another(mesh: SkillMesh) -> None:
    (published,) = mesh.publish(capability())
    task = offer(mesh, published, mesh.b, mesh.a, "gateway")
    assert (task.state, task.error_code) == ("failed", "foreign_skill")
    assert _abuse(mesh.a) == {("b", "foreign_skill"): 1}


@pytest.mark.parametrize(
    "change",
    [
        {"delegation_skill": SkillRef(ref="skills/ask", version="6.6")},
        {"delegation_skill": SkillRef(ref="skills/evil", version="1.1")},
        {"contract": BIG},
        {"default_eta_seconds": 1},
    ],
)
def test_a_skill_that_is_not_as_in_the_catalog_is_refused(
    mesh: SkillMesh, change: dict[str, Any]
) -> None:
    """Without a report: the room may be behind the link."""
    (published,) = mesh.publish(capability())
    other = replace(published, document=replace(published.document, **change))
    task = offer(mesh, other, mesh.a, mesh.b, "gateway")
    assert (task.state, task.error_code) == ("failed", "unknown_capability")
    assert _abuse(mesh.b) == {}


def test_a_gateway_takes_so_many_skills_of_another(mesh: SkillMesh) -> None:
    published = mesh.publish(*(capability(f"c{n}") for n in range(MAX_OFFERS_OF_NODE + 1)))
    codes = [
        offer(mesh, each, mesh.a, mesh.b, "gateway").error_code
        for each in (*published, published[0])
    ]
    assert codes == [None] * MAX_OFFERS_OF_NODE + ["invalid_request", None]
    assert _abuse(mesh.b) == {("a", "quota_exceeded"): 1}
    mesh.show(mesh.b, *published[50:])
    assert offer(mesh, published[-1], mesh.a, mesh.b, "gateway").error_code is None, (
        "withdrawn ones give way"
    )


def _abuse(gate: TaskGate) -> dict[tuple[str, str], int]:
    return gate.gate.core.abuse.counts()


def test_an_agent_that_is_away_breaks_no_promise_by_not_installing_a_skill(
    mesh: SkillMesh,
) -> None:
    mesh.register("a2", mesh.a, takes_skills=True)
    mesh.register("b1", mesh.b, takes_skills=True)
    mesh.publish(capability())
    mesh.distribute()
    for secs in REPEATS * 3:
        mesh.wait(secs + 1)
    assert mesh.mesh["a"].incidents("sla_breach") == []
    assert mesh.mesh["b"].incidents("sla_breach") == []
