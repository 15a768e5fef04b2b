"""Transfer requests: how gateways ask each other for an agent.

A gateway that hosts an agent which the room says lives elsewhere asks its owner for it, with a
signal. The signal waits in the outbox for as long as the owner is away. The owner writes the
request down, and answers when it knows whether the agent is still served there: with the room's
transfer, or with a refusal.
"""

from typing import NamedTuple

from msgspec.structs import replace

from gatepost.delivery.decisions import TransferSignal
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.routes import RouteFinder
from gatepost.events import Signal
from gatepost.journal.transaction import Tx
from gatepost.wire import AgentInfo

_REQUEST = "transfer_request"
_REFUSAL = "transfer_refused"
TRANSFER_SIGNALS = (_REQUEST, _REFUSAL)
_TAKE_OVER = "take_over"

_KEEP_REQUEST = """
INSERT OR REPLACE INTO transfer_request (agent, node, take_over, at) VALUES (?, ?, ?, ?)
"""
_SELECT_REQUESTS = """
SELECT agent, node, take_over, at FROM transfer_request ORDER BY at, agent, node
"""


class TransferRequest(NamedTuple):
    """`node` asks for `agent`; with `take_over` even though it is served here."""

    agent: str
    node: str
    take_over: bool
    at: int


class Transfers:
    """`asked` is when each agent was last asked for, `refused` the node that keeps it.

    Both are memory only.
    """

    def __init__(self, node: LocalNode, routes: RouteFinder, writer: OutboxWriter) -> None:
        self._node_id = node.id
        self._routes = routes
        self._writer = writer
        self.asked: dict[str, int] = {}
        self.refused: dict[str, str] = {}

    def owner_elsewhere(self, agent: str) -> str | None:
        return self._routes.remote_owner(agent)

    def describe_agent(self, agent: AgentInfo) -> AgentInfo:
        """A local agent, with its owner, rivals and problem according to the room."""
        home = self._routes.directory.agents.get(agent.id)
        if home is None:
            return agent
        problem = self._find_problem(agent)
        return replace(agent, owner=home.owner, rivals=home.rivals, problem=problem)

    def _find_problem(self, agent: AgentInfo) -> str:
        owner = None if agent.standby else self.owner_elsewhere(agent.id)
        if owner is None:
            return ""
        if self.refused.get(agent.id) == owner:
            return f"{owner} serves it and keeps it; `gatepost agent claim {agent.id}` moves it"
        return f"it lives behind {owner}, which has not answered yet"

    def ask_owner(
        self, tx: Tx, agent: str, take_over: bool = False, owner: str | None = None
    ) -> str | None:
        """Ask the owner of an agent for it. Returns the owner; None if no other node owns it."""
        owner = owner or self.owner_elsewhere(agent)
        if owner not in (None, self._node_id):
            reason = _TAKE_OVER if take_over else None
            self._send_signal(tx, owner, Signal(signal=_REQUEST, to_agent=agent, reason=reason))
            self.asked[agent] = tx.now
            self.refused.pop(agent, None)
        return owner

    def apply_transfer_signal(self, tx: Tx, arrived: TransferSignal) -> None:
        """Another gateway asks for an agent, or refuses to give one away."""
        source, signal = arrived
        agent = signal.to_agent
        if agent is None:
            return
        if signal.signal == _REQUEST:
            tx.execute(_KEEP_REQUEST, (agent, source, signal.reason == _TAKE_OVER, tx.now))
        elif source == self.owner_elsewhere(agent):
            self.refused[agent] = source

    def requests(self, tx: Tx) -> list[TransferRequest]:
        rows = tx.fetch_all(_SELECT_REQUESTS)
        return [TransferRequest(row[0], row[1], bool(row[2]), row[3]) for row in rows]

    def refuse_request(self, tx: Tx, request: TransferRequest) -> None:
        """Keep the agent, and tell the node that asked for it."""
        self._send_signal(tx, request.node, Signal(signal=_REFUSAL, to_agent=request.agent))
        self.forget_request(tx, request)

    def forget_request(self, tx: Tx, request: TransferRequest) -> None:
        query = "DELETE FROM transfer_request WHERE agent = ? AND node = ?"
        tx.execute(query, (request.agent, request.node))

    def _send_signal(self, tx: Tx, node: str, signal: Signal) -> None:
        """Only ever to another node, so there is no decision to pass on."""
        self._writer.append_signal(tx, node, None, signal)
