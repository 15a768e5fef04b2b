"""What a gateway says of itself over HTTP: agents, mailboxes, peers, undelivered messages."""

from msgspec import UNSET, Raw, Struct, UnsetType, field

from gatepost.events.envelope import Order
from gatepost.wire.operations import AgentRole, Failure


class AgentInfo(Struct, frozen=True, omit_defaults=True):
    """An agent that this gateway hosts.

    `owner` is the gateway that owns it according to the room; `rivals` have claims that do not
    count. `standby`: another gateway owns it, and this one can stand in. `problem` says why this
    gateway does not own it.
    """

    id: str
    type: str
    created_at: int
    seen_at: int
    standby: bool = False
    owner: str | None = None
    rivals: tuple[str, ...] = ()
    problem: str = ""
    role: AgentRole | None = None
    order: Order = "fifo"


class MailboxCounts(Struct, frozen=True):
    """The counts of a mailbox. `order` is its default order."""

    name: str
    waiting: int
    in_flight: int
    dead_letters: int
    order: Order = "fifo"


class AuditEntry(Struct, frozen=True):
    at: int
    actor: str
    action: str
    subject: str
    detail: str


class Undelivered(Struct, frozen=True, omit_defaults=True):
    """A message that its sender's gateway gave up. Times are epoch milliseconds.

    `verdict` is the last answer of its owner, or says that there was none or that the message was
    never sent; `verdict_at` is its time if it came after the message was given up. `safe` means
    that it cannot have had a turn, so a replay cannot cause a second one.
    """

    event_id: str
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    node: str | None
    reason: str
    attempts: int
    failed_at: int
    safe: bool
    verdict: str | None = None
    payload: Raw | UnsetType = UNSET
    payload_ref: str | None = None
    replayed_as: str | None = None
    verdict_at: int | None = None
    subject: str | None = None


class UndeliveredPage(Struct, frozen=True):
    messages: list[Undelivered]


class Replayed(Struct, frozen=True, omit_defaults=True):
    """The result of one replay: the new event `as_event`, or the `error` that prevented it."""

    event_id: str
    as_event: str | None = None
    error: Failure | None = None


class Replays(Struct, frozen=True):
    results: list[Replayed]


class StoredBlob(Struct, frozen=True):
    """A payload stored as a blob."""

    digest: str
    size: int


class PeerStatus(Struct, frozen=True):
    """How a gateway stands with another one. Times are epoch milliseconds.

    `state` describes it in words, with reason and age; the other fields are for programs. `linked`:
    there is a link; else `relay` names the relay that brings its outbox, if one does. `waiting`
    messages have no receipt from it yet, the oldest since `waiting_since`, for the reason `why`;
    `accepted` ones are not processed yet. `problem` is the reason for a missing link.
    """

    id: str
    status: str
    linked: bool
    relay: str | None
    last_heard_at: int | None
    waiting: int = 0
    waiting_since: int | None = None
    accepted: int = 0
    why: str = ""
    problem: str = ""
    state: str = ""


class Status(Struct, frozen=True):
    """A gateway at a glance. `problem` says why it is not `accepting`.

    `dead_letters_open` were not sent again. `runs_as_root` is a risk, because a fault of the
    gateway then affects the whole machine. `answered_late` counts undelivered messages of which a
    receipt came after they were given up. `mesh_problems`: what an operator has to do about the
    mesh, a sentence each. `health` is `online` or `degraded`, and `health_problems` has the
    reasons.
    """

    node_id: str
    version: str
    pid: int
    accepting: bool
    problem: str | None
    agents: int
    waiting: int
    in_flight: int
    dead_letters: int
    outbox_seq: int
    journal_bytes: int
    deliveries_open: int = 0
    undelivered: int = 0
    answered_late: int = 0
    links: list[str] = field(default_factory=list)
    incidents: dict[str, int] = field(default_factory=dict)
    reviews_open: int = 0
    peers: list[PeerStatus] = field(default_factory=list)
    mesh_problems: list[str] = field(default_factory=list)
    runs_as_root: bool = False
    health: str = "online"
    health_problems: list[str] = field(default_factory=list)
    dead_letters_open: int = 0


class SettingsReloaded(Struct, frozen=True):
    """The changed settings that are in effect, and those that need a restart, as `section.key`."""

    applied: list[str]
    needs_restart: list[str]
