"""Settles an agent's turns: acks those that are done, nacks those that failed."""

import asyncio
import logging
from functools import partial
from typing import Any

from gatepost.client._agents.agent_turns import AgentTurn, AgentTurns, TurnState
from gatepost.client._agents.failure_reason import failure_reason
from gatepost.client._client import Client
from gatepost.errors import (
    IdempotencyConflict,
    InvalidRequest,
    PayloadTooLarge,
    StaleLeaseHandle,
    UnknownBlob,
    UnknownMessage,
    WrongState,
)

# The gateway will never take the end of this turn: its lease is lost, or it ended otherwise.
_LOST_LEASES = (StaleLeaseHandle, WrongState, UnknownMessage, IdempotencyConflict)
# The gateway will never take this reply, however often it is sent.
_REFUSALS = (InvalidRequest, PayloadTooLarge, UnknownBlob)

log = logging.getLogger("gatepost.client")


class TurnSettler:
    """A turn is held until the gateway confirms its ack or nack."""

    def __init__(self, client: Client, mailbox: str, turns: AgentTurns) -> None:
        self._client = client
        self._mailbox = mailbox
        self._turns = turns
        self._settlements: set[asyncio.Future[Any]] = set()

    def settle_turn(self, turn: AgentTurn) -> None:
        """Ack or nack the turn; `_handle_settled` gets the gateway's answer."""
        if turn.settling:
            return
        turn.settling = True
        lease_handle = turn.lease_handle
        if turn.state is TurnState.DONE:
            future = self._client.ack(self._mailbox, lease_handle, reply=turn.reply)
        else:
            retry = not turn.rejected
            future = self._client.nack(self._mailbox, lease_handle, reason=turn.reason, retry=retry)
        self._settlements.add(future)
        future.add_done_callback(partial(self._handle_settled, turn, lease_handle))

    async def wait_until_settled(self, deadline: float) -> None:
        """Wait until the gateway has answered all settlements, or until the deadline."""
        loop = asyncio.get_running_loop()
        while self._settlements and loop.time() < deadline:
            await asyncio.wait(list(self._settlements), timeout=deadline - loop.time())

    def _handle_settled(
        self, turn: AgentTurn, lease_handle: str, future: "asyncio.Future[Any]"
    ) -> None:
        self._settlements.discard(future)
        turn.settling = False
        error = None if future.cancelled() else future.exception()
        if error is None:
            self._turns.forget_turn(turn)
        elif isinstance(error, _REFUSALS) and turn.state is TurnState.DONE:
            log.warning("the reply for %s cannot be sent: %s", turn.message, error)
            self._turns.mark_refused(turn, failure_reason(error))
            self.settle_turn(turn)
        elif not isinstance(error, _LOST_LEASES + _REFUSALS):
            # The turn has ended, so it is settled again at the next heartbeat or when the message
            # is delivered again.
            log.warning("the end of the turn for %s is not confirmed yet: %s", turn.message, error)
        elif turn.lease_handle != lease_handle:
            self.settle_turn(turn)
        else:
            log.warning(
                "the turn for %s ended too late and does not count: %s", turn.message, error
            )
            self._turns.forget_turn(turn)
