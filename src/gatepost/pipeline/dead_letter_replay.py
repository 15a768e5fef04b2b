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
from gatepost.pipeline.gateway_api import GatewayApi
from gatepost.wire.gateway_views import Replays, Undelivered
from gatepost.wire.operations import DeadLetter, Enqueued, Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_SIZE = 500
_IDS_PER_COMMAND = 50


class ReplayLetter(Struct, frozen=True):
    """A dead letter in a mailbox, or one that its sender gave up (`mailbox` is None)."""

    event_id: str
    node: str
    mailbox: str | None
    to_agent: str
    reason: str | None


class ChosenLetters(Struct, frozen=True):
    """The dead letters that match a condition, up to a limit.

    `answered` counts letters that were given up but answered all the same, and are not replayed.
    `more` says that the limit left some out.
    """

    letters: list[ReplayLetter]
    answered: int
    more: bool


class ReplayOutcome(Struct, frozen=True):
    """`state` is replayed, already_replayed, refused or gone."""

    event_id: str
    state: str
    detail: str = ""


class RemoteLetters(Struct, frozen=True):
    """The number of letters that another gateway holds, and the commands to replay them there."""

    node: str
    letters: int
    commands: list[str]


def choose_letters(spark: "SparkSession", tables: str, where: str, limit: int) -> ChosenLetters:
    """The first dead letters for which the SQL condition holds, oldest first."""
    from gatepost.pipeline.jobs.batch_ledger import BatchLedger
    from gatepost.pipeline.jobs.table_update import TableFolder
    from gatepost.pipeline.tables import schemas

    BatchLedger(tables).require_known_layout()
    deliveries = TableFolder(tables).read(spark, schemas.DELIVERIES)
    dead = _select_dead_letters(_filter_deliveries(deliveries, where))
    rows = dead.orderBy("sent_at", "event_id").limit(limit + 1).collect()
    letters = [
        ReplayLetter(
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
    return ChosenLetters(letters, answered, len(rows) > limit)


def _filter_deliveries(deliveries: "DataFrame", where: str) -> "DataFrame":
    from pyspark.errors import AnalysisException, ParseException

    try:
        return deliveries.where(where)
    except (AnalysisException, ParseException) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(f"{where!r} is no condition over deliveries: {reason}") from None


def _select_dead_letters(deliveries: "DataFrame") -> "DataFrame":
    """Deliveries whose turn ended as a dead letter, or that the sender gave up."""
    from pyspark.sql import functions as F

    by_owner = F.coalesce(F.col("outcome") == "dead_letter", F.lit(False))
    given_up = (F.col("state") == "dead_letter") | F.col("amended")
    dead = deliveries.where("kind is not null").where(by_owner | given_up)
    answered = ~by_owner & F.col("amended")
    return dead.select(
        *("event_id", "node", "to_node", "to_agent", "sent_at", "reason", "outcome"),
        answered.alias("answered"),
    )


def replay_commands(letters: Sequence[ReplayLetter]) -> list[RemoteLetters]:
    """The replay commands for each gateway that holds some of these letters."""
    by_node: dict[str, list[ReplayLetter]] = {}
    for letter in letters:
        by_node.setdefault(letter.node, []).append(letter)
    return [
        RemoteLetters(node, len(held), list(_shell_commands(held)))
        for node, held in sorted(by_node.items())
    ]


def _shell_commands(letters: Sequence[ReplayLetter]) -> Iterator[str]:
    for mailbox, ids in _group_by_mailbox(letters).items():
        start = ["undelivered", "replay"] if mailbox is None else ["dlq", "replay", mailbox]
        for batch in _split_batches(ids, _IDS_PER_COMMAND):
            yield shlex.join(["gatepost", *start, *batch])


def replay_letters(
    gateway: GatewayApi,
    letters: Sequence[ReplayLetter],
    *,
    rate: float | None = None,
    done: Callable[[int], None] = lambda count: None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[ReplayOutcome]:
    """Have the gateway replay these letters, at most `rate` a second.

    `done` is called with the size of each batch.
    """
    outcomes: list[ReplayOutcome] = []
    # The rate is limited here and not by the gateway, so that stopping this stops the replay.
    size = _BATCH_SIZE if rate is None else max(1, min(_BATCH_SIZE, int(rate / 5)))
    for mailbox, ids in _group_by_mailbox(letters).items():
        replay_batch = _replay_undelivered if mailbox is None else _mailbox_replayer(mailbox)
        for batch in _split_batches(ids, size):
            if rate is not None and outcomes:
                sleep(len(batch) / rate)
            outcomes += replay_batch(gateway, batch)
            done(len(batch))
    return outcomes


def _replay_undelivered(gateway: GatewayApi, ids: Sequence[str]) -> list[ReplayOutcome]:
    body = {"event_ids": ids, "limit": len(ids)}
    results = gateway.post("/v1/undelivered/replay", body, Replays).results
    answers = {answer.event_id: answer for answer in results}
    outcomes = []
    for id in ids:
        answer = answers.get(id)
        if answer is None:
            outcomes.append(_gone_outcome(id))
        elif answer.as_event is not None:
            outcomes.append(ReplayOutcome(id, "replayed", answer.as_event))
        else:
            held = gateway.get(f"/v1/undelivered/{quote(id)}", Undelivered)
            outcomes.append(_unreplayed_outcome(id, held.replayed_as, answer.error))
    return outcomes


def _mailbox_replayer(mailbox: str) -> Callable[[GatewayApi, Sequence[str]], list[ReplayOutcome]]:
    folder = f"/v1/mailboxes/{quote(mailbox, safe='')}/dead-letters"

    def replay_batch(gateway: GatewayApi, ids: Sequence[str]) -> list[ReplayOutcome]:
        body = {"msg_ids": ids, "limit": len(ids)}
        acks = gateway.post(f"{folder}/replay", body, Enqueued).results
        fresh = {ack.msg_id for ack in acks if ack.error is None}
        error = next((ack.error for ack in acks if ack.error is not None), None)
        # The answer names the new messages only; each dead letter says which one replays it.
        return [_mailbox_outcome(gateway, folder, id, fresh, error) for id in ids]

    return replay_batch


def _mailbox_outcome(
    gateway: GatewayApi, folder: str, id: str, fresh: set[str], error: Failure | None
) -> ReplayOutcome:
    try:
        letter = gateway.get(f"{folder}/{quote(id, safe='')}", DeadLetter)
    except NotFound:
        return _gone_outcome(id)
    if letter.replayed_as in fresh:
        return ReplayOutcome(id, "replayed", letter.replayed_as or "")
    return _unreplayed_outcome(id, letter.replayed_as, error)


def _unreplayed_outcome(id: str, replayed_as: str | None, error: Failure | None) -> ReplayOutcome:
    if replayed_as is not None:
        return ReplayOutcome(id, "already_replayed", replayed_as)
    return ReplayOutcome(id, "refused", error.message if error else "the gateway left it alone")


def _gone_outcome(id: str) -> ReplayOutcome:
    return ReplayOutcome(id, "gone", "the gateway no longer has it")


def _group_by_mailbox(letters: Sequence[ReplayLetter]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for letter in letters:
        found.setdefault(letter.mailbox, []).append(letter.event_id)
    return found


def _split_batches(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]
