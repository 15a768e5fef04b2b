"""Dead letters, chosen with SQL over the table `deliveries`, back to the gateways that hold them.

A sender's gateway holds what it gave up; an owner's gateway holds what its agent could not deal
with. A gateway sends each of them again at most once, whoever asks how often: what it has sent
again before is reported so. Only the gateway we have a token for is asked; for all others there
are commands to run there.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec import Struct

from gatepost.errors import InvalidRequest, NotFound
from gatepost.events import format_event_id
from gatepost.pipeline.gateways import Gateway
from gatepost.wire import DeadLetter, Enqueued, Failure, Replays, Undelivered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH = 500
_IDS_A_COMMAND = 50


class Letter(Struct, frozen=True):
    """A dead letter and where it lies: in a mailbox, or among what its sender gave up (None)."""

    event_id: str
    node: str
    mailbox: str | None
    to_agent: str
    reason: str | None


class Chosen(Struct, frozen=True):
    """`answered` were given up and answered all the same, so they are left alone.

    `more`: there are more than were asked for.
    """

    letters: list[Letter]
    answered: int
    more: bool


class Outcome(Struct, frozen=True):
    """`state` is replayed, already_replayed, refused or gone."""

    event_id: str
    state: str
    detail: str = ""


class Elsewhere(Struct, frozen=True):
    """What another gateway holds, and how to replay it there."""

    node: str
    letters: int
    commands: list[str]


def choose(spark: "SparkSession", tables: str, where: str, limit: int) -> Chosen:
    """The first dead letters for which the SQL condition holds, oldest first."""
    from gatepost.pipeline.jobs.apply import Tables
    from gatepost.pipeline.tables import schemas

    deliveries = Tables(tables).read(spark, schemas.DELIVERIES)
    dead = _dead(_matching(deliveries, where))
    rows = dead.orderBy("sent_at", "event_id").limit(limit + 1).collect()
    letters = [
        Letter(
            format_event_id(bytes(row.event_id)),
            row.to_node if row.outcome == "dead_letter" else row.node,
            row.to_agent if row.outcome == "dead_letter" else None,
            row.to_agent,
            row.reason,
        )
        for row in rows[:limit]
        if not row.answered
    ]
    answered = sum(1 for row in rows[:limit] if row.answered)
    return Chosen(letters, answered, len(rows) > limit)


def _matching(deliveries: "DataFrame", where: str) -> "DataFrame":
    from pyspark.errors import AnalysisException, ParseException

    try:
        return deliveries.where(where)
    except (AnalysisException, ParseException) as error:
        said = str(error).partition("\n")[0]
        raise InvalidRequest(f"{where!r} is no condition over deliveries: {said}") from None


def _dead(deliveries: "DataFrame") -> "DataFrame":
    """Whose turn ended as a dead letter, or whom the sender gave up."""
    from pyspark.sql import functions as F

    by_owner = F.coalesce(F.col("outcome") == "dead_letter", F.lit(False))
    given_up = F.col("state") == "dead_letter"
    dead = deliveries.where("kind is not null").where(by_owner | given_up)
    answered = ~by_owner & F.col("amended")
    return dead.select(
        *("event_id", "node", "to_node", "to_agent", "sent_at", "reason", "outcome"),
        answered.alias("answered"),
    )


def elsewhere(letters: Sequence[Letter]) -> list[Elsewhere]:
    """Commands for each gateway that holds some."""
    by_node: dict[str, list[Letter]] = {}
    for letter in letters:
        by_node.setdefault(letter.node, []).append(letter)
    return [
        Elsewhere(node, len(held), list(_commands(held))) for node, held in sorted(by_node.items())
    ]


def _commands(letters: Sequence[Letter]) -> Iterator[str]:
    for mailbox, ids in _by_mailbox(letters).items():
        start = ["undelivered", "replay"] if mailbox is None else ["dlq", "replay", mailbox]
        for some in _batches(ids, _IDS_A_COMMAND):
            yield shlex.join(["gatepost", *start, *some])


def replay(
    gateway: Gateway,
    letters: Sequence[Letter],
    *,
    rate: float | None = None,
    done: Callable[[int], None] = lambda count: None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Outcome]:
    """Have the gateway send these again, at most `rate` a second; `done` is told how many were."""
    outcomes: list[Outcome] = []
    # The pace is kept here, so that whoever stops this stops the replay.
    size = _BATCH if rate is None else max(1, min(_BATCH, int(rate / 5)))
    for mailbox, ids in _by_mailbox(letters).items():
        for some in _batches(ids, size):
            if rate is not None and outcomes:
                sleep(len(some) / rate)
            asked = _given_up if mailbox is None else _in_mailbox(mailbox)
            outcomes += asked(gateway, some)
            done(len(some))
    return outcomes


def _given_up(gateway: Gateway, ids: Sequence[str]) -> list[Outcome]:
    body = {"event_ids": ids, "limit": len(ids)}
    answers = gateway.post("/v1/undelivered/replay", body, Replays).results
    told = {answer.event_id: answer for answer in answers}
    outcomes = []
    for id in ids:
        answer = told.get(id)
        if answer is None:
            outcomes.append(_gone(id))
        elif answer.as_event is not None:
            outcomes.append(Outcome(id, "replayed", answer.as_event))
        else:
            look = gateway.get(f"/v1/undelivered/{quote(id)}", Undelivered)
            outcomes.append(_left(id, look.replayed_as, answer.error))
    return outcomes


def _in_mailbox(mailbox: str) -> Callable[[Gateway, Sequence[str]], list[Outcome]]:
    folder = f"/v1/mailboxes/{quote(mailbox, safe='')}/dead-letters"

    def ask(gateway: Gateway, ids: Sequence[str]) -> list[Outcome]:
        body = {"msg_ids": ids, "limit": len(ids)}
        acks = gateway.post(f"{folder}/replay", body, Enqueued).results
        fresh = {ack.msg_id for ack in acks if ack.error is None}
        error = next((ack.error for ack in acks if ack.error is not None), None)
        # The answer names the new messages; only the dead letters know which of them is whose.
        return [_looked(gateway, folder, id, fresh, error) for id in ids]

    return ask


def _looked(
    gateway: Gateway, folder: str, id: str, fresh: set[str], error: Failure | None
) -> Outcome:
    try:
        letter = gateway.get(f"{folder}/{quote(id, safe='')}", DeadLetter)
    except NotFound:
        return _gone(id)
    if letter.replayed_as in fresh:
        return Outcome(id, "replayed", letter.replayed_as or "")
    return _left(id, letter.replayed_as, error)


def _left(id: str, replayed_as: str | None, error: Failure | None) -> Outcome:
    if replayed_as is not None:
        return Outcome(id, "already_replayed", replayed_as)
    return Outcome(id, "refused", error.message if error else "the gateway left it alone")


def _gone(id: str) -> Outcome:
    return Outcome(id, "gone", "the gateway no longer has it")


def _by_mailbox(letters: Sequence[Letter]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for letter in letters:
        found.setdefault(letter.mailbox, []).append(letter.event_id)
    return found


def _batches(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]
