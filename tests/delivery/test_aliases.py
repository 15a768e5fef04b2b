"""Other names of agents."""

from collections.abc import Iterator

import pytest

from gatepost.delivery import aliases as module
from gatepost.delivery.agents import Agents
from gatepost.delivery.aliases import AgentAliases
from gatepost.errors import Conflict, NotFound, ReservedName, TooManyAgents, UnknownAgent
from gatepost.journal import Tx, open_memory_journal
from tests.delivery.mesh import Mesh


@pytest.fixture
def tx() -> Iterator[Tx]:
    connection = open_memory_journal()
    yield Tx(connection, 1000)
    connection.close()


@pytest.fixture
def aliases(tx: Tx) -> AgentAliases:
    agents = Agents()
    agents.register(tx, "bob")
    agents.register(tx, "cat")
    return AgentAliases(agents, Mesh("a")["a"].core.routes)


def test_an_alias_stands_for_its_agent_until_it_is_removed(tx: Tx, aliases: AgentAliases) -> None:
    aliases.add_alias(tx, "bob", "bobby")
    assert aliases.list_aliases(tx) == {"bobby": "bob"}
    assert [aliases.resolve_name(tx, name) for name in ("bobby", "bob", "x")] == ["bob", "bob", "x"]
    aliases.remove_alias(tx, "bobby")
    assert aliases.resolve_name(tx, "bobby") == "bobby"
    with pytest.raises(NotFound):
        aliases.remove_alias(tx, "bobby")


@pytest.mark.parametrize(
    ("agent", "alias", "error"),
    [
        ("bob", "Operator", ReservedName),
        ("bob", "cat", Conflict),
        ("bob", "bob", Conflict),
        ("nobody", "x", UnknownAgent),
    ],
)
def test_an_alias_is_no_agent_and_stands_for_one(
    tx: Tx, aliases: AgentAliases, agent: str, alias: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        aliases.add_alias(tx, agent, alias)
    assert not aliases.has_any(tx)


def test_an_alias_of_an_alias_is_refused(tx: Tx, aliases: AgentAliases) -> None:
    aliases.add_alias(tx, "bob", "bobby")
    with pytest.raises(UnknownAgent):
        aliases.add_alias(tx, "bobby", "rob")


def test_an_agent_that_comes_by_the_name_of_an_alias_goes_first(tx: Tx) -> None:
    agents = Agents()
    agents.register(tx, "bob")
    aliases = AgentAliases(agents, Mesh("a")["a"].core.routes)
    aliases.add_alias(tx, "bob", "bobby")
    agents.register(tx, "bobby")
    assert aliases.resolve_name(tx, "bobby") == "bobby"


def test_a_gateway_has_a_limited_number_of_aliases(
    tx: Tx, aliases: AgentAliases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ALIASES", 1)
    aliases.add_alias(tx, "bob", "bobby")
    aliases.add_alias(tx, "cat", "bobby")
    with pytest.raises(TooManyAgents):
        aliases.add_alias(tx, "bob", "rob")
