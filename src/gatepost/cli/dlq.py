"""`gatepost dlq`: lists, shows, replays and discards dead letters."""

import time
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.connect import Gateway, mailbox, segment
from gatepost.cli.options import OPTIONS, AgentName, Flag, Options, Yes
from gatepost.cli.problems import Exit, Problem, usage
from gatepost.cli.progress import Progress
from gatepost.wire import Count, DeadLetter, DeadLetters, EnqueueAck, Enqueued, MailboxCounts

Sender = Annotated[str | None, Parameter(help="Only dead letters from this agent.")]
ReasonContains = Annotated[
    str | None, Parameter(help="Only dead letters whose reason contains this text.")
]
All = Annotated[Flag, Parameter(name="--all", help="All dead letters of the agent.")]

_COLUMNS = ("Message", "From", "Failed", "Attempts", "Reason", "Replayed as")
_BATCH = 1000


class Wanted(Struct, omit_defaults=True):
    msg_ids: list[str] | None = None
    sender: str | None = None
    reason_contains: str | None = None


class Replay(Wanted):
    limit: int = 0


def list_(
    agent: AgentName,
    /,
    *,
    sender: Sender = None,
    reason_contains: ReasonContains = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 100,
    after: str | None = None,
    options: Options = OPTIONS,
) -> None:
    """List an agent's dead letters, oldest first.

    Parameters
    ----------
    agent
        The agent whose dead letters are meant.
    limit
        Maximum number of dead letters.
    after
        Start after this message id.
    """
    with options.gateway() as gateway:
        found = gateway.get(
            f"{mailbox(agent)}/dead-letters",
            DeadLetters,
            limit=limit,
            after=after,
            sender=sender,
            reason_contains=reason_contains,
        ).messages
    output.show(options, {"messages": found}, lambda: _list(agent, found))
    if len(found) == limit:
        output.hint(f"There may be more: --after {found[-1].msg_id}")


def _list(agent: str, found: list[DeadLetter]) -> None:
    if not found:
        output.say(f"{agent} has no matching dead letters")
        return
    rows = [
        (d.msg_id, d.from_, _ago(d.failed_at), d.attempts, d.reason, d.replayed_as or "")
        for d in found
    ]
    replayed = any(letter.replayed_as for letter in found)
    columns = len(_COLUMNS) if replayed else len(_COLUMNS) - 1
    output.table(_COLUMNS[:columns], [row[:columns] for row in rows])


def _ago(at: int) -> str:
    return f"{output.age(at)} ago"


def show(agent: AgentName, msg_id: str, /, *, options: Options = OPTIONS) -> None:
    """Show one dead letter with its payload.

    Parameters
    ----------
    agent
        The agent whose dead letter is meant.
    msg_id
        The id of the dead letter.
    """
    with options.gateway() as gateway:
        path = f"{mailbox(agent)}/dead-letters/{segment(msg_id)}"
        letter = gateway.get(path, DeadLetter)
    output.show(options, letter, lambda: _show(letter))


def _show(letter: DeadLetter) -> None:
    output.say(f"{letter.msg_id} from {letter.from_} to {letter.to}", "bold")
    output.say(f"sent      {_ago(letter.created_at)}")
    output.say(f"failed    {_ago(letter.failed_at)}, {_attempts(letter)}")
    output.say(f"reason    {letter.reason}")
    if letter.replayed_as:
        output.say(f"replayed  as {letter.replayed_as}")
    output.say("")
    output.say(output.payload_text(letter.payload))


def _attempts(letter: DeadLetter) -> str:
    times = {0: "never", 1: "once"}.get(letter.attempts, f"{letter.attempts} times")
    return f"delivered {times}"


def replay(
    agent: AgentName,
    /,
    *msg_ids: str,
    sender: Sender = None,
    reason_contains: ReasonContains = None,
    all_: All = False,
    rate: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    limit: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    options: Options = OPTIONS,
) -> int:
    """Send dead letters again as new messages.

    Parameters
    ----------
    agent
        The agent whose dead letters are meant.
    msg_ids
        Ids of dead letters; or choose by the options below.
    rate
        Maximum number per second. Ctrl-C stops the replay but does not undo it.
    limit
        Maximum number of dead letters.
    """
    wanted = _wanted(msg_ids, sender, reason_contains, all_)
    with options.gateway() as gateway:
        total = _most(gateway, agent, wanted, limit)
        acks: list[EnqueueAck] = []
        with Progress("replaying", total, options, unit="messages") as progress:
            for batch in _replayed(gateway, agent, wanted, total, rate):
                acks += batch
                progress.advance(len(batch))
    return _report(agent, acks, options)


def _most(gateway: Gateway, agent: str, wanted: Wanted, limit: int | None) -> int:
    """Never more than there are now, so that a letter that dies again is not replayed again."""
    boxes = gateway.get("/v1/mailboxes", list[MailboxCounts])
    dead = sum(box.dead_letters for box in boxes if box.name == agent)
    named = len(wanted.msg_ids) if wanted.msg_ids else dead
    return min(dead, named, dead if limit is None else limit)


def _replayed(
    gateway: Gateway, agent: str, wanted: Wanted, total: int, rate: float | None
) -> Iterator[list[EnqueueAck]]:
    """Replay batch by batch. The command keeps the rate, so that Ctrl-C stops the replay."""
    done, batch = 0, _BATCH if rate is None else max(1, int(rate / 5))
    while done < total:
        began, size = time.monotonic(), min(batch, total - done)
        body = Replay(wanted.msg_ids, wanted.sender, wanted.reason_contains, size)
        acks = gateway.post(f"{mailbox(agent)}/dead-letters/replay", body, Enqueued).results
        yield acks
        done += len(acks)
        if len(acks) < size or any(ack.error for ack in acks):
            return
        if rate is not None and done < total:
            time.sleep(max(0.0, began + size / rate - time.monotonic()))


def _report(agent: str, acks: list[EnqueueAck], options: Options) -> int:
    replayed = [ack.msg_id for ack in acks if ack.error is None]
    refused = [ack.error for ack in acks if ack.error is not None]
    document = {"count": len(replayed), "replayed_as": replayed}
    done = f"{output.plural(len(replayed), 'dead letter')} of {agent} replayed"
    output.show(options, document, lambda: output.say(done))
    if refused:
        raise Problem(refused[0].code, f"stopped: {refused[0].message}")
    if not replayed:
        raise Problem(
            "unknown_message",
            f"{agent} has no matching dead letter that was not replayed before;"
            f" see `gatepost dlq list {agent}`",
        )
    return Exit.OK


def discard(
    agent: AgentName,
    /,
    *msg_ids: str,
    sender: Sender = None,
    reason_contains: ReasonContains = None,
    all_: All = False,
    yes: Yes = False,
    options: Options = OPTIONS,
) -> int:
    """Discard dead letters.

    Parameters
    ----------
    agent
        The agent whose dead letters are meant.
    msg_ids
        Ids of dead letters; or choose by the options below.
    """
    wanted = _wanted(msg_ids, sender, reason_contains, all_)
    path = f"{mailbox(agent)}/dead-letters/discard"
    if not output.confirm(f"Discard {_named(wanted)} of {agent} for good?", yes, options):
        return Exit.FAILED
    with options.gateway() as gateway:
        count = gateway.post(path, wanted, Count).count
    done = f"{output.plural(count, 'dead letter')} of {agent} discarded"
    output.show(options, {"count": count}, lambda: output.say(done))
    return Exit.OK


def _wanted(
    msg_ids: tuple[str, ...], sender: str | None, reason_contains: str | None, every: bool
) -> Wanted:
    chosen = bool(msg_ids or sender or reason_contains)
    if chosen == every:
        raise usage("choose dead letters by id, --sender or --reason-contains, or all with --all")
    return Wanted(list(msg_ids) or None, sender, reason_contains)


def _named(wanted: Wanted) -> str:
    if wanted.msg_ids:
        return output.plural(len(wanted.msg_ids), "dead letter")
    if wanted.sender or wanted.reason_contains:
        return "the matching dead letters"
    return "all dead letters"
