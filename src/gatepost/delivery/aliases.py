"""Aliases: other names for agents, which senders at this gateway may use.

An alias is a name for receivers, and never an identity: it is replaced by the agent it stands for
before anything else is done, so no agent can register, send or take mail under it. If an agent
registers under the name of an alias, the agent wins.
"""

from gatepost.delivery.agents import Agents
from gatepost.delivery.routes import RouteFinder
from gatepost.errors import Conflict, NotFound, TooManyAgents, UnknownAgent
from gatepost.events.reserved_names import require_agent_name
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Tx

MAX_ALIASES = 1000

_SELECT = "SELECT alias, agent FROM alias ORDER BY alias"
_SAVE = "INSERT OR REPLACE INTO alias (alias, agent) VALUES (?, ?)"


class AgentAliases:
    """Use it in the writer's thread only, except for `list_aliases`."""

    def __init__(self, agents: Agents, routes: RouteFinder) -> None:
        self._agents = agents
        self._routes = routes
        # As in the journal; read again after a change.
        self._known: dict[str, str] | None = None

    def has_any(self, tx: Tx) -> bool:
        return bool(self._load(tx))

    def resolve_name(self, tx: Tx, name: str) -> str:
        """The agent that a sender means by a name."""
        agent = self._load(tx).get(name)
        return name if agent is None or self._is_agent(tx, name) else agent

    def add_alias(self, tx: Tx, agent: str, alias: str) -> None:
        """Let `alias` stand for an agent, here or elsewhere in the room."""
        require_agent_name(alias)
        if self._is_agent(tx, alias):
            raise Conflict(f"{alias!r} is an agent, and cannot be an alias too")
        if not self._is_agent(tx, agent):
            raise UnknownAgent(f"no gateway knows an agent {agent!r}, and an alias is for an agent")
        known = self._load(tx)
        if alias not in known and len(known) >= MAX_ALIASES:
            raise TooManyAgents(f"this gateway has {len(known)} aliases, its maximum; remove some")
        tx.execute(_SAVE, (alias, agent))
        record_audit_entry(tx, "operator", "agent.alias", agent, alias)
        self._forget(tx)

    def remove_alias(self, tx: Tx, alias: str) -> None:
        tx.execute("DELETE FROM alias WHERE alias = ?", (alias,))
        if not tx.changed_rows():
            raise NotFound(f"this gateway has no alias {alias!r}; see `gatepost agent alias`")
        record_audit_entry(tx, "operator", "agent.unalias", alias, "")
        self._forget(tx)

    def list_aliases(self, tx: Tx) -> dict[str, str]:
        """The agent of each alias."""
        return dict(tx.fetch_all(_SELECT))

    def _is_agent(self, tx: Tx, name: str) -> bool:
        home = self._routes.directory.agents.get(name)
        return (home is not None and home.owner is not None) or self._agents.is_registered(tx, name)

    def _load(self, tx: Tx) -> dict[str, str]:
        if self._known is None:
            self._known = self.list_aliases(tx)
            # They may come from a group that is rolled back.
            tx.on_rollback(self._drop)
        return self._known

    def _forget(self, tx: Tx) -> None:
        self._drop()
        tx.on_rollback(self._drop)

    def _drop(self) -> None:
        self._known = None
