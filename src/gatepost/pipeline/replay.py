"""Replays dead letters at the gateways that hold them, chosen by SQL over the table `deliveries`.

The sender's gateway holds messages it gave up; the owner's gateway holds messages its agent could
not process. A gateway replays each dead letter at most once, and reports `already_replayed` after
that. Only the gateway we have a token for is called; for all others `replay_commands` lists the
commands to run there.
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
    """A dead letter in a mailbox, or one that its sender gave up (`mailbox` is None)."""

    event_id: str
    node: str
    mailbox: str | None
    to_agent: str
    reason: str | None


class Chosen(Struct, frozen=True):
    """The dead letters that match a condition, up to a limit.

    `answered` counts letters that were given up but answered all the same, and are not replayed.
    `more` says that the limit left some out.
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
    """The number of letters that another gateway holds, and the commands to replay them there."""

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
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(f"{where!r} is no condition over deliveries: {reason}") from None


def _dead(deliveries: "DataFrame") -> "DataFrame":
    """Deliveries whose turn ended as a dead letter, or that the sender gave up."""
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
    """The replay commands for each gateway that holds some of these letters."""
    by_node: dict[str, list[Letter]] = {}
    for letter in letters:
        by_node.setdefault(letter.node, []).append(letter)
    return [
        Elsewhere(node, len(held), list(_commands(held))) for node, held in sorted(by_node.items())
    ]


def _commands(letters: Sequence[Letter]) -> Iterator[str]:
    for mailbox, ids in _by_mailbox(letters).items():
        start = ["undelivered", "replay"] if mailbox is None else ["dlq", "replay", mailbox]
        for batch in _batches(ids, _IDS_A_COMMAND):
            yield shlex.join(["gatepost", *start, *batch])


def replay(
    gateway: Gateway,
    letters: Sequence[Letter],
    *,
    rate: float | None = None,
    done: Callable[[int], None] = lambda count: None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Outcome]:
    """Have the gateway replay these letters, at most `rate` a second.

    `done` is called with the size of each batch.
    """
    outcomes: list[Outcome] = []
    # The rate is limited here and not by the gateway, so that stopping this stops the replay.
    size = _BATCH if rate is None else max(1, min(_BATCH, int(rate / 5)))
    for mailbox, ids in _by_mailbox(letters).items():
        replay_batch = _given_up if mailbox is None else _in_mailbox(mailbox)
        for batch in _batches(ids, size):
            if rate is not None and outcomes:
                sleep(len(batch) / rate)
            outcomes += replay_batch(gateway, batch)
            done(len(batch))
    return outcomes


def _given_up(gateway: Gateway, ids: Sequence[str]) -> list[Outcome]:
    body = {"event_ids": ids, "limit": len(ids)}
    results = gateway.post("/v1/undelivered/replay", body, Replays).results
    answers = {answer.event_id: answer for answer in results}
    outcomes = []
    for id in ids:
        answer = answers.get(id)
        if answer is None:
            outcomes.append(_gone(id))
        elif answer.as_event is not None:
            outcomes.append(Outcome(id, "replayed", answer.as_event))
        else:
            held = gateway.get(f"/v1/undelivered/{quote(id)}", Undelivered)
            outcomes.append(_left(id, held.replayed_as, answer.error))
    return outcomes


def _in_mailbox(mailbox: str) -> Callable[[Gateway, Sequence[str]], list[Outcome]]:
    folder = f"/v1/mailboxes/{quote(mailbox, safe='')}/dead-letters"

    def replay_batch(gateway: Gateway, ids: Sequence[str]) -> list[Outcome]:
        body = {"msg_ids": ids, "limit": len(ids)}
        acks = gateway.post(f"{folder}/replay", body, Enqueued).results
        fresh = {ack.msg_id for ack in acks if ack.error is None}
        error = next((ack.error for ack in acks if ack.error is not None), None)
        # The answer names the new messages only; each dead letter says which one replays it.
        return [_looked(gateway, folder, id, fresh, error) for id in ids]

    return replay_batch


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
