"""Registering and removing agents."""

from collections.abc import Iterator

import pytest

from gatepost.delivery import Agents
from gatepost.errors import UnknownAgent
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
