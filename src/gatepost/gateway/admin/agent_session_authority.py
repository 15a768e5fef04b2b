"""The limits on operations of external agents: scopes, their own messages and tasks, their rate."""

from msgspec import UnsetType

from gatepost.access import AgentSession, SourceRateLimiter, authorize_op
from gatepost.core.gateway_core import TransactionPlan
from gatepost.delivery.delivery_reads import sender_of
from gatepost.errors import Forbidden
from gatepost.events import parse_event_id
from gatepost.gateway.admin.agent_blobs import AgentBlobs
from gatepost.gateway.api.operations import Operations
from gatepost.journal import Tx
from gatepost.tasks.task_table import load_task
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import Ack, AnyAnswer, Await, Enqueue, Send
from gatepost.wire.tasks import TaskAwait, TaskCancel, TaskCreate, TaskReports

_CALLS_PER_SEC, _CALL_BURST = 200.0, 1000


class AgentSessionRules:
    """The rules for operations of all sessions of external agents."""

    def __init__(self, operations: Operations, blobs: AgentBlobs) -> None:
        self._operations = operations
        self._core = operations.core
        self._blobs = blobs
        self._limiter = SourceRateLimiter(_CALLS_PER_SEC, _CALL_BURST, self._core.clock)

    def take_call(self, session: AgentSession) -> None:
        """Count one call against the rate limit of the session."""
        self._limiter.take_token(session.id)

    def admit(self, session: AgentSession, op: Op) -> None:
        self._operations.admit_for_session(op, session.id)

    def restrict_plan(self, op: Op, plan: TransactionPlan) -> TransactionPlan:
        """Refuse mail for unknown agents, so that a session cannot create mailboxes."""
        if not isinstance(op, Enqueue):
            return plan
        receivers = {message.to for message in op.messages}

        def enqueue_for_known(tx: Tx) -> AnyAnswer:
            for receiver in receivers:
                agent = self._core.aliases.resolve_name(tx, receiver)
                self._core.admission.require_known(tx, agent)
            return plan(tx)

        return enqueue_for_known

    async def check_subject(self, session: AgentSession, op: Op) -> None:
        """Refuse operations on mail, tasks or blobs of others, and beyond the quota."""
        if isinstance(op, Await):
            await self._check_sender(session, op)
        if isinstance(op, TaskAwait | TaskCancel):
            await self._check_task(session, op)
        for digest in _named_blobs(op):
            await self._blobs.find_key(session, digest)
        if self.has_large_message(op):
            await self._blobs.require_quota(session.agent_id)

    def has_large_message(self, op: Op) -> bool:
        """Whether a payload becomes a blob, which counts as an upload of the agent."""
        most = self._core.settings.limits.max_payload_inline
        payloads = [new.payload for new in op.messages] if isinstance(op, Send) else []
        sizes = (0 if isinstance(each, UnsetType) else memoryview(each).nbytes for each in payloads)
        return any(size > most for size in sizes)

    async def _check_sender(self, session: AgentSession, op: Await) -> None:
        id = parse_event_id(op.event_id)
        sender = await self._core.read(lambda tx: sender_of(tx, id))
        if sender not in (None, session.agent_id):
            raise Forbidden(f"this message was not sent by {session.agent_id}")

    async def _check_task(self, session: AgentSession, op: TaskAwait | TaskCancel) -> None:
        """Allow an agent to see tasks that it requested or executes, and to cancel the former."""
        task = await self._core.read(lambda tx: load_task(tx, op.task_id))
        parties = (task.requester, task.agent) if isinstance(op, TaskAwait) else (task.requester,)
        if session.agent_id not in parties:
            raise Forbidden(f"this is not a task of {session.agent_id}")


class AgentSessionAuthority:
    """Limits the frames of one session to its scopes, its agent and its rate."""

    def __init__(self, rules: AgentSessionRules, session: AgentSession) -> None:
        self._rules = rules
        self._session = session

    def authorize(self, op: Op) -> None:
        authorize_op(self._session, op)
        self._rules.take_call(self._session)

    def has_subject(self, op: Op) -> bool:
        if isinstance(op, Await | TaskAwait | TaskCancel):
            return True
        return bool(_named_blobs(op)) or self._rules.has_large_message(op)

    async def check_subject(self, op: Op) -> None:
        await self._rules.check_subject(self._session, op)

    def restrict_plan(self, op: Op, plan: TransactionPlan) -> TransactionPlan:
        return self._rules.restrict_plan(op, plan)

    def admit(self, op: Op) -> None:
        self._rules.admit(self._session, op)


def _named_blobs(op: Op) -> list[str]:
    """The blobs that an operation refers to, all of which must be the agent's own."""
    if isinstance(op, Ack):
        return list(op.reply_refs.values())
    if isinstance(op, TaskCreate):
        return [new.input_ref for new in op.tasks if isinstance(new.input_ref, str)]
    if isinstance(op, TaskReports):
        return [each.result_ref for each in op.reports if isinstance(each.result_ref, str)]
    messages = op.messages if isinstance(op, Send) else ()
    return [new.payload_ref for new in messages if isinstance(new.payload_ref, str)]
