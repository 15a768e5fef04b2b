"""Accepting and refusing events: the mail, the inbox row and the receipt of each.

Mail is collected in runs of one sender and one mailbox, and put away together at the end.
"""

import msgspec

from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.blob_records import find_blob, use_blob
from gatepost.delivery.decisions import Decision, ReplyArrived, TaskRequested
from gatepost.delivery.outbox_writer import ACCEPTED, GATEWAY, KEPT
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, TurnReply
from gatepost.delivery.receiver.acceptance import AcceptanceCheck, ReceiverParts
from gatepost.delivery.receiver.inbox_states import InboxInput
from gatepost.delivery.receiver.inbox_table import InboxTable, origin_of
from gatepost.errors import EncryptionError, GatepostError, PayloadTooLarge
from gatepost.events import (
    EncryptedPayload,
    Envelope,
    EventKind,
    Receipt,
    decode_payload,
)
from gatepost.events.json_payload import check_json_payload
from gatepost.journal.transaction import Tx
from gatepost.mailbox import NewMail
from gatepost.mailbox.policy import MAX_DELAY_MS
from gatepost.wire import EventInfo

_ID_IS_TAKEN = "its id was used for another message"


class EventAcceptor:
    """The accepted events of one source, in one transaction. `now` is the emitter's clock."""

    def __init__(
        self,
        parts: ReceiverParts,
        tx: Tx,
        source: str,
        now: int,
        inbox: InboxTable,
        check: AcceptanceCheck,
        decisions: list[Decision],
    ) -> None:
        self._parts = parts
        self._tx = tx
        self._source = source
        self._now = now
        self._inbox = inbox
        self._check = check
        self._decisions = decisions
        self._runs: dict[tuple[str, str], list[tuple[Envelope, NewMail]]] = {}
        # An event in a run has no inbox row yet.
        self._in_runs: set[str] = set()

    def accept_event(self, envelope: Envelope) -> None:
        try:
            payload = self._open_payload(envelope)
        except GatepostError as error:
            self.refuse_event(envelope, f"unreadable: {error.message}")
            return
        if envelope.kind == EventKind.REPLY and not self._is_mail_besides(envelope, payload):
            self._keep_without_mail(envelope, InboxInput.ACCEPT)
            return
        if self._is_for_hub(envelope, payload):
            self._keep_without_mail(envelope, InboxInput.ACCEPT)
            return
        agent = envelope.to_agent_id or ""
        self._check.use_capacity(agent)
        run = self._runs.setdefault((agent, envelope.source_agent_id), [])
        run.append((envelope, self._build_mail(envelope, payload)))
        self._in_runs.add(envelope.event_id)

    def accept_confirmed(self, envelope: Envelope) -> None:
        """Put a confirmed offer into its mailbox. Its receipt was sent when it was offered."""
        try:
            payload = self._open_payload(envelope)
            mail = self._build_mail(envelope, payload)
        except GatepostError as error:
            self.refuse_event(envelope, f"unreadable: {error.message}")
            return
        if self._is_for_hub(envelope, payload):
            self._keep_without_mail(envelope, InboxInput.CONFIRM)
            return
        mailbox, sender = envelope.to_agent_id or "", envelope.source_agent_id
        (ack,) = self._parts.dispatcher.enqueue(
            self._tx, mailbox, sender, [mail], even_if_full=True
        )
        if ack.error is None and ack.queued:
            self._inbox.record_event(envelope, InboxInput.CONFIRM)
            self._use_blob(envelope)
        else:
            self.refuse_event(envelope, _ID_IS_TAKEN)

    def _keep_without_mail(self, envelope: Envelope, input: InboxInput) -> None:
        self._inbox.record_event(envelope, input, KEPT.outcome)
        if input is InboxInput.ACCEPT:
            self.append_receipt(envelope, ACCEPTED)
        self.append_receipt(envelope, KEPT)

    def _is_for_hub(self, envelope: Envelope, payload: bytes) -> bool:
        """Whether the hub alone takes an event: no mail is made of it. It hears of every task."""
        if envelope.kind not in (EventKind.TASK_CREATE, EventKind.TASK_CANCEL):
            return False
        self._decisions.append(TaskRequested(self._source, envelope, payload))
        is_hub_run = envelope.to_agent_id in self._parts.agents.hub_run
        return is_hub_run or envelope.kind == EventKind.TASK_CANCEL

    def refuse_event(self, envelope: Envelope, reason: str) -> None:
        """Refuse an event, after the receipts of those of its pair that were accepted before it:
        the sender takes back the rest of the pair.
        """
        self.flush_runs()
        self._inbox.record_event(envelope, InboxInput.REFUSE, reason)
        self.append_receipt(envelope, Receipt(status="refused", reason=reason[:1000]))

    def refuse_unrecorded(self, envelope: Envelope, reason: str) -> None:
        """Refuse an event without a row in the inbox: it is taken as new whenever it comes."""
        self.flush_runs()
        self.append_receipt(envelope, Receipt(status="refused", reason=reason))

    def append_receipt(self, envelope: Envelope, receipt: Receipt) -> None:
        by = envelope.to_agent_id or GATEWAY
        corr_id = envelope.corr_id or envelope.event_id
        self._decisions += self._parts.writer.append_receipt(
            self._tx, by, self._source, envelope.event_id, corr_id, receipt
        )

    def is_in_run(self, event_id: str) -> bool:
        return event_id in self._in_runs

    def flush_runs(self) -> None:
        """Put the mail of all runs away, with inbox rows and receipts."""
        runs, self._runs = self._runs, {}
        self._in_runs.clear()
        for (mailbox, sender), run in runs.items():
            mails = [mail for _, mail in run]
            acks = self._parts.dispatcher.enqueue(
                self._tx, mailbox, sender, mails, even_if_full=True
            )
            accepted = []
            for (envelope, _), ack in zip(run, acks, strict=True):
                if ack.queued:
                    accepted.append(envelope)
                    self._use_blob(envelope)
                    self.append_receipt(envelope, ACCEPTED)
                else:
                    self.refuse_event(envelope, _ID_IS_TAKEN)
            self._inbox.record_accepted(accepted)

    def _open_payload(self, envelope: Envelope) -> bytes:
        cipher, source = self._parts.node.cipher, envelope.source_node_id
        key = self._parts.routes.sender_key(source)
        if (ref := envelope.payload_ref) is not None:
            # A sender that refers to a blob must be able to open it.
            if cipher.unwrap_key(ref.keys, key) != find_blob(self._tx, ref.digest)[0]:
                raise EncryptionError("its blob is another's")
            return EMPTY_PAYLOAD
        encrypted = decode_payload(envelope, EncryptedPayload)
        payload = cipher.decrypt(
            encrypted, encrypted_by=key, event_id=envelope.event_id, source_node_id=source
        )
        self._check_content(payload)
        return payload

    def _check_content(self, payload: bytes) -> None:
        """Agents get it inside a JSON document, so it is as suspect as the payload of a client."""
        limit = self._parts.dispatcher.policy.max_payload_bytes
        try:
            if len(payload) > limit:
                raise PayloadTooLarge(f"it has {len(payload)} bytes; {limit} are taken inline")
            check_json_payload(payload)
        except GatepostError as error:
            self._parts.abuse.report_abuse(
                self._source, AbuseKind.UNREADABLE_PAYLOAD, error.message
            )
            raise

    def _is_mail_besides(self, envelope: Envelope, payload: bytes) -> bool:
        """A reply ends the delivery it answers; whether it is mail for the agent besides."""
        ref = envelope.ref_event_id
        if ref is None:
            return self._check.is_reply_mail(envelope)
        digest = envelope.payload_ref.digest if envelope.payload_ref else None
        self._decisions.append(ReplyArrived(self._source, ref, TurnReply(payload, digest)))
        return self._check.is_reply_mail(envelope)

    def _build_mail(self, envelope: Envelope, payload: bytes) -> NewMail:
        ref = envelope.payload_ref
        info = EventInfo(
            envelope.event_id,
            envelope.kind,
            envelope.corr_id or envelope.event_id,
            envelope.ref_event_id,
            envelope.trace.traceparent if envelope.trace else None,
            ref.digest if ref else None,
            ref.size if ref else None,
            self._source,
            envelope.priority,
            envelope.origin_event_id,
            origin_of(envelope) or None,
            envelope.order,
            envelope.not_before,
            envelope.max_retries,
        )
        ttl = None if envelope.expires_at is None else max(1, envelope.expires_at - self._now)
        not_before = min(envelope.not_before or 0, self._tx.now + MAX_DELAY_MS)
        return NewMail(
            envelope.event_id,
            payload,
            created_at=envelope.created_at,
            ttl=None if ttl is None else min(ttl, MAX_DELAY_MS),
            meta=msgspec.json.encode(info),
            priority=envelope.priority,
            ordered=bool(envelope.pair_seq),
            not_before=not_before,
            max_retries=envelope.max_retries,
        )

    def _use_blob(self, envelope: Envelope) -> None:
        if envelope.payload_ref is not None:
            mailbox = envelope.to_agent_id or ""
            use_blob(self._tx, envelope.payload_ref.digest, mailbox, envelope.event_id)
