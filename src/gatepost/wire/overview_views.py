"""The room at a glance, for its operator: the ledger, what needs a person, changes, messages."""

from typing import Literal

from msgspec import Raw, Struct, field

from gatepost.ledger import Ledger, Term

# What may have changed: messages and mail of this gateway, its tasks, the ledger of the room, its
# records, and how its gateways stand.
Topic = Literal["messages", "tasks", "ledger", "room", "nodes"]


class NodeLedger(Struct, frozen=True, omit_defaults=True):
    """The ledger of one gateway as it last told it, at `at` (by our clock).

    `problem` says why it is not known how it stands now; `ledger` is then the last one known, or
    None. The messages that `adds_up` is false of are in no term.
    """

    node: str
    ledger: Ledger | None = None
    at: int | None = None
    problem: str = ""
    adds_up: bool = True


class BrokenPromise(Struct, frozen=True, omit_defaults=True):
    """A promise that was found broken. `evidence` says by what, `command` shows more."""

    term: Term
    promise: str
    evidence: str
    at: int
    command: str
    incident: str = ""
    corr_ids: list[str] = field(default_factory=list)


class RoomLedger(Struct, frozen=True):
    """The ledger of all gateways of the room, summed over those in `nodes` that are known.

    `unknown`: gateways that did not tell how they stand now. `broken`: what makes a term wrong.
    `is_proved`: every gateway told its counts, they add up, and no promise is broken.
    """

    ledger: Ledger
    at: int
    nodes: list[NodeLedger]
    unknown: list[str] = field(default_factory=list)
    broken: list[BrokenPromise] = field(default_factory=list)

    @property
    def is_proved(self) -> bool:
        return not self.unknown and not self.broken


class NeedAction(Struct, frozen=True):
    """The action that mends it: a call of the operator's API, and the command that does the same.

    Without a `path`, a person has to decide something first; `command` then says how.
    """

    label: str
    command: str
    method: Literal["POST", "PUT", "DELETE"] = "POST"
    path: str = ""
    # From a factory: the OpenAPI document cannot show a default of this type.
    body: Raw = field(default_factory=lambda: Raw(b"{}"))


class Need(Struct, frozen=True, omit_defaults=True):
    """What a person has to do. `urgency` 0 is the most urgent; `since` is in epoch milliseconds."""

    id: str
    urgency: int
    kind: str
    text: str
    action: NeedAction
    detail: str = ""
    since: int | None = None
    subject: str = ""


class NeedList(Struct, frozen=True):
    """The most urgent first. `more` were left out."""

    needs: list[Need]
    more: int = 0


class ChangeNotice(Struct, frozen=True):
    """These topics may have changed since the notice before."""

    topics: list[Topic]
    at: int


class SentMessageView(Struct, frozen=True, omit_defaults=True):
    """A message that was sent from here, and what became of it."""

    event_id: str
    term: Term
    from_agent: str
    to_agent: str
    corr_id: str
    kind: str
    state: str
    outcome: str | None
    reason: str | None
    node: str | None
    attempt: int
    sent_at: int
    accepted_at: int | None = None
    processed_at: int | None = None
    next_at: int | None = None


class SentPage(Struct, frozen=True):
    """Messages, newest first. `next`: pass it as `before` for the page that follows."""

    messages: list[SentMessageView]
    next: str = ""
