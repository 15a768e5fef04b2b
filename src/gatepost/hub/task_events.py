"""The events of tasks: requests to executors, and the reports of executors."""

from msgspec import UNSET

from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.outbox_writer import ACCEPTED, KEPT
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent
from gatepost.delivery.sender.drafts import draft_event
from gatepost.events import (
    EncryptedPayload,
    Envelope,
    EventKind,
    PayloadRef,
    TaskInfo,
    Trace,
    decode_payload,
)
from gatepost.hub.tasks import Task
from gatepost.journal.outbox import EventDraft
from gatepost.journal.transaction import Tx

# Reports that may be without content.
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
            decisions = self._core.sender.send_unordered(tx, together, route)
            self._core.coordinator.apply_decisions(tx, decisions)

    def record_request(self, tx: Tx, out: OutgoingEvent, expires: int) -> None:
        """Append the event of a task that the hub of this gateway executes, with its receipts."""
        content = self._core.sender.emitter.encrypt_for(tx, out, self._node.id)
        trace = Trace(route_decision="local", traceparent=out.traceparent)
        tx.append_event(draft_event(out, content, expires, trace, to_node=self._node.id))
        self._record_receipts(tx, out.event_id, out.to_agent, out.corr_id)

    def record_cancel(self, tx: Tx, task: Task) -> None:
        """Append the cancellation of a task that was both requested and executed here."""
        id = self._node.event_ids.next_id()
        tx.append_event(
            EventDraft(
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

    def _record_receipts(self, tx: Tx, event_id: str, agent: str, corr_id: str) -> None:
        """Both receipts of an event that this gateway takes from itself without mail."""
        writer = self._core.coordinator.writer
        for receipt in (ACCEPTED, KEPT):
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

        A report to ourselves is for the record, and has no content. So is one for a gateway that
        is not in the room: nobody can read it. Nothing of an acceptance or of progress without a
        note is secret, so these have no content either.
        """
        id = self._node.event_ids.next_id()
        node = task.requester_node
        if node is None or node not in self._core.routes.directory.gateways:
            node = self._node.id
        is_empty = payload is EMPTY_PAYLOAD and digest is None and kind in _OFTEN_EMPTY
        if node == self._node.id or is_empty:
            tx.append_event(
                EventDraft(
                    event_id=id,
                    kind=kind,
                    source_agent_id=task.agent,
                    to_node_id=node,
                    to_agent_id=task.requester,
                    corr_id=task.id,
                    ref_event_id=task.id,
                    task=info,
                )
            )
            return
        out = OutgoingEvent(id, kind, task.agent, task.requester, task.id, payload, digest)
        out.ref_event_id, out.task = task.id, info
        self._core.sender.emitter.emit_report(tx, out, node)

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
