"""Accepting and refusing events: the mail, the inbox row and the receipt of each.

Mail is collected in runs of one sender and one mailbox, and enqueued run by run at the end.
"""

from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.acceptance_check import AcceptanceCheck, open_inline_payload
from gatepost.delivery.blob_records import find_blob, use_blob
from gatepost.delivery.decisions import Decision, ReplyArrived, TaskRequested
from gatepost.delivery.event_mail import build_mail, origin_of
from gatepost.delivery.inbox.inbox_states import InboxInput
from gatepost.delivery.inbox.inbox_table import record_event, record_events
from gatepost.delivery.outbox_writer import KEPT, draft_acceptance
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, TurnReply
from gatepost.delivery.parts import DeliveryParts
from gatepost.errors import EncryptionError, GatepostError, InvalidRequest, PayloadTooLarge
from gatepost.events import Envelope, EventKind, Receipt
from gatepost.events.reserved_names import GATEWAY, qualify_sender
from gatepost.journal.transaction import Tx
from gatepost.mailbox import NewMail

_ID_IS_TAKEN = "its id was used for another message"


class EventAcceptor:
    """The accepted events of one source, in one transaction. `now` is the emitter's clock."""

    def __init__(
        self,
        parts: DeliveryParts,
        source: str,
        now: int,
        check: AcceptanceCheck,
        decisions: list[Decision],
    ) -> None:
        self._parts = parts
        self._source = source
        self._now = now
        self._check = check
        self._decisions = decisions
        # Accepted events and confirmed offers, in the order in which they become mail.
        self._runs: dict[tuple[str, str], list[tuple[InboxInput, Envelope, NewMail]]] = {}
        # The inbox rows of events in a run are not written yet.
        self._in_runs: set[str] = set()

    def accept_event(self, tx: Tx, envelope: Envelope) -> None:
        try:
            payload = self._open_payload(tx, envelope)
        except GatepostError as error:
            self.refuse_event(tx, envelope, f"unreadable: {error.message}")
            return
        if envelope.kind == EventKind.REPLY:
            self._note_reply(envelope, payload)
        self._note_task(envelope, payload)
        if not self._becomes_mail(tx, envelope):
            self._keep_without_mail(tx, envelope, InboxInput.ACCEPT)
            return
        self._check.use_capacity(envelope.to_agent_id or "")
        self._add_to_run(InboxInput.ACCEPT, envelope, self._build_mail(tx, envelope, payload))

    def _add_to_run(self, input: InboxInput, envelope: Envelope, mail: NewMail) -> None:
        key = (envelope.to_agent_id or "", self._mail_sender(envelope))
        self._runs.setdefault(key, []).append((input, envelope, mail))
        self._in_runs.add(envelope.event_id)

    def accept_confirmed(self, tx: Tx, envelope: Envelope) -> None:
        """Let a confirmed offer become mail. Its receipt was sent when it was offered."""
        try:
            payload = self._open_payload(tx, envelope)
            mail = self._build_mail(tx, envelope, payload)
        except GatepostError as error:
            self.refuse_event(tx, envelope, f"unreadable: {error.message}")
            return
        self._note_task(envelope, payload)
        if self._is_for_hub(envelope):
            self._keep_without_mail(tx, envelope, InboxInput.CONFIRM)
            return
        self._add_to_run(InboxInput.CONFIRM, envelope, mail)

    def _keep_without_mail(self, tx: Tx, envelope: Envelope, input: InboxInput) -> None:
        record_event(tx, self._source, envelope, input, KEPT.outcome)
        if input is InboxInput.ACCEPT:
            self.append_acceptance(tx, envelope)
        self.append_receipt(tx, envelope, KEPT)

    def _note_task(self, envelope: Envelope, payload: bytes) -> None:
        """The hub hears of every task."""
        if envelope.kind in (EventKind.TASK_CREATE, EventKind.TASK_CANCEL):
            self._decisions.append(TaskRequested(self._source, envelope, payload))

    def _becomes_mail(self, tx: Tx, envelope: Envelope) -> bool:
        """Whether an event becomes mail; false if only a caller or the hub takes it."""
        if envelope.kind == EventKind.REPLY:
            return self._check.is_reply_mail(tx, envelope)
        return not self._is_for_hub(envelope)

    def _is_for_hub(self, envelope: Envelope) -> bool:
        """Whether the hub alone takes an event: no mail is made of it."""
        if envelope.kind == EventKind.TASK_CANCEL:
            return True
        if envelope.kind != EventKind.TASK_CREATE:
            return False
        if envelope.is_skill_distribution and self._source != self._parts.node.id:
            return True
        return envelope.to_agent_id in self._parts.agents.hub_run

    def refuse_event(self, tx: Tx, envelope: Envelope, reason: str) -> None:
        """Refuse an event, after the receipts of those of its pair that were accepted before it:
        the sender takes back the rest of the pair.
        """
        self.flush_runs(tx)
        record_event(tx, self._source, envelope, InboxInput.REFUSE, reason)
        self.append_receipt(tx, envelope, Receipt(status="refused", reason=reason[:1000]))

    def refuse_unrecorded(self, tx: Tx, envelope: Envelope, reason: str) -> None:
        """Refuse an event without recording it: if it comes again, it is new."""
        self.flush_runs(tx)
        self.append_receipt(tx, envelope, Receipt(status="refused", reason=reason))

    def append_acceptance(self, tx: Tx, envelope: Envelope, offer: int = 0) -> None:
        """Append the receipt for an accepted event or offer; for a task, with its ETA."""
        eta = None
        if envelope.kind == EventKind.TASK_CREATE:
            eta = self._parts.hub.find_eta(envelope.to_agent_id or "", envelope.task)
        self.append_receipt(tx, envelope, draft_acceptance(offer, tx.now, eta))

    def append_receipt(self, tx: Tx, envelope: Envelope, receipt: Receipt) -> None:
        by = envelope.to_agent_id or GATEWAY
        corr_id = envelope.corr_id or envelope.event_id
        self._decisions += self._parts.writer.append_receipt(
            tx, by, self._source, envelope.event_id, corr_id, receipt
        )

    def is_in_run(self, event_id: str) -> bool:
        return event_id in self._in_runs

    def flush_runs(self, tx: Tx) -> None:
        """Write the mail of all runs, with inbox rows and receipts."""
        runs, self._runs = self._runs, {}
        self._in_runs.clear()
        for (mailbox, sender), run in runs.items():
            mails = [mail for _, _, mail in run]
            acks = self._parts.dispatcher.enqueue(tx, mailbox, sender, mails, even_if_full=True)
            queued: dict[InboxInput, list[Envelope]] = {}
            for (input, envelope, _), ack in zip(run, acks, strict=True):
                if not ack.queued:
                    self.refuse_event(tx, envelope, _ID_IS_TAKEN)
                    continue
                queued.setdefault(input, []).append(envelope)
                self._use_blob(tx, envelope)
                if input is InboxInput.ACCEPT:
                    self.append_acceptance(tx, envelope)
            for input, envelopes in queued.items():
                record_events(tx, self._source, envelopes, input)

    def _open_payload(self, tx: Tx, envelope: Envelope) -> bytes:
        if (ref := envelope.payload_ref) is not None:
            key = self._parts.routes.sender_key(envelope.source_node_id)
            unwrapped = self._parts.node.cipher.unwrap_key(ref.keys, key)
            # A sender that refers to a blob must be able to open it.
            if unwrapped != find_blob(tx, ref.digest)[0]:
                raise EncryptionError("its blob is another's")
            return EMPTY_PAYLOAD
        try:
            return open_inline_payload(self._parts, envelope)
        except (PayloadTooLarge, InvalidRequest) as error:
            self._parts.abuse.report_abuse(
                self._source, AbuseKind.UNREADABLE_PAYLOAD, error.message
            )
            raise

    def _note_reply(self, envelope: Envelope, payload: bytes) -> None:
        """A reply ends the delivery that it answers."""
        if envelope.ref_event_id is not None:
            digest = envelope.payload_ref.digest if envelope.payload_ref else None
            reply = TurnReply(payload, digest)
            self._decisions.append(ReplyArrived(self._source, envelope.ref_event_id, reply))

    def _build_mail(self, tx: Tx, envelope: Envelope, payload: bytes) -> NewMail:
        ref = envelope.payload_ref
        return build_mail(
            envelope,
            payload,
            tx.now,
            ordered=bool(envelope.pair_seq),
            blob=None if ref is None else (ref.digest, ref.size),
            source=self._source,
            source_now=self._now,
        )

    def _mail_sender(self, envelope: Envelope) -> str:
        """The sender as the agent sees it: a reserved name shows the gateway that it speaks for."""
        sender = envelope.source_agent_id
        if self._source == self._parts.node.id:
            return sender
        return qualify_sender(sender, origin_of(envelope) or self._source)

    def _use_blob(self, tx: Tx, envelope: Envelope) -> None:
        if envelope.payload_ref is not None:
            mailbox = envelope.to_agent_id or ""
            use_blob(tx, envelope.payload_ref.digest, mailbox, envelope.event_id)
