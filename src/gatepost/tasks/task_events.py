"""The events of tasks: requests to executors, and the reports of executors."""

from msgspec import UNSET
from msgspec.structs import replace

from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.outbox_writer import ACCEPTED, KEPT, draft_acceptance
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent
from gatepost.delivery.payloads import encrypt_for
from gatepost.delivery.send import draft_event, emit_report, send_unordered
from gatepost.events import (
    EncryptedPayload,
    Envelope,
    EventKind,
    PayloadRef,
    Receipt,
    TaskInfo,
    Trace,
    decode_payload,
)
from gatepost.journal.transaction import Tx
from gatepost.tasks.task_table import Task

# Reports that can lack content.
_OFTEN_EMPTY = (EventKind.TASK_ACCEPT, EventKind.TASK_UPDATE)


class TaskEvents:
    def __init__(self, core: DeliveryCore) -> None:
        self._core = core
        self._node = core.node

    def send_cancel(self, tx: Tx, out: OutgoingEvent, node: str | None) -> None:
        """Send a cancellation to the gateway that executes the task, wherever its agent lives."""
        self._core.coordinator.send_event(tx, out, node)

    def send_requests(self, tx: Tx, events: list[OutgoingEvent]) -> None:
        """Send tasks to the mailboxes or gateways of their agents, those of each pair together."""
        pairs: dict[tuple[str, str], list[OutgoingEvent]] = {}
        for out in events:
            pairs.setdefault(out.agents, []).append(out)
        for (_, to_agent), together in pairs.items():
            route = self._core.routes.find_route(tx, to_agent)
            self._core.routes.require_member(route)
            decisions = send_unordered(self._core.parts, tx, together, route)
            self._core.coordinator.apply_decisions(tx, decisions)

    def record_request(self, tx: Tx, out: OutgoingEvent, expires: int) -> None:
        """Append the event of a task that the hub of this gateway executes, with its receipts."""
        content = encrypt_for(self._core.parts, tx, out, self._node.id)
        trace = out.first_trace("local")
        tx.append_event(draft_event(out, content, expires, trace, to_node=self._node.id))
        accepted = draft_acceptance(0, tx.now, out.eta_secs)
        self._record_receipts(tx, out.event_id, out.to_agent, out.corr_id, accepted)

    def record_cancel(self, tx: Tx, task: Task) -> None:
        """Append the cancellation of a task that was both requested and executed here."""
        id = self._node.event_ids.next_id()
        tx.append_event(
            Envelope(
                event_id=id,
                kind=EventKind.TASK_CANCEL,
                source_agent_id=task.requester,
                to_node_id=self._node.id,
                to_agent_id=task.agent,
                corr_id=task.id,
                ref_event_id=task.id,
            )
        )
        self._record_receipts(tx, id, task.agent, task.id)

    def _record_receipts(
        self, tx: Tx, event_id: str, agent: str, corr_id: str, accepted: Receipt = ACCEPTED
    ) -> None:
        """Both receipts of an event that this gateway takes from itself without mail."""
        writer = self._core.coordinator.writer
        for receipt in (accepted, KEPT):
            ids = (agent, self._node.id, event_id, corr_id)
            tx.append_event(writer.draft_receipt(*ids, receipt))

    def report(
        self,
        tx: Tx,
        task: Task,
        kind: EventKind,
        info: TaskInfo,
        payload: bytes = EMPTY_PAYLOAD,
        digest: str | None = None,
    ) -> None:
        """Append a report for the gateway that requested the task.

        A report to ourselves is for the record, and has no content. So is one for a gateway that is
        not in the room, which could not read it. Nothing of an acceptance or of progress without a
        note is secret, so these have no content either.
        """
        envelope = Envelope(
            event_id=self._node.event_ids.next_id(),
            kind=kind,
            source_agent_id=task.agent,
            to_agent_id=task.requester,
            corr_id=task.id,
            ref_event_id=task.id,
            task=info,
        )
        node = task.requester_node
        if node is None or node not in self._core.routes.directory.gateways:
            node = self._node.id
        is_empty = payload is EMPTY_PAYLOAD and digest is None and kind in _OFTEN_EMPTY
        if node == self._node.id or is_empty:
            tx.append_event(replace(envelope, to_node_id=node))
            return
        out = OutgoingEvent(envelope, payload, digest)
        emit_report(self._core.parts, tx, out, node)

    def open_report(self, source: str, envelope: Envelope) -> bytes:
        """The content of a report; EncryptionError if it is not for us."""
        is_empty = envelope.payload is UNSET and envelope.kind in _OFTEN_EMPTY
        if is_empty or envelope.payload_ref is not None:
            return EMPTY_PAYLOAD
        return self._node.cipher.decrypt(
            decode_payload(envelope, EncryptedPayload),
            encrypted_by=self._core.routes.sender_key(source),
            event_id=envelope.event_id,
            source_node_id=source,
        )

    def unwrap_blob_key(self, source: str, ref: PayloadRef) -> bytes:
        return self._node.cipher.unwrap_key(ref.keys, self._core.routes.sender_key(source))


def draft_request(
    task: Task,
    event_id: str,
    info: TaskInfo,
    policy_version: int | None,
    traceparent: str | None = None,
) -> Envelope:
    """The event that asks the agent of a task for it: the first attempt, or another."""
    return Envelope(
        event_id=event_id,
        kind=EventKind.TASK_CREATE,
        source_agent_id=task.requester,
        to_agent_id=task.agent,
        corr_id=task.id,
        order="none",
        task=info,
        trace=Trace(policy_version=policy_version, traceparent=traceparent),
    )
