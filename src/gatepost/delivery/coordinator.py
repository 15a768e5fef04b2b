"""The delivery coordinator: messages between agents, wherever they live.

A message takes four transactions. Each is on disk before its outcome is reported:

1. `send`: the sender's gateway appends the event and opens its delivery.
2. `accept`: the owner's gateway takes it from that outbox (`take_batch`), puts it into the agent's
   mailbox and appends the `accepted` receipt.
3. `engage`: the agent's turn ends (`ack`, `nack`); its gateway appends the reply and `processed`.
4. `close`: the sender's gateway takes the receipts (`take_batch` again), which end the delivery.

To an agent of this very gateway, 1 and 2 are one transaction, and so are 3 and 4.

Each has its module. What a module decides about the tables of another it returns as decisions.
`apply_decisions` passes each decision to the function that `_handlers` names for it, until no
decision is left.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Raw, UnsetType

from gatepost.delivery import accept, close, engage, fanout, recover, release, reroute, send, timers
from gatepost.delivery.accept import EventBatch
from gatepost.delivery.decisions import (
    NOTHING,
    BlobArrived,
    BlobMissing,
    BlobWanted,
    CheckWanted,
    Decisions,
    DeliveryAccepted,
    DeliveryEnded,
    EndAmended,
    EventsSkipped,
    ForwardEnded,
    ForwardMail,
    GiveUpDelivery,
    HoldReported,
    JournalLost,
    MailOvertaken,
    NodeRevoked,
    OwnEvent,
    PairMoved,
    ReaderRestored,
    ReaderResumed,
    ReceiptArrived,
    ReplyArrived,
    RerouteDelivery,
    TaskNotice,
    TaskReported,
    TaskReportWanted,
    TaskRequested,
    TransferSignal,
    TurnEnded,
    VerdictArrived,
)
from gatepost.delivery.delivery_reads import is_blob_sent_to
from gatepost.delivery.engage import TurnReader, read_replies
from gatepost.delivery.event_mail import decode_info, draft_again
from gatepost.delivery.forward import MailForwarder
from gatepost.delivery.frames import SkipFrame
from gatepost.delivery.outbox_writer import PROCESSED, REPLIED
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent, TurnReply
from gatepost.delivery.parts import DeliveryParts
from gatepost.delivery.send_request import (
    choose_event_id,
    find_earlier_send,
    outgoing_message,
    remember_send,
)
from gatepost.delivery.sent_messages import SentMessages
from gatepost.delivery.transfers import Transfers
from gatepost.errors import GatepostError, NoRoute
from gatepost.events import Envelope, EventKind, Receipt
from gatepost.events.reserved_names import GATEWAY, is_qualified
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox import ClosedMail, NewMail, Settlement
from gatepost.mailbox.dead_letters import DeadLetterFilter, replay_dead_letters
from gatepost.mailbox.enqueue import find_mailbox
from gatepost.routing import Route, RoutingDirectory
from gatepost.wire.operations import DeadLetter, EnqueueAck, Failure, NewSend, Sent


class CountedReceipt(NamedTuple):
    """A receipt that counted: `stage` is `accepted` or `processed`."""

    kind: str
    stage: str
    millis: int
    event_id: str


class DeliveryCoordinator:
    """Runs in the writer's thread."""

    def __init__(
        self,
        parts: DeliveryParts,
        forwarder: MailForwarder,
        transfers: Transfers,
        sent: SentMessages,
    ) -> None:
        self.routes = parts.routes
        self.incidents = parts.incidents
        self.abuse = parts.abuse
        self.writer = parts.writer
        self.sent = sent
        self._parts = parts
        self._forwarder = forwarder
        self._turns = TurnReader()
        self._on_receipt: Callable[[CountedReceipt], None] = _ignore_event
        self._on_batch: Callable[[str, list[tuple[Envelope, bytes]], int], None] = _ignore_event
        self._on_blob_wanted: Callable[[str, str], None] = _ignore_event
        # Nodes with requests that this commit group holds until they are checked.
        self._to_check: set[str] = set()
        self._on_check_wanted: Callable[[str], None] = _ignore_event
        self._on_agents_changed: Callable[[], None] = _ignore_event
        self._handlers: dict[type, Callable[[Tx, Any], Decisions | None]] = {
            OwnEvent: partial(accept.take_own, parts),
            ReceiptArrived: partial(close.apply_receipt, parts),
            HoldReported: partial(close.apply_hold, parts),
            ReplyArrived: partial(close.apply_reply, parts),
            RerouteDelivery: partial(reroute.reroute_delivery, parts),
            GiveUpDelivery: partial(close.give_up_delivery, parts),
            PairMoved: partial(send.close_pair_numbers, parts),
            ReaderRestored: partial(recover.answer_restored, parts),
            ReaderResumed: partial(recover.announce_resumed, parts),
            JournalLost: self._tell_hub,
            NodeRevoked: self._tell_hub,
            DeliveryAccepted: self._note_accepted,
            DeliveryEnded: self._end_delivery,
            EndAmended: self._amend_end,
            VerdictArrived: self._tell_hub,
            TurnEnded: self._end_turn,
            ForwardMail: self._forward_mail,
            ForwardEnded: partial(release.close_forwarded, parts),
            MailOvertaken: forwarder.follow_forwarded,
            TransferSignal: transfers.apply_transfer_signal,
            TaskRequested: self._tell_hub,
            TaskReported: self._tell_hub,
            TaskReportWanted: self._tell_hub,
            EventsSkipped: self._tell_hub,
            BlobMissing: partial(release.report_missing_blob, parts),
            BlobWanted: self._want_blob,
            CheckWanted: self._want_check,
        }

    def observe(
        self,
        *,
        on_receipt: Callable[[CountedReceipt], None] | None = None,
        on_batch: Callable[[str, list[tuple[Envelope, bytes]], int], None] | None = None,
        on_blob_wanted: Callable[[str, str], None] | None = None,
        on_check_wanted: Callable[[str], None] | None = None,
        on_agents_changed: Callable[[], None] | None = None,
    ) -> None:
        """Set the listeners outside the core; those not given stay as they are.

        `on_receipt` hears of each receipt that counted, `on_batch` of each batch (source, new
        events, emitter's clock), `on_blob_wanted` of each blob to fetch (digest, source),
        `on_check_wanted` of a node whose requests have to be checked, and `on_agents_changed` that
        agents came or went, both once that is on disk.
        """
        self._on_receipt = on_receipt or self._on_receipt
        self._on_batch = on_batch or self._on_batch
        self._on_blob_wanted = on_blob_wanted or self._on_blob_wanted
        self._on_check_wanted = on_check_wanted or self._on_check_wanted
        self._on_agents_changed = on_agents_changed or self._on_agents_changed

    # -- 1. send

    def send(self, tx: Tx, new: NewSend, fingerprint: bytes) -> Sent:
        """Send a message, to one agent or a copy to each of several.

        Returns the status of an identical message that was sent before, if there is one.
        """
        if not isinstance(new.to_agents, UnsetType):
            whole = choose_event_id(new, self._parts.node.event_ids)
            targets = fanout.find_targets(tx, new, self.routes.directory, self._parts.agents)
            copies = fanout.make_copies(new, whole, fingerprint, targets)
            return fanout.send_copies(tx, whole, copies, self.send)
        known = find_earlier_send(tx, new, fingerprint)
        if known is not None:
            return self.sent.status(tx, known)
        event_id = choose_event_id(new, self._parts.node.event_ids)
        out = outgoing_message(new, event_id, fingerprint, tx.now)
        node = self.send_event(tx, out)
        remember_send(tx, new, fingerprint, event_id)
        if node not in (None, self._parts.node.id):
            return Sent(event_id, out.corr_id, "emitted", node)
        return self.sent.status(tx, event_id)

    def send_again(self, tx: Tx, out: OutgoingEvent, node: str | None) -> None:
        """Send an event that was given up at `node`. A reply goes to no other node."""
        if out.kind == EventKind.REPLY and node is not None:
            route = Route(node, "reply")
        else:
            route = self.routes.find_route(tx, out.to_agent)
        self.routes.require_member(route)
        self.apply_decisions(tx, send.send_event(self._parts, tx, out, route).decisions)

    def send_event(self, tx: Tx, out: OutgoingEvent, node: str | None = None) -> str | None:
        """Send an event; returns its node. An event that no node can take is a dead letter at once.

        With `node` it goes there, wherever its agent lives now.
        """
        try:
            found = None if node is None else Route(node, "executor")
            route = found or self.routes.find_route(tx, out.to_agent)
        except NoRoute as error:
            self.apply_decisions(
                tx, send.emit_undeliverable(self._parts, tx, out, "no_route", error.message)
            )
            return None
        self.routes.require_member(route)
        self.apply_decisions(tx, send.send_event(self._parts, tx, out, route).decisions)
        return route.node

    # -- 2. accept, and 4. close: events of other gateways

    def take_batch(self, tx: Tx, batch: EventBatch) -> int:
        """Take a batch of another outbox; returns how far that is read now. All or nothing."""
        taken = accept.take_batch(self._parts, tx, batch)
        self.apply_decisions(tx, taken.decisions)
        self._on_batch(batch.source, taken.new, batch.now)
        return taken.seq

    def skip_events(self, tx: Tx, skip: SkipFrame) -> None:
        """Events of another outbox are gone for good: continue after them."""
        self.apply_decisions(tx, accept.skip_events(self._parts, tx, skip))

    def blob_arrived(self, tx: Tx, digest: str) -> None:
        """A blob was fetched and verified: accept the events that were held for it."""
        self.apply_decisions(tx, release.release_for_blob(self._parts, tx, digest))
        self.apply_decisions(tx, self._tell_hub(tx, BlobArrived(digest)))

    def may_fetch_blob(self, tx: Tx, digest: str, node: str) -> bool:
        """Whether a message, or the result of a task, brought this blob to the agents of a node."""
        return is_blob_sent_to(tx, digest, node) or self._parts.hub.is_result_for(tx, digest, node)

    def contents_checked(self, tx: Tx, source: str, event_ids: list[str]) -> None:
        """The contents of these events were checked: release the events."""
        self.apply_decisions(tx, release.release_checked(self._parts, tx, source, event_ids))

    # -- 3. engage: turns of local agents

    def ack(
        self,
        tx: Tx,
        mailbox: str,
        lease_handles: list[str],
        msg_ids: list[str],
        replies: Mapping[str, Raw],
        reply_refs: Mapping[str, str] = MappingProxyType({}),
    ) -> Settlement:
        """End turns, each with its reply: inline, or a blob that was uploaded before."""
        given = read_replies(tx, replies, reply_refs)
        if given.failures:
            unsent = {failure.subject for failure in given.failures}
            lease_handles = [handle for handle in lease_handles if handle not in unsent]
        settlement = self._parts.dispatcher.ack(tx, mailbox, lease_handles, msg_ids, given.marks)
        settlement.failures += given.failures
        self.end_turns(tx, settlement.closed, given.replies)
        return settlement

    def nack(
        self,
        tx: Tx,
        mailbox: str,
        lease_handles: list[str],
        msg_ids: list[str],
        reason: str,
        *,
        retry: bool = True,
    ) -> Settlement:
        settlement = self._parts.dispatcher.nack(
            tx, mailbox, lease_handles, msg_ids, reason, retry=retry
        )
        self.end_turns(tx, settlement.closed)
        return settlement

    def end_turns(
        self,
        tx: Tx,
        closed: list[ClosedMail],
        replies: Mapping[str, TurnReply] = MappingProxyType({}),
    ) -> None:
        """Tell the senders of closed mail how its turn ended."""
        turns = [self._turns.read_turn(tx, mail, replies.get(mail.lease_handle)) for mail in closed]
        self.apply_decisions(tx, [turn for turn in turns if turn is not None])

    def replay(
        self, tx: Tx, mailbox: str, wanted: DeadLetterFilter, limit: int, actor: str
    ) -> list[EnqueueAck]:
        """Send dead letters again: an event as a new event caused by the old one."""
        id = find_mailbox(tx, mailbox)
        return replay_dead_letters(tx, id, wanted, limit, self._replay_letter, actor) if id else []

    def _replay_letter(self, tx: Tx, letter: DeadLetter, meta: bytes | None) -> EnqueueAck:
        id = self._parts.node.event_ids.next_id()
        given = letter.payload
        payload = EMPTY_PAYLOAD if isinstance(given, UnsetType) else bytes(given)
        if meta is None:
            ordered, retries = letter.order == "fifo", letter.max_retries
            mail = NewMail(id, payload, ordered=ordered, max_retries=retries)
            (ack,) = self._parts.dispatcher.enqueue(tx, letter.to, letter.from_, [mail])
            return ack
        info = decode_info(meta)
        # Do not repeat another gateway's own message under this gateway's name.
        sender = GATEWAY if is_qualified(letter.from_) else letter.from_
        out = OutgoingEvent(draft_again(info, id, sender, letter.to), payload, info.payload_ref)
        mark = tx.begin_operation()
        try:
            route = self.routes.find_route(tx, out.to_agent)
            self.routes.require_member(route)
            sent = send.send_event(self._parts, tx, out, route)
            self.apply_decisions(tx, sent.decisions)
        except GatepostError as error:
            tx.undo_operation(mark)
            return EnqueueAck(id, False, 0, Failure.from_error(error, letter.msg_id))
        tx.keep_operation()
        return EnqueueAck(id, True, sent.waiting)

    # -- the room and its members

    def room_changed(self, tx: Tx, directory: RoutingDirectory) -> None:
        before = self.routes.directory
        self.routes.follow_directory(directory)
        self._parts.deliveries.load_destinations(tx)
        self.apply_decisions(tx, reroute.room_changed(self._parts, tx, before))
        self.apply_decisions(tx, reroute.end_deliveries_to_revoked(self._parts, tx))
        self.apply_decisions(tx, release.room_changed(self._parts, tx))
        gone = directory.revoked.keys() - directory.gateways.keys() - before.revoked.keys()
        self.apply_decisions(tx, [NodeRevoked(node) for node in sorted(gone)])
        self._forwarder.room_changed()

    def greet_reader(
        self, tx: Tx, node: str, incarnation: str, after: int, *, restored: bool
    ) -> bool:
        """A node reads our outbox after `after`; returns whether it has another journal now.

        Deliveries that only the lost journal may have heard of are given up then.
        """
        greeted = recover.greet_reader(self._parts, tx, node, incarnation, after, restored=restored)
        self.apply_decisions(tx, greeted)
        return bool(greeted)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        self.end_turns(tx, self._parts.dispatcher.take_closed())
        for decisions in timers.run_due(self._parts, tx):
            self.apply_decisions(tx, decisions)
        self.apply_decisions(tx, release.before_commit(self._parts, tx))
        self.apply_decisions(tx, self._forwarder.take_stranded_mail(tx))

    def after_commit(self) -> list[JobOutcome]:
        woken = self.sent.take_woken()
        woken += [(self._tell_of_check, source, None) for source in self._to_check]
        self._to_check.clear()
        if self._parts.agents.has_changed:
            self._parts.agents.has_changed = False
            woken.append((lambda value, error: self._on_agents_changed(), None, None))
        return woken

    def _tell_of_check(self, source: str, error: object) -> None:
        self._on_check_wanted(source)

    def rolled_back(self) -> None:
        self._to_check.clear()
        self._parts.agents.forget_registered()
        self._turns.rolled_back()
        self.sent.rolled_back()
        self._parts.deliveries.forget_due()
        self._parts.pairs.forget_moving()
        self._parts.holds.rolled_back()
        self._forwarder.rolled_back()

    def next_due(self, tx: Tx) -> int | None:
        due = (
            self._parts.deliveries.next_due,
            release.next_due(self._parts, tx),
            self._forwarder.next_due(tx),
        )
        return min((at for at in due if at is not None), default=None)

    # -- decisions

    def apply_decisions(self, tx: Tx, decisions: Decisions) -> None:
        """Apply decisions depth-first: each with all its consequences before the next one.

        That is the order of direct calls. It matters: of several deliveries that are routed to this
        node, the second is looked at only after the first was taken, or refused and moved on.
        """
        pending = [*reversed(decisions)]
        while pending:
            decision = pending.pop()
            more = self._handlers[type(decision)](tx, decision)
            if more:
                pending.extend(reversed(more))

    def _note_accepted(self, tx: Tx, accepted: DeliveryAccepted) -> None:
        id, kind, elapsed = accepted
        self._on_receipt(CountedReceipt(kind, "accepted", elapsed, id))
        self.sent.status_changed(tx, id)

    def _end_delivery(self, tx: Tx, ended: DeliveryEnded) -> Decisions:
        """Tell the pair, the original sender of forwarded mail, and the callers that wait."""
        if ended.elapsed is not None:
            counted = CountedReceipt(ended.kind, "processed", ended.elapsed, ended.event_id)
            self._on_receipt(counted)
        signals = send.close_pair_numbers(self._parts, tx, PairMoved(ended.pair))
        turns = self._forwarder.end_forward(tx, ended)
        self.sent.status_changed(tx, ended.event_id)
        if ended.kind == EventKind.TASK_CREATE:
            turns = (*turns, *self._tell_hub(tx, ended))
        return (*signals, *turns) if signals or turns else NOTHING

    def _amend_end(self, tx: Tx, amended: EndAmended) -> Decisions:
        """Report an amended end to the original sender of forwarded mail and to waiting callers."""
        counted = CountedReceipt(amended.kind, "processed", amended.elapsed, amended.event_id)
        self._on_receipt(counted)
        self.sent.status_changed(tx, amended.event_id)
        return self._forwarder.amend_forward(tx, amended)

    def _end_turn(self, tx: Tx, turn: TurnEnded) -> Decisions:
        """Send the reply, then the receipt `processed`."""
        info = turn.info
        reply = engage.send_reply(self._parts, tx, turn)
        receipt = PROCESSED if reply is None else REPLIED
        if turn.outcome != "ok" or turn.reason:
            reason = turn.reason or None
            replied = reply is not None
            receipt = Receipt(
                status="processed", outcome=turn.outcome, reason=reason, replied=replied
            )
        source = info.source_node or self._parts.node.id
        if info.kind == EventKind.TASK_CREATE:
            self.apply_decisions(tx, self._tell_hub(tx, turn))
        processed = self.writer.append_receipt(
            tx, turn.to_agent, source, info.event_id, info.corr_id, receipt
        )
        return (*reply, *processed) if reply else processed

    def _forward_mail(self, tx: Tx, forward: ForwardMail) -> Decisions:
        """Emit forwarded mail; if that fails, only this mail is lost."""
        if forward.event.kind == EventKind.TASK_CREATE and (decided := self._tell_hub(tx, forward)):
            return decided
        mark = tx.begin_operation()
        try:
            self._forwarder.record_forward(tx, forward)
            release.reopen_number(self._parts, tx, forward)
            decisions = send.emit_event(self._parts, tx, forward.event, forward.route)
        except GatepostError as error:
            tx.undo_operation(mark)
            return self._forwarder.fail_forward(tx, forward, error)
        tx.keep_operation()
        return decisions

    def _want_blob(self, tx: Tx, wanted: BlobWanted) -> None:
        tx.add_effect(partial(self._on_blob_wanted, *wanted))

    def _want_check(self, tx: Tx, wanted: CheckWanted) -> None:
        tx.add_effect(partial(self._to_check.add, wanted.source))

    def _tell_hub(self, tx: Tx, notice: TaskNotice) -> Decisions:
        return self._parts.hub.apply_notice(tx, notice)


def _ignore_event(*_: object) -> None:
    """The default of every listener; `observe` replaces it."""
