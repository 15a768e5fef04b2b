"""The composition root: the one place where the parts of a gateway's core are put together."""

from collections.abc import Callable
from typing import NamedTuple

import apsw

from gatepost.delivery.abuse import AbuseLog
from gatepost.delivery.agents import Agents
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.forwarding import MailForwarder
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.receiver.acceptance import SENDER_GRACE_MS, ReceiverParts
from gatepost.delivery.receiver.held_events import FullMailboxes, SuspectEvents
from gatepost.delivery.receiver.receiver import Receiver
from gatepost.delivery.receiver.source_quota import SourceLimits
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.sender.delivery_table import DeliveryTable
from gatepost.delivery.sender.emitting import Emitter
from gatepost.delivery.sender.giving_up import GivingUp
from gatepost.delivery.sender.local_delivery import LocalDelivery
from gatepost.delivery.sender.lost_owners import LostOwners
from gatepost.delivery.sender.pairs import SenderPairs
from gatepost.delivery.sender.payloads import PayloadEncryption
from gatepost.delivery.sender.receipts import ReceiptHandler
from gatepost.delivery.sender.recovery import DeliveryRecovery
from gatepost.delivery.sender.replies import ReplySender
from gatepost.delivery.sender.rerouting import Rerouter
from gatepost.delivery.sender.sender import Sender
from gatepost.delivery.sender.timers import DeliveryTimers
from gatepost.delivery.sent_messages import SentMessages
from gatepost.delivery.transfers import Transfers
from gatepost.journal.outbox import Outbox
from gatepost.journal.writer import JobOutcome, Participant, Writer
from gatepost.mailbox import Dispatcher, MailboxPolicy


class DeliveryCore(NamedTuple):
    """One gateway's core, ready for a writer."""

    node: LocalNode
    agents: Agents
    routes: RouteFinder
    dispatcher: Dispatcher
    coordinator: DeliveryCoordinator
    sender: Sender
    receiver: Receiver
    transfers: Transfers
    sent: SentMessages
    incidents: IncidentLog
    abuse: AbuseLog
    outbox: Outbox

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The participants of the commit group, in their order: mailboxes collect the mail that
        time closed, the coordinator reports it to its senders, the outbox numbers and signs the
        events of both, and the abuse log writes its incidents.
        """
        return self.dispatcher, self.coordinator, self.outbox, self.abuse

    def build_writer(
        self,
        connection: apsw.Connection,
        deliver: Callable[[list[JobOutcome]], None],
        *others: Participant,
        group_max: int = 4096,
    ) -> Writer:
        """The journal's writer for this core; `others` come last in every commit group."""
        participants = (*self.participants, *others)
        clock = self.node.clock
        return Writer(connection, clock, deliver, participants=participants, group_max=group_max)


def build_core(
    node: LocalNode,
    retries: RetryPolicy,
    mailboxes: MailboxPolicy,
    limits: SourceLimits | None = None,
) -> DeliveryCore:
    agents = Agents()
    routes = RouteFinder(node, agents)
    dispatcher = Dispatcher(node.clock, mailboxes)
    incidents = IncidentLog(node.id)
    abuse = AbuseLog(incidents, node.clock)
    outbox = Outbox(node.id, node.incarnation, node.key)
    writer = OutboxWriter(node, outbox)
    full = FullMailboxes()
    sender = _build_sender(
        node, retries, agents, routes, dispatcher, incidents, abuse, writer, full
    )
    suspects = SuspectEvents(SENDER_GRACE_MS)
    receiver = Receiver(
        ReceiverParts(
            node, agents, routes, dispatcher, incidents, abuse, writer, full, suspects,
            limits or SourceLimits(),
        )
    )  # fmt: skip
    forwarder = MailForwarder(node, agents, routes, dispatcher, incidents)
    transfers = Transfers(node, routes, writer)
    sent = SentMessages()
    coordinator = DeliveryCoordinator(
        node, agents, routes, dispatcher, incidents, abuse, writer,
        sender, receiver, forwarder, transfers, sent,
    )  # fmt: skip
    return DeliveryCore(
        node, agents, routes, dispatcher, coordinator, sender, receiver,
        transfers, sent, incidents, abuse, outbox,
    )  # fmt: skip


def _build_sender(
    node: LocalNode,
    retries: RetryPolicy,
    agents: Agents,
    routes: RouteFinder,
    dispatcher: Dispatcher,
    incidents: IncidentLog,
    abuse: AbuseLog,
    writer: OutboxWriter,
    full: FullMailboxes,
) -> Sender:
    deliveries, pairs = DeliveryTable(), SenderPairs()
    encryption = PayloadEncryption(node, routes)
    emitter = Emitter(node, retries, routes, deliveries, pairs, encryption, writer)
    local = LocalDelivery(node, retries, dispatcher, deliveries, pairs, encryption, writer, full)
    rerouter = Rerouter(node, retries, routes, deliveries, pairs, encryption, writer)
    receipts = ReceiptHandler(retries, deliveries, rerouter, abuse, writer)
    replies = ReplySender(node, agents, emitter, local, receipts, incidents)
    timers = DeliveryTimers(node, retries, routes, deliveries, pairs, rerouter, writer, incidents)
    giving_up = GivingUp(node, deliveries, encryption, writer, incidents)
    recovery = DeliveryRecovery(node, retries, writer)
    lost_owners = LostOwners(node, routes, rerouter)
    return Sender(
        deliveries, pairs, emitter, local, receipts, replies,
        rerouter, timers, giving_up, recovery, lost_owners, writer,
    )  # fmt: skip
