"""The parts that the transactions of delivery share.

They are functions of these parts, the transaction, and what the transaction is about. Their state
in memory can be read again from the journal.
"""

from collections.abc import Callable

from msgspec import Struct

from gatepost.delivery.abuse import AbuseLog
from gatepost.delivery.agents import Agents
from gatepost.delivery.decisions import NOTHING, Decisions, TaskNotice
from gatepost.delivery.delivery_table import OpenDeliveries
from gatepost.delivery.inbox.cursors import OutboxGaps
from gatepost.delivery.inbox.held_events import Holds
from gatepost.delivery.inbox.source_quota import SourceLimits
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.pairs import SenderPairs
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.routes import RouteFinder
from gatepost.events import Envelope, TaskInfo
from gatepost.journal.transaction import Tx
from gatepost.mailbox import Dispatcher


class TaskHub:
    """The questions of delivery to the hub, inside a transaction. This default knows no tasks."""

    def apply_notice(self, tx: Tx, notice: TaskNotice) -> Decisions:
        return NOTHING

    def has_task(self, tx: Tx, id: bytes) -> bool:
        """Whether this gateway knows the task with this id, whoever requested or executes it."""
        return False

    def is_result_for(self, tx: Tx, digest: str, node: str) -> bool:
        """Whether a blob is the result of a task that was requested by the agents of `node`."""
        return False

    def needs_check(self, tx: Tx, envelope: Envelope, open_payload: Callable[[], bytes]) -> bool:
        """Whether a request has to wait until its content is checked."""
        return False

    def find_eta(self, agent: str, info: TaskInfo | None) -> int | None:
        """The ETA of a task in seconds."""
        return None


class DeliveryCounts(Struct):
    """Counts since the process started.

    `retries` are messages sent again because no receipt came, `ignored_receipts` receipts that did
    not count, `duplicates` events that came again, and `blobs` the blobs that were fetched.
    """

    retries: int = 0
    ignored_receipts: int = 0
    duplicates: int = 0
    blobs: int = 0


class DeliveryParts(Struct, eq=False):
    """One gateway: who it is, its policy, its logs, and the state that its transactions share."""

    node: LocalNode
    policy: RetryPolicy
    agents: Agents
    routes: RouteFinder
    dispatcher: Dispatcher
    incidents: IncidentLog
    abuse: AbuseLog
    writer: OutboxWriter
    deliveries: OpenDeliveries
    pairs: SenderPairs
    holds: Holds
    gaps: OutboxGaps
    limits: SourceLimits
    # The hub is built on these parts, and sets itself here.
    hub: TaskHub
    counts: DeliveryCounts
    # Node → when it lately asked what is new to its restored journal.
    resume_questions: dict[str, list[int]]
