"""Whether an event can be accepted now: the reasons to refuse it, or to hold it for a while."""

from functools import partial

from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.blob_records import has_blob
from gatepost.delivery.delivery_table import SINCE_RESTORE, was_sent_to
from gatepost.delivery.inbox.inbox_table import held_since
from gatepost.delivery.parts import DeliveryParts
from gatepost.errors import GatepostError, PayloadTooLarge
from gatepost.events import (
    EncryptedPayload,
    Envelope,
    EventKind,
    PayloadRef,
    decode_payload,
    parse_event_id,
)
from gatepost.events.json_payload import check_json_payload
from gatepost.journal.transaction import Tx
from gatepost.mailbox import Dispatcher
from gatepost.mailbox.lookup import count_waiting

# An event is held for these, and refused for any other reason.
FULL = "full"
BLOB = "blob"
SENDER = "sender"
CHECK = "check"
HOLD_REASONS = (FULL, BLOB, SENDER, CHECK)
NO_AGENT = "no_agent"

_SELECT_REPLIES_TO = "SELECT replies_to FROM delivery WHERE event_id = ?"
_SELECT_DELIVERY = f"""
SELECT node, from_agent, to_agent FROM delivery WHERE event_id = ? AND {SINCE_RESTORE}
"""


class AcceptanceCheck:
    """Its answers about agents and mailboxes are kept for one transaction.

    `now` is the emitter's clock.
    """

    def __init__(self, parts: DeliveryParts, source: str, now: int) -> None:
        self._parts = parts
        self._source = source
        self._now = now
        self._hosted: dict[str, bool] = {}
        self._may_send: dict[tuple[str, str, bool], bool] = {}
        self._forged: set[str] = set()
        self._capacity: dict[str, int] = {}

    def reason_against(self, tx: Tx, envelope: Envelope) -> str:
        """Why an event cannot be accepted now; empty if it can."""
        agent = envelope.to_agent_id or ""
        if envelope.expires_at is not None and envelope.expires_at <= self._now:
            return "expired"
        if not (
            envelope.kind == EventKind.REPLY
            or self.is_hosted(tx, agent)
            or self._cancels_task(tx, envelope)
            or envelope.is_skill_distribution
        ):
            # If the room still names this gateway, the agent was here until a moment ago.
            return NO_AGENT if self.is_unknown(tx, agent) else "moved"
        if suspicion := self._suspicion_of(tx, envelope):
            return suspicion
        if wait := self._find_wait_for_content(tx, envelope):
            return wait
        if self._has_capacity(tx, agent) or self._needs_no_mailbox(tx, envelope):
            return ""
        return FULL

    def _find_wait_for_content(self, tx: Tx, envelope: Envelope) -> str:
        if envelope.payload_ref is not None and self._lacks_blob(tx, envelope.payload_ref):
            return BLOB
        open_payload = partial(open_inline_payload, self._parts, envelope)
        is_own = self._source == self._parts.node.id
        if not is_own and self._parts.hub.needs_check(tx, envelope, open_payload):
            return CHECK
        return ""

    def _suspicion_of(self, tx: Tx, envelope: Envelope) -> str:
        """Why the sender of an event may not be who it says; empty if all is well.

        A reply that was forwarded comes from where its receiver lived, as any forwarded mail does.
        """
        if self._source == self._parts.node.id:
            return ""
        is_reply = envelope.kind == EventKind.REPLY and envelope.origin_event_id is None
        if is_reply and envelope.ref_event_id is not None:
            ref = parse_event_id(envelope.ref_event_id)
            answered = tx.fetch_one(_SELECT_DELIVERY, (ref,))
            if answered is not None:
                return self._suspicion_of_reply(tx, envelope, *answered)
        return "" if self._comes_from_its_agent(envelope) else self._wait_for_room(tx, envelope)

    def _comes_from_its_agent(self, envelope: Envelope) -> bool:
        is_forwarded = envelope.origin_event_id is not None
        if envelope.origin_node_id is not None and not is_forwarded:
            return False
        key = (envelope.source_agent_id, envelope.to_agent_id or "", is_forwarded)
        if key not in self._may_send:
            self._may_send[key] = self._parts.routes.may_send(
                self._source, key[0], key[1], forwarded=is_forwarded
            )
        return self._may_send[key]

    def _suspicion_of_reply(
        self, tx: Tx, reply: Envelope, node: str | None, from_agent: str, to_agent: str
    ) -> str:
        """A reply comes from a node that the message was sent to, and between the same agents."""
        ref = parse_event_id(reply.ref_event_id or "")
        is_routed = node == self._source or was_sent_to(tx, ref, self._source)
        if is_routed and (reply.to_agent_id, reply.source_agent_id) == (from_agent, to_agent):
            return ""
        detail = f"a reply to {reply.ref_event_id}, which was sent to {node}"
        self._report_forgery(reply, AbuseKind.FORGED_RECEIPT, detail)
        return "forged_reply"

    def _wait_for_room(self, tx: Tx, envelope: Envelope) -> str:
        """Hold an event until the room confirms its sender's home, for a limited time."""
        since = held_since(tx, self._source, parse_event_id(envelope.event_id))
        if since is None or not self._parts.holds.suspects.is_grace_over(since, tx.now):
            return SENDER
        detail = f"event {envelope.event_id} in the name of {envelope.source_agent_id}"
        self._report_forgery(envelope, AbuseKind.FORGED_SENDER, detail)
        return "forged_sender"

    def _report_forgery(self, envelope: Envelope, kind: AbuseKind, detail: str) -> None:
        """Report a forged event once, however often it is checked."""
        if envelope.event_id not in self._forged:
            self._forged.add(envelope.event_id)
            self._parts.abuse.report_abuse(self._source, kind, detail)

    def is_unknown(self, tx: Tx, agent: str) -> bool:
        """Whether an agent lives neither here nor anywhere else."""
        if self.is_hosted(tx, agent):
            return False
        home = self._parts.routes.directory.agents.get(agent)
        return home is None or home.owner is None

    def is_hosted(self, tx: Tx, agent: str) -> bool:
        if agent not in self._hosted:
            self._hosted[agent] = self._parts.agents.is_registered(tx, agent)
        return self._hosted[agent]

    def is_reply_mail(self, tx: Tx, reply: Envelope) -> bool:
        """Whether a reply becomes mail for its agent, instead of being kept for the caller only."""
        if reply.ref_event_id is not None:
            id = parse_event_id(reply.ref_event_id)
            row = tx.fetch_one(_SELECT_REPLIES_TO, (id,))
            if row is not None and row[0] != "mailbox":
                return False
        return self._takes_mail(tx, reply.to_agent_id or "")

    def _cancels_task(self, tx: Tx, envelope: Envelope) -> bool:
        """Whether an event cancels a task of this gateway; the task's agent may have moved."""
        if envelope.kind != EventKind.TASK_CANCEL or envelope.ref_event_id is None:
            return False
        return self._parts.hub.has_task(tx, parse_event_id(envelope.ref_event_id))

    def _needs_no_mailbox(self, tx: Tx, envelope: Envelope) -> bool:
        if envelope.kind == EventKind.TASK_CANCEL or envelope.is_skill_distribution:
            return True
        return envelope.kind == EventKind.REPLY and not self.is_reply_mail(tx, envelope)

    def _takes_mail(self, tx: Tx, agent: str) -> bool:
        """Whether an agent lives here, or at another node to which its mail is forwarded."""
        return self.is_hosted(tx, agent) or self._parts.routes.remote_owner(agent) is not None

    def use_capacity(self, agent: str) -> None:
        self._capacity[agent] = self._capacity.get(agent, 1) - 1

    def _has_capacity(self, tx: Tx, mailbox: str) -> bool:
        if mailbox not in self._capacity:
            self._capacity[mailbox] = mailbox_capacity(tx, self._parts.dispatcher, mailbox)
        return self._capacity[mailbox] > 0

    def _lacks_blob(self, tx: Tx, ref: PayloadRef) -> bool:
        return not has_blob(tx, ref.digest) and self._can_open(ref)

    def _can_open(self, ref: PayloadRef) -> bool:
        """Whether this gateway can decrypt a blob. If not, its event is refused without a fetch."""
        try:
            key = self._parts.routes.sender_key(self._source)
            self._parts.node.cipher.unwrap_key(ref.keys, key)
        except GatepostError:
            return False
        return True


def open_inline_payload(parts: DeliveryParts, envelope: Envelope) -> bytes:
    """Decrypt and check the payload of an event. Unchecked payloads go no further.

    EncryptionError if it is not for this gateway; PayloadTooLarge; InvalidRequest if it is not JSON
    or is nested too deeply.
    """
    source = envelope.source_node_id
    payload = parts.node.cipher.decrypt(
        decode_payload(envelope, EncryptedPayload),
        encrypted_by=parts.routes.sender_key(source),
        event_id=envelope.event_id,
        source_node_id=source,
    )
    limit = parts.dispatcher.policy.max_payload_bytes
    if len(payload) > limit:
        raise PayloadTooLarge(f"it has {len(payload)} bytes; {limit} are taken inline")
    check_json_payload(payload)
    return payload


def mailbox_capacity(tx: Tx, dispatcher: Dispatcher, mailbox: str) -> int:
    """How many more messages a mailbox takes."""
    return dispatcher.policy.max_pending - count_waiting(tx, mailbox)
