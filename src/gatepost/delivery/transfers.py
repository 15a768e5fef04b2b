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
from gatepost.wire.gateway_views import AgentInfo

_REQUEST = "transfer_request"
_REFUSAL = "transfer_refused"
TRANSFER_SIGNALS = (_REQUEST, _REFUSAL)
# Reasons of a refusal: the agent is served, or its gateway gives it only with consent.
SERVED = "served"
CONSENT = "consent"
_MAX_REQUESTS = 1000

_KEEP_REQUEST = "INSERT OR REPLACE INTO transfer_request (agent, node, at) VALUES (?, ?, ?)"
_SELECT_REQUESTS = "SELECT agent, node, at FROM transfer_request ORDER BY at, agent, node"
_COUNT_REQUESTS = "SELECT count(*) FROM transfer_request WHERE node = ?"


class TransferRequest(NamedTuple):
    """`node` asks for `agent`."""

    agent: str
    node: str
    at: int


class TransferRefusal(NamedTuple):
    """`node` keeps the agent, for `reason`."""

    node: str
    reason: str

    def explain(self, agent: str, asker: str) -> str:
        """Why the agent did not move, and what to do about it."""
        consent = f"let the operator of {self.node} run `gatepost agent give {agent} {asker}`"
        if self.reason == SERVED:
            return f"{self.node} serves it and keeps it: stop it there and claim it, or {consent}"
        return f"{self.node} keeps it until it agrees to a transfer: {consent}"


class Transfers:
    """`asked` is when each agent was last asked for, `refused` the refusal of its owner.

    Both are memory only.
    """

    def __init__(self, node: LocalNode, routes: RouteFinder, writer: OutboxWriter) -> None:
        self._node_id = node.id
        self._routes = routes
        self._writer = writer
        self.asked: dict[str, int] = {}
        self.refused: dict[str, TransferRefusal] = {}

    def owner_elsewhere(self, agent: str) -> str | None:
        return self._routes.remote_owner(agent)

    def describe_agent(self, agent: AgentInfo) -> AgentInfo:
        """A local agent, with its owner, rivals and problem according to the room."""
        home = self._routes.directory.agents.get(agent.id)
        if home is None:
            return agent
        problem = "" if agent.standby else self.find_problem(agent.id)
        return replace(agent, owner=home.owner, rivals=home.rivals, problem=problem)

    def find_problem(self, agent: str) -> str:
        """Why mail for an agent that is hosted here goes elsewhere; empty if it stays here."""
        owner = self.owner_elsewhere(agent)
        if owner is None:
            return ""
        refusal = self.refused.get(agent)
        if refusal is not None and refusal.node == owner:
            return refusal.explain(agent, self._node_id)
        return (
            f"it lives behind {owner}, which was asked for it and has not answered yet: run it"
            f" there, or let the operator of {owner} run `gatepost agent give {agent}"
            f" {self._node_id}`"
        )

    def ask_owner(self, tx: Tx, agent: str, owner: str | None = None) -> str | None:
        """Ask the owner of an agent for it. Returns the owner; None if no other node owns it."""
        owner = owner or self.owner_elsewhere(agent)
        if owner not in (None, self._node_id):
            self._send_signal(tx, owner, Signal(signal=_REQUEST, to_agent=agent))
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
            self._keep_request(tx, agent, source)
        elif source == self.owner_elsewhere(agent):
            self.refused[agent] = TransferRefusal(source, signal.reason or SERVED)

    def _keep_request(self, tx: Tx, agent: str, source: str) -> None:
        """Keep a request if the agent is ours, within the share of the node that asks."""
        home = self._routes.directory.agents.get(agent)
        ((count,),) = tx.fetch_all(_COUNT_REQUESTS, (source,))
        if home is not None and home.owner == self._node_id and count < _MAX_REQUESTS:
            tx.execute(_KEEP_REQUEST, (agent, source, tx.now))

    def requests(self, tx: Tx) -> list[TransferRequest]:
        rows = tx.fetch_all(_SELECT_REQUESTS)
        return [TransferRequest(*row) for row in rows]

    def refuse_request(self, tx: Tx, request: TransferRequest, reason: str) -> None:
        """Keep the agent, and tell the node that asked for it."""
        refusal = Signal(signal=_REFUSAL, to_agent=request.agent, reason=reason)
        self._send_signal(tx, request.node, refusal)
        self.forget_request(tx, request)

    def forget_request(self, tx: Tx, request: TransferRequest) -> None:
        query = "DELETE FROM transfer_request WHERE agent = ? AND node = ?"
        tx.execute(query, (request.agent, request.node))

    def _send_signal(self, tx: Tx, node: str, signal: Signal) -> None:
        """It always goes to another node, so it causes no decision here."""
        self._writer.append_signal(tx, node, None, signal)
