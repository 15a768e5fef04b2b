"""The wire operations: one implementation for HTTP, WebSocket, Unix socket and drop folder."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from gatepost.access import SourceRateLimiter, TokenBucket
from gatepost.core.gateway_core import Core, TransactionPlan
from gatepost.core.wait_registry import WaitRegistry
from gatepost.errors import GatepostError, InternalError
from gatepost.gateway.api.dead_letter_operations import DeadLetterOperations
from gatepost.gateway.api.mailbox_operations import MailboxOperations
from gatepost.gateway.api.send_operations import SendOperations
from gatepost.journal import Tx
from gatepost.tasks.service.task_operations import TaskOperations
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import (
    Ack,
    AnyAnswer,
    Await,
    Dequeue,
    Enqueue,
    Extend,
    Failed,
    Failure,
    Nack,
    NewSend,
    Peek,
    PeekDeadLetter,
    Purge,
    PurgeDeadLetter,
    Register,
    Registered,
    Send,
)
from gatepost.wire.tasks import NewTask, TaskAwait, TaskCancel, TaskCreate, TaskReports

log = logging.getLogger(__name__)

# The operations of an agent with its own mailbox. A person may browse or purge it too.
_AGENT_OPERATIONS = (Dequeue, Ack, Nack, Extend)


class Operations:
    """Runs wire operations. `plan_transaction` makes one transaction of an operation, if it can."""

    def __init__(self, core: Core) -> None:
        self.core = core
        limits = core.settings.limits
        # The local token has one bucket, and each session of an external agent has its own.
        self.bucket = TokenBucket(limits.rate_per_sec, limits.burst, core.clock)
        self._session_buckets = SourceRateLimiter(limits.rate_per_sec, limits.burst, core.clock)
        self.waits = WaitRegistry(limits.long_poll_max_secs)
        self.mailboxes = MailboxOperations(core, self.waits)
        self.sends = SendOperations(core, self.waits)
        self.tasks = TaskOperations(core, self.waits)
        self.dead_letters = DeadLetterOperations(core)
        self._planners: dict[type[Op], Callable[[Any], TransactionPlan | None]] = {
            Enqueue: self.mailboxes.plan_enqueue,
            Send: self.sends.plan_send,
            Ack: self.mailboxes.plan_ack,
            Nack: self.mailboxes.plan_nack,
            Extend: self.mailboxes.plan_extend,
            Register: self._plan_register,
            TaskCreate: self.tasks.plan_create,
            TaskReports: self.tasks.plan_reports,
            TaskCancel: self.tasks.plan_cancel,
        }
        self._performers: dict[type[Op], Callable[[Any], Awaitable[AnyAnswer]]] = {
            Dequeue: self.mailboxes.perform_dequeue,
            Ack: self.mailboxes.perform_ack,
            Send: self.sends.perform_send,
            Await: self.sends.perform_await,
            Peek: self.mailboxes.perform_peek,
            Purge: self.mailboxes.perform_purge,
            PeekDeadLetter: self.dead_letters.perform_peek,
            PurgeDeadLetter: self.dead_letters.perform_purge,
            TaskCreate: self.tasks.perform_create,
            TaskReports: self.tasks.perform_reports,
            TaskAwait: self.tasks.perform_await,
        }

    def plan_transaction(self, op: Op) -> TransactionPlan | None:
        """Return the transaction that does all of `op`, or None if it needs more than one."""
        self.core.agents.note_activity(*acting_agents(op))
        make = self._planners.get(type(op))
        return None if make is None else make(op)

    async def perform(self, op: Op) -> Any:
        """Run `op` and return its reply; raise its error."""
        if (plan := self.plan_transaction(op)) is not None:
            return await self.core.commit(plan)
        return await self._performers[type(op)](op)

    async def answer(self, op: Op) -> AnyAnswer:
        """Run `op` and return its reply; an error becomes a Failed reply."""
        try:
            reply: AnyAnswer = await self.perform(op)
            return reply
        except GatepostError as error:
            return Failed(re=op.id, error=Failure.from_error(error))
        except Exception:
            log.exception("an operation failed unexpectedly")
            return Failed(
                re=op.id, error=Failure.from_error(InternalError("an internal error; see the log"))
            )

    def admit(self, op: Op) -> None:
        """Raise RateLimited if the clients with the local token exceed its rate limit."""
        self.bucket.take_tokens(operation_weight(op))

    def admit_for_session(self, op: Op, session: str) -> None:
        """Raise RateLimited if this session of an external agent exceeds its rate limit."""
        self._session_buckets.take_token(session, operation_weight(op))

    def _plan_register(self, op: Register) -> TransactionPlan:
        def register_agent(tx: Tx) -> AnyAnswer:
            # Registering again without `standby` keeps the current state.
            self.core.agents.register(
                tx,
                op.agent,
                standby=op.standby or None,
                role=op.role,
                takes_skills=op.takes_skills,
                executor_skills=op.executor_skills,
            )
            if op.order is not None:
                self.core.dispatcher.set_order(tx, op.agent, op.order)
            transfers = self.core.delivery.transfers
            if self.core.agents.is_standby(tx, op.agent):
                return Registered(re=op.id)
            transfers.ask_owner(tx, op.agent)
            return Registered(re=op.id, problem=transfers.find_problem(op.agent))

        return register_agent


def acting_agents(op: Op) -> Iterable[str]:
    """Return the agents that show a sign of life by this operation."""
    if isinstance(op, Send):
        return {new.from_agent for new in op.messages}
    if isinstance(op, TaskCreate):
        return {new.from_agent for new in op.tasks}
    if isinstance(op, TaskReports):
        return {report.agent for report in op.reports}
    return (op.mailbox,) if isinstance(op, _AGENT_OPERATIONS) else ()


def operation_weight(op: Op) -> int:
    """Return the number of rate-limit tokens an operation costs."""
    if isinstance(op, Send):
        return sum(_target_count(new) for new in op.messages)
    if isinstance(op, TaskCreate):
        return sum(_target_count(new) for new in op.tasks)
    if isinstance(op, TaskReports):
        return len(op.reports)
    return len(op.messages) if isinstance(op, Enqueue) else 1


def _target_count(new: NewTask | NewSend) -> int:
    return len(new.to_agents) if isinstance(new.to_agents, list) else 1
