"""How gateways ask each other for an agent.

Who hosts an agent that the room says lives elsewhere asks its owner for it, with a signal, which
waits in the outbox for as long as the owner is away. The owner writes it down as it takes it, and
answers when it knows whether the agent is still served there: with the room's transfer, or with a
refusal.
"""

from typing import NamedTuple

from msgspec.structs import replace

from gatepost.delivery.node import Node
from gatepost.delivery.sender import Sender
from gatepost.events import Signal
from gatepost.journal.transaction import Tx
from gatepost.wire import AgentInfo

REQUEST = "transfer_request"
REFUSED = "transfer_refused"
_TAKE_OVER = "take_over"

_ASKED = "INSERT OR REPLACE INTO transfer_request VALUES (?, ?, ?, ?)"
_ALL = "SELECT agent, node, take_over, at FROM transfer_request ORDER BY at, agent, node"


class Request(NamedTuple):
    agent: str
    node: str
    take_over: bool
    at: int


class Transfers:
    """`asked` is when each agent was asked for last, `refused` who keeps it. Both are memory."""

    def __init__(self, node: Node, sender: Sender) -> None:
        self._node = node
        self._sender = sender
        self.asked: dict[str, int] = {}
        self.refused: dict[str, str] = {}

    def owner_elsewhere(self, agent: str) -> str | None:
        home = self._sender.directory.agents.get(agent)
        return None if home is None or home.owner == self._node.id else home.owner

    def describe(self, agent: AgentInfo) -> AgentInfo:
        """A local agent, with what the room says of it."""
        home = self._sender.directory.agents.get(agent.id)
        if home is None:
            return agent
        return replace(agent, owner=home.owner, rivals=home.rivals, problem=self._problem(agent))

    def _problem(self, agent: AgentInfo) -> str:
        owner = None if agent.standby else self.owner_elsewhere(agent.id)
        if owner is None:
            return ""
        if self.refused.get(agent.id) == owner:
            return f"{owner} serves it and keeps it; `gatepost agent claim {agent.id}` moves it"
        return f"it lives behind {owner}, which has not answered yet"

    def ask(self, tx: Tx, agent: str, take_over: bool = False) -> str | None:
        """Ask whoever owns the agent for it. Returns whom; None if that is nobody else."""
        owner = self.owner_elsewhere(agent)
        if owner is not None:
            reason = _TAKE_OVER if take_over else None
            self._sender.say(tx, owner, None, Signal(signal=REQUEST, to_agent=agent, reason=reason))
            self.asked[agent] = tx.now
            self.refused.pop(agent, None)
        return owner

    def heard(self, tx: Tx, source: str, said: Signal) -> None:
        """Another gateway asks for an agent, or refuses one."""
        agent = said.to_agent
        if agent is None:
            return
        if said.signal == REQUEST:
            tx.execute(_ASKED, (agent, source, said.reason == _TAKE_OVER, tx.now))
        elif source == self.owner_elsewhere(agent):
            self.refused[agent] = source

    def requests(self, tx: Tx) -> list[Request]:
        return [Request(row[0], row[1], bool(row[2]), row[3]) for row in tx.fetch_all(_ALL)]

    def refuse(self, tx: Tx, request: Request) -> None:
        """We keep it, and say so."""
        said = Signal(signal=REFUSED, to_agent=request.agent)
        self._sender.say(tx, request.node, None, said)
        self.forget(tx, request)

    def forget(self, tx: Tx, request: Request) -> None:
        query = "DELETE FROM transfer_request WHERE agent = ? AND node = ?"
        tx.execute(query, (request.agent, request.node))
