from typing import Any

import pytest

from gatepost.errors import InvalidRequest, UnknownCapability
from gatepost.room.records import SkillRef
from gatepost.tasks.capabilities.contract import ContractDocument
from gatepost.tasks.capabilities.publication import (
    NewCapability,
    catalog_record,
    check_executor_skill,
    check_publication,
    index_record,
    keep_publication,
    list_publications,
    load_publication,
    remove_publication,
    renew_indexes,
)
from gatepost.wire.operations import StatedSkill
from tests.tasks.harness import HubHarness


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


def is_known(agent: str) -> bool:
    return agent in ("al", "bob")


def test_each_publication_begins_a_new_version_of_the_index(hub: HubHarness) -> None:
    first = hub.run(lambda tx: keep_publication(tx, capability(), is_known))
    second = hub.run(
        lambda tx: keep_publication(tx, capability(eligible_agent_ids=["al"]), is_known)
    )
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


def test_the_owner_must_host_the_executor_skill() -> None:
    check_publication(capability(), is_hosted=True)
    with pytest.raises(InvalidRequest, match="'bob' does not live behind this gateway"):
        check_publication(capability(), is_hosted=False)


def test_an_agent_that_comes_or_goes_begins_a_new_version_of_the_index(hub: HubHarness) -> None:
    new = capability(eligible_agent_ids=["al"])
    hub.run(lambda tx: keep_publication(tx, new, is_known))
    assert hub.run(lambda tx: renew_indexes(tx, is_known)) == []
    (renewed,) = hub.run(lambda tx: renew_indexes(tx, lambda agent: agent == "al"))
    record = index_record(renewed, 1)
    assert (record.eligible_agent_ids, record.policy_version) == (("al",), 2)
    assert hub.run(list_publications) == [renewed]


@pytest.mark.parametrize(
    ("stated", "missing"),
    [
        ((), "it does not state this skill"),
        ((StatedSkill("skills/do", "1.1"),), "it has version 1.1"),
    ],
)
def test_the_executor_skill_is_one_that_its_owner_states(
    stated: tuple[StatedSkill, ...], missing: str
) -> None:
    for fitting in (None, (*stated, StatedSkill("skills/do", "1.2"))):
        check_executor_skill(capability(), fitting)
    with pytest.raises(InvalidRequest, match=f"'skills/do' 1.2: {missing}"):
        check_executor_skill(capability(), stated)
