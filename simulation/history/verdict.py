"""The observations of clients, the rules of the checker, and its verdict."""

from msgspec import Struct, field

from gatepost.ledger import Ledger

# Every violation names one of these.
RULES = {
    "kept": "a send that was acknowledged is in its gateway's outbox",
    "settled": "after everything healed, no message is open",
    "one end": "a message ends once: processed by one gateway, or given up by its sender",
    "one turn": "at most one turn of an event is completed, on whatever gateways",
    "order": "ordered turns of a pair are completed in the order it was sent",
    "due": "no turn with a delayed message begins before its owner's clock has shown its time",
    "same outcome": "sender and owner report the same outcome of a message",
    "routed": "only receipts of a gateway that the message was routed to count",
    "confirmed": "an offer is engaged only by the gateway its sender confirmed",
    "accepted": "a message that was accepted for good is processed or dead-lettered",
    "amended": "a message ends for its sender as for its owner, even if that is said too late",
    "truthful": "no sender is told that a message expired which an agent then processes",
    "deserved": "a message is given up only after all attempts of its retry policy",
    "chain": "every outbox is one gapless chain under signed heads",
    "told": "every event names the one before it for the same reader, and is taken",
    "calm": "no failure happens without a fault",
    "written": "a gateway takes only events that their source wrote for it",
    "complete": "an event that a gateway has read past is in its inbox, or refused",
    "payload": "an agent gets the payload of the message or reply that was sent to it",
    "blob here": "a message is accepted only once its blob is complete and intact",
    "noticed": "a forged frame ends its link at once",
    "left out": "an event that a relay leaves out is read after all",
    "task kept": "a task that was acknowledged is in its gateway's journal",
    "task ended": "after everything healed, every task ends within its bound",
    "task one end": "a task has one end; its creator is told no other, unless that was presumed",
    "task same end": "a task ends for its creator as it ended for its executor",
    "task work": "a report that was answered counts, and no later one replaces it",
    "task launch": "a session is launched once",
    "task turn": "while a task waits for a session, each other source has few sessions more",
    "task share": "a source that asks for few tasks is not refused for those of others",
    "skill requests": "a gateway asks another one a few times for each skill",
    "task cancelled": "a task that is open when its cancellation arrives ends as cancelled",
}


class ObservedSend(Struct):
    """The answer a client got for one message: acknowledged, refused, or none.

    `payload` is the digest of the payload it sent.
    """

    node: str
    sender: str
    target: str
    key: str
    at: int
    event_id: str = ""
    result: str = "unknown"
    payload: str = ""


class ObservedTurn(Struct):
    """One turn as its agent knows it. `result` is ok only if the agent's ack was answered.

    `payload` is the digest of the payload that the agent got, `reply` of the reply that it gave.
    A reply that it got answers `ref_event_id`. `not_before` is the time the message was delayed to,
    and `clock` the latest time that the clock of its gateway had shown when the turn began.
    """

    node: str
    agent: str
    sender: str
    source: str
    event_id: str
    receipt: str
    begun_at: int
    attempt: int = 0
    ended_at: int = 0
    result: str = "unknown"
    kind: str = ""
    payload: str = ""
    ref_event_id: str = ""
    reply: str = ""
    not_before: int = 0
    clock: int = 0


class ObservedTask(Struct):
    """A task as its creator knows it. `cancel` is the answer to its cancellation, if it got one."""

    node: str
    requester: str
    agent: str
    key: str
    at: int
    task_id: str = ""
    result: str = "unknown"
    cancel: str = ""


class ObservedTaskEnd(Struct, frozen=True):
    """The end of a task that a gateway told of."""

    node: str
    task_id: str
    state: str
    code: str | None
    at: int


class ObservedWork(Struct):
    """The work on a task as its executor knows it: `outcome` is set if its report was answered.

    `result` is the digest of the result. `contradicted`: a second, other result was taken too.
    `session` is the name of its session, if it has one. `is_gone`: its gateway has recorded that
    the processes of the session are gone.
    """

    node: str
    agent: str
    task_id: str
    begun_at: int
    outcome: str = ""
    code: str = ""
    result: str = ""
    contradicted: bool = False
    session: str = ""
    is_gone: bool = False


class ObservedWait(Struct, frozen=True):
    """A task waits for a session of its gateway from then on, for this source."""

    source: str
    since: int


class Observations(Struct):
    """All that clients, agents and the simulation saw.

    `appended` maps (node, incarnation) to the (last seq, time) of every commit group on disk;
    without it the checker goes by the gateways' own clocks. `restored` gateways lost everything
    after their backup; `absent` ones are not back yet, `lost` ones never come, and some of
    them are `revoked`; the clocks of some were `set_back`;
    `surprises` are failures without a fault.
    In a `brief` history no fault lasted longer than a sender retries. In a `hasty` one senders of
    expired messages wait for less than that.
    `blobs` maps (node, digest) to the time at which a blob was complete on disk. `forged` holds
    (reader, forgery, whether its link ended), `left_out` maps (reader, source, seq) of an event
    that a relay left out to whether it came after all. `waits` maps (node, name of a session) to
    the latest wait for it.
    """

    sends: list[ObservedSend] = field(default_factory=list)
    turns: list[ObservedTurn] = field(default_factory=list)
    appended: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    set_back: set[str] = field(default_factory=set)
    surprises: list[tuple[str, str]] = field(default_factory=list)
    brief: bool = False
    hasty: bool = False
    blobs: dict[tuple[str, str], int] = field(default_factory=dict)
    forged: list[tuple[str, str, bool]] = field(default_factory=list)
    left_out: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    tasks: list[ObservedTask] = field(default_factory=list)
    task_ends: list[ObservedTaskEnd] = field(default_factory=list)
    works: list[ObservedWork] = field(default_factory=list)
    waits: dict[tuple[str, str], ObservedWait] = field(default_factory=dict)
    healed_at: int = 0

    def note_blob(self, node: str, digest: str, at: int) -> None:
        """A blob is complete on the disk of a gateway; only the first time counts."""
        self.blobs.setdefault((node, digest), at)


class HistoryViolation(Struct, frozen=True):
    rule: str
    node: str
    event: str
    detail: str

    def __str__(self) -> str:
        return f"{self.node} {self.event}: {RULES[self.rule]} [{self.rule}]: {self.detail}"


class OutcomeCounts(Struct):
    """The number of messages by outcome.

    `amended` is part of `dead_lettered`, and `tasks_completed` of `tasks`. `task_requests` are
    part of `sent`: the events that request or cancel tasks. `rewound` messages were sent by a
    gateway that was then restored from a backup without them.
    """

    sent: int = 0
    processed: int = 0
    dead_lettered: int = 0
    waiting: int = 0
    lost: int = 0
    doubled: int = 0
    amended: int = 0
    rewound: int = 0
    task_requests: int = 0
    tasks: int = 0
    tasks_completed: int = 0


class HistoryVerdict(Struct):
    """`reasons` is why messages died, and how many of each. `ledger` leaves out replies, and
    counts forwarded mail once.
    """

    counts: OutcomeCounts
    violations: list[HistoryViolation]
    amended: list[str]
    reasons: dict[str, int]
    ledger: Ledger

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        numbers = ", ".join(
            f"{name} {getattr(self.counts, name)}" for name in OutcomeCounts.__struct_fields__
        )
        deaths = ", ".join(f"{why} {many}" for why, many in sorted(self.reasons.items()))
        return "\n".join([f"{numbers} ({deaths})", *map(str, self.violations)])
