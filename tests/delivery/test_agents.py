"""Registering and removing agents."""

from collections.abc import Iterator

import pytest

from gatepost.delivery import Agents
from gatepost.errors import TooManyAgents, UnknownAgent
from gatepost.journal import Tx, open_memory_journal


@pytest.fixture
def tx() -> Iterator[Tx]:
    connection = open_memory_journal()
    yield Tx(connection, 1000)
    connection.close()


def test_registering_again_only_updates_when_it_was_seen(tx: Tx) -> None:
    agents = Agents()
    agents.register(tx, "al")
    tx.now = 2000
    again = agents.register(tx, "al", "internal")
    assert (again.type, again.created_at, again.seen_at) == ("external", 1000, 2000)
    assert [agent.id for agent in agents.list(tx)] == ["al"]


def test_an_unknown_agent_is_an_error_that_says_what_to_do(tx: Tx) -> None:
    with pytest.raises(UnknownAgent, match="gatepost agent add al"):
        Agents().get(tx, "al")
    assert not Agents().is_registered(tx, "al")


def test_removal_is_audited(tx: Tx) -> None:
    agents = Agents()
    agents.register(tx, "al")
    agents.remove(tx, "al", "operator")
    assert not agents.is_registered(tx, "al")
    found = tx.fetch_all("SELECT actor, action, subject FROM audit")
    assert found == [("operator", "agent.remove", "al")]
    with pytest.raises(UnknownAgent):
        agents.remove(tx, "al", "operator")


def test_no_more_agents_than_the_limit_are_registered_and_removal_makes_place(tx: Tx) -> None:
    agents = Agents(max_agents=2)
    for name in ("al", "bo"):
        agents.register(tx, name)
    with pytest.raises(TooManyAgents, match="gatepost agent remove"):
        agents.register(tx, "cy")
    assert agents.register(tx, "bo").id == "bo", "an agent that is there registers again"
    agents.remove(tx, "al", "operator")
    assert agents.register(tx, "cy").id == "cy"


def test_a_role_is_set_and_kept(tx: Tx) -> None:
    agents = Agents()
    assert agents.register(tx, "al", role="worker").role == "worker"
    assert agents.register(tx, "al").role == "worker"
    assert agents.register(tx, "al", role="maintenance").role == "maintenance"


def test_activity_moves_the_time_an_agent_was_seen_and_not_its_registration(tx: Tx) -> None:
    agents = Agents()
    for name in ("al", "bo", "cy"):
        agents.register(tx, name)
    tx.now = 5000
    agents.note_activity("al", "nobody")
    agents.save_activity(tx, ["bo"])
    assert [agent.seen_at for agent in agents.list(tx)] == [5000, 5000, 1000]
    assert agents.registered_at(tx, "al") == 1000
    tx.now = 6000
    agents.save_activity(tx)
    assert agents.get(tx, "al").seen_at == 5000
