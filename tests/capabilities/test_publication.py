from typing import Any

import pytest

from gatepost.capabilities.contract import ContractDocument
from gatepost.capabilities.publication import (
    NewCapability,
    catalog_record,
    check_publication,
    index_record,
    keep_publication,
    list_installs,
    list_publications,
    load_publication,
    missing_installs,
    note_install_task,
    remove_publication,
)
from gatepost.errors import InvalidRequest, UnknownCapability
from gatepost.events import parse_event_id
from gatepost.hub.task_states import TaskState
from gatepost.room.records import SkillRef
from tests.hub.harness import HubHarness


def capability(**fields: Any) -> NewCapability:
    given: dict[str, Any] = {
        "capability_id": "review",
        "name": "Review",
        "version": "1.0",
        "owner_agent_id": "bob",
        "delegation_skill": SkillRef(ref="skills/ask", version="1.1"),
        "executor_skill": SkillRef(ref="skills/do", version="1.2"),
        "default_eta_seconds": 60,
        "contract": ContractDocument(),
    }
    return NewCapability(**(given | fields))


def test_each_publication_begins_a_new_version_of_the_index(hub: HubHarness) -> None:
    first = hub.run(lambda tx: keep_publication(tx, capability()))
    second = hub.run(lambda tx: keep_publication(tx, capability(eligible_agent_ids=["al"])))
    assert (first.policy_version, second.policy_version) == (1, 2)
    assert index_record(second, 3).eligible_agent_ids == ("bob", "al")
    record = catalog_record(second, 3)
    assert (record.epoch, record.status, record.contract_schema_ref) == (
        3, "active", second.contract
    )  # fmt: skip
    assert hub.run(list_publications) == [second]
    hub.run(lambda tx: remove_publication(tx, "review"))
    with pytest.raises(UnknownCapability):
        hub.run(lambda tx: load_publication(tx, "review"))


def test_agents_are_asked_until_they_have_the_skill(hub: HubHarness) -> None:
    published = hub.run(lambda tx: keep_publication(tx, capability()))
    agents = ["al", "bob", "carol", "dave", "eve"]
    for agent, state in (("al", "completed"), ("carol", "failed"), ("dave", "pending")):
        ended = None if state == "pending" else 5
        task = hub.add_task(state=TaskState(state), ended_at=ended)
        hub.run(
            lambda tx, agent=agent, task=task: note_install_task(  # type: ignore[misc]
                tx, "review", agent, "1.1", parse_event_id(task)
            )
        )
    found = {each.agent: each.status for each in hub.run(lambda tx: list_installs(tx, "review"))}
    assert found == {"al": "installed", "carol": "failed", "dave": "pending"}
    missing = hub.run(lambda tx: missing_installs(tx, published, agents))
    assert missing == ["carol", "eve"], "not the owner, nor who has it or was just asked"
    newer = capability(delegation_skill=SkillRef(ref="skills/ask", version="2.0"))
    published = hub.run(lambda tx: keep_publication(tx, newer))
    assert hub.run(lambda tx: missing_installs(tx, published, ["al"])) == ["al"]


def test_the_owner_must_host_the_executor_skill() -> None:
    check_publication(capability(), is_hosted=True)
    with pytest.raises(InvalidRequest, match="'bob' does not live behind this gateway"):
        check_publication(capability(), is_hosted=False)
