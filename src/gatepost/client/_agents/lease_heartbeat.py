"""Extends the leases of an agent's turns while it holds any."""

import asyncio
import logging

from gatepost.client._agents.agent_turns import AgentTurn, AgentTurns
from gatepost.client._agents.turn_settler import TurnSettler
from gatepost.client._client import Client
from gatepost.errors import GatepostError

log = logging.getLogger("gatepost.client")


class LeaseHeartbeat:
    """Beats three times per lease until no turn is held; `start` is called with new mail."""

    def __init__(
        self, client: Client, mailbox: str, turns: AgentTurns, settler: TurnSettler
    ) -> None:
        self._client = client
        self._mailbox = mailbox
        self._turns = turns
        self._settler = settler
        self._timer: asyncio.TimerHandle | None = None
        self._extensions: set[asyncio.Task[None]] = set()

    def start(self, lease_secs: float) -> None:
        """Start beating, unless it beats already."""
        if self._timer is None:
            self._schedule_beat(lease_secs)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._extensions:
            task.cancel()

    def _schedule_beat(self, lease_secs: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(lease_secs / 3, self._beat, lease_secs)

    def _beat(self, lease_secs: float) -> None:
        """Extend leases that were not just renewed; settle again turns that ended unconfirmed."""
        self._timer = None
        if not len(self._turns):
            return
        loop = asyncio.get_running_loop()
        for turn in self._turns:
            if turn.has_ended:
                self._settler.settle_turn(turn)
        due = [t for t in self._turns if t.lease_until - loop.time() < lease_secs * 0.75]
        if due:
            extending = loop.create_task(self._extend_leases(due, lease_secs))
            self._extensions.add(extending)
            extending.add_done_callback(self._extensions.discard)
        self._schedule_beat(lease_secs)

    async def _extend_leases(self, turns: list[AgentTurn], lease_secs: float) -> None:
        until = asyncio.get_running_loop().time() + lease_secs
        lease_handles = [turn.lease_handle for turn in turns]
        try:
            stale = await self._client.extend(self._mailbox, lease_handles, timeout=lease_secs)
        except GatepostError as error:
            log.warning("leases of agent %s could not be extended: %s", self._mailbox, error)
        except Exception:
            log.exception("a heartbeat of agent %s failed unexpectedly", self._mailbox)
        else:
            for turn in turns:
                turn.lease_until = max(turn.lease_until, until)
            self._turns.drop_lost_leases(stale)
