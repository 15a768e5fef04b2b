"""The composition root: the one place where the parts of a gateway's core are put together."""

from collections.abc import Callable
from typing import NamedTuple

import apsw

from gatepost.delivery.abuse import AbuseLog
from gatepost.delivery.agents import Agents
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.delivery_table import OpenDeliveries
from gatepost.delivery.forward import MailForwarder
from gatepost.delivery.inbox.cursors import OutboxGaps
from gatepost.delivery.inbox.held_events import (
    SENDER_GRACE_MS,
    FullMailboxes,
    Holds,
    SuspectEvents,
)
from gatepost.delivery.inbox.source_quota import SourceLimits
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.pairs import SenderPairs
from gatepost.delivery.parts import DeliveryCounts, DeliveryParts, TaskHub
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.routes import RouteFinder
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
    parts: DeliveryParts
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
    parts = DeliveryParts(
        node, retries, agents, routes, dispatcher, incidents, abuse, writer,
        OpenDeliveries(), SenderPairs(), Holds(FullMailboxes(), SuspectEvents(SENDER_GRACE_MS)),
        OutboxGaps(), limits or SourceLimits(), TaskHub(), DeliveryCounts(), {},
    )  # fmt: skip
    forwarder = MailForwarder(node, agents, routes, dispatcher, incidents)
    transfers = Transfers(node, routes, writer)
    sent = SentMessages()
    coordinator = DeliveryCoordinator(
        parts, forwarder, transfers, sent,
    )  # fmt: skip
    return DeliveryCore(
        node, agents, routes, dispatcher, coordinator, parts,
        transfers, sent, incidents, abuse, outbox,
    )  # fmt: skip
