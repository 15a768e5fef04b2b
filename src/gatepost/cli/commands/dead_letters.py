"""`gatepost dlq`: lists, shows, replays and discards dead letters."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, mailbox_path
from gatepost.cli.letters import (
    LetterBox,
    PageLimit,
    check_replayed,
    discard_letters,
    print_letter,
    print_page,
    require_choice,
)
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions, YesOption
from gatepost.cli.problems import usage_problem
from gatepost.cli.progress_bar import ProgressBar
from gatepost.wire.gateway_views import MailboxCounts
from gatepost.wire.operations import DeadLetter, DeadLetters, EnqueueAck, Enqueued

SenderOption = Annotated[str | None, Parameter(help="Only dead letters from this agent.")]
ReasonContainsOption = Annotated[
    str | None, Parameter(help="Only dead letters whose reason contains this text.")
]
AllOption = Annotated[Flag, Parameter(name="--all", help="All dead letters of the agent.")]

_COLUMNS = ("Message", "Agent", "From", "Failed", "Attempts", "Reason", "Replayed as")
_MAX_BATCH = 1000


class CliDeadLetterFilter(Struct, omit_defaults=True):
    msg_ids: list[str] | None = None
    sender: str | None = None
    reason_contains: str | None = None


class CliDeadLetterReplay(CliDeadLetterFilter):
    limit: int = 0


def list_dead_letters(
    agent: AgentName | None = None,
    /,
    *,
    sender: SenderOption = None,
    reason_contains: ReasonContainsOption = None,
    limit: PageLimit = 100,
    after: str | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List dead letters, oldest first: those of an agent, or of all agents.

    For example:

      gatepost dlq list
      gatepost dlq list bob
      gatepost dlq list bob --reason-contains database

    Parameters
    ----------
    agent
        The agent whose dead letters are meant; without one, all agents.
    limit
        Maximum number of dead letters.
    after
        Start after this message id of the agent.
    """
    if agent is None and after is not None:
        raise usage_problem("--after goes on with the dead letters of one agent: name it")
    with options.find_gateway() as gateway:
        agents = _agents_with_dead_letters(gateway) if agent is None else [agent]
        wanted = {"after": after, "sender": sender, "reason_contains": reason_contains}
        found = _find_dead_letters(gateway, agents, limit, wanted)
    print_page(
        options,
        found,
        limit,
        lambda letter: letter.msg_id,
        _print_dead_letters,
        f"{agent or 'this gateway'} has no matching dead letters",
    )


def _find_dead_letters(
    gateway: CliGateway, agents: Sequence[str], limit: int, wanted: Mapping[str, str | None]
) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    for agent in agents:
        if (left := limit - len(found)) > 0:
            path = _dead_letter_box(agent).path
            found += gateway.get(path, DeadLetters, 0.0, limit=left, **wanted).messages
    return found


def _agents_with_dead_letters(gateway: CliGateway) -> list[str]:
    boxes = gateway.get("/v1/mailboxes", list[MailboxCounts])
    return [box.name for box in boxes if box.dead_letters]


def _dead_letter_box(agent: str) -> LetterBox:
    return LetterBox(f"{mailbox_path(agent)}/dead-letters", "dead letter", agent)


def _print_dead_letters(found: Sequence[DeadLetter]) -> None:
    rows = [
        (
            d.msg_id,
            d.to,
            d.from_,
            output.format_ago(d.failed_at * 1000),
            d.attempts,
            d.reason,
            d.replayed_as or "",
        )
        for d in found
    ]
    replayed = any(letter.replayed_as for letter in found)
    columns = len(_COLUMNS) if replayed else len(_COLUMNS) - 1
    subjects = [letter.subject for letter in found]
    output.print_messages(_COLUMNS[:columns], [row[:columns] for row in rows], subjects)


def show_dead_letter(
    agent: AgentName, msg_id: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS
) -> None:
    """Show one dead letter with its payload.

    For example:

      gatepost dlq show bob ID

    Parameters
    ----------
    agent
        The agent whose dead letter is meant.
    msg_id
        The id of the dead letter.
    """
    with options.find_gateway() as gateway:
        letter = gateway.get(_dead_letter_box(agent).letter_path(msg_id), DeadLetter)
    output.print_result(options, letter, lambda: _print_dead_letter(letter))


def _print_dead_letter(letter: DeadLetter) -> None:
    facts = {
        "subject": letter.subject or "",
        "sent": output.format_ago(letter.created_at * 1000),
        "failed": f"{output.format_ago(letter.failed_at * 1000)}, {_attempts_text(letter)}",
        "reason": letter.reason,
        "replayed": f"as {letter.replayed_as}" if letter.replayed_as else "",
    }
    title = f"{letter.msg_id} from {letter.from_} to {letter.to}"
    print_letter(title, facts, output.payload_text(letter.payload))


def _attempts_text(letter: DeadLetter) -> str:
    times = {0: "never", 1: "once"}.get(letter.attempts, f"{letter.attempts} times")
    return f"delivered {times}"


def replay_dead_letters(
    agent: AgentName,
    /,
    *msg_ids: str,
    sender: SenderOption = None,
    reason_contains: ReasonContainsOption = None,
    all_: AllOption = False,
    rate: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    limit: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Send dead letters again as new messages.

    A replayed dead letter stays, with the id of its new message, and is not
    replayed again.

    For example:

      gatepost dlq replay bob ID
      gatepost dlq replay bob --sender alice --limit 10
      gatepost dlq replay bob --all --rate 5

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
    wanted = _build_filter(msg_ids, sender, reason_contains, all_)
    with options.find_gateway() as gateway:
        total = _replay_count(gateway, agent, wanted, limit)
        acks: list[EnqueueAck] = []
        with ProgressBar("replaying", total, options, unit="messages") as progress:
            for batch in _replay_batches(gateway, agent, wanted, total, rate):
                acks += batch
                progress.advance(len(batch))
    return _report_replayed(agent, acks, options)


def _replay_count(
    gateway: CliGateway, agent: str, wanted: CliDeadLetterFilter, limit: int | None
) -> int:
    """Never more than there are now, so that a letter that dies again is not replayed again."""
    boxes = gateway.get("/v1/mailboxes", list[MailboxCounts])
    dead = sum(box.dead_letters for box in boxes if box.name == agent)
    named = len(wanted.msg_ids) if wanted.msg_ids else dead
    return min(dead, named, dead if limit is None else limit)


def _replay_batches(
    gateway: CliGateway, agent: str, wanted: CliDeadLetterFilter, total: int, rate: float | None
) -> Iterator[list[EnqueueAck]]:
    """Replay batch by batch. The command keeps the rate, so that Ctrl-C stops the replay."""
    done, batch = 0, _MAX_BATCH if rate is None else max(1, int(rate / 5))
    while done < total:
        began, size = time.monotonic(), min(batch, total - done)
        body = CliDeadLetterReplay(wanted.msg_ids, wanted.sender, wanted.reason_contains, size)
        acks = gateway.post(f"{_dead_letter_box(agent).path}/replay", body, Enqueued).results
        yield acks
        done += len(acks)
        if len(acks) < size or any(ack.error for ack in acks):
            return
        if rate is not None and done < total:
            time.sleep(max(0.0, began + size / rate - time.monotonic()))


def _report_replayed(agent: str, acks: list[EnqueueAck], options: GatewayOptions) -> int:
    replayed = [ack.msg_id for ack in acks if ack.error is None]
    refused = [ack.error for ack in acks if ack.error is not None]
    document = {"count": len(replayed), "replayed_as": replayed}
    done = f"{_dead_letter_box(agent).count_text(len(replayed))} replayed"
    lines = [*(f"replayed as {id}" for id in replayed), done]
    output.print_result(options, document, lambda: output.print_line("\n".join(lines)))
    none_text = (
        f"{agent} has no matching dead letter that was not replayed before;"
        f" see `gatepost dlq list {agent}`"
    )
    return check_replayed(len(replayed), refused, "stopped", none_text)


def discard_dead_letters(
    agent: AgentName,
    /,
    *msg_ids: str,
    sender: SenderOption = None,
    reason_contains: ReasonContainsOption = None,
    all_: AllOption = False,
    yes: YesOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Discard dead letters and their payloads.

    For example:

      gatepost dlq discard bob ID
      gatepost dlq discard bob --all --yes

    Parameters
    ----------
    agent
        The agent whose dead letters are meant.
    msg_ids
        Ids of dead letters; or choose by the options below.
    """
    wanted = _build_filter(msg_ids, sender, reason_contains, all_)
    box = _dead_letter_box(agent)
    choice = box.choice_text(msg_ids, every=all_)
    return discard_letters(box, wanted, choice, yes, options)


def _build_filter(
    msg_ids: tuple[str, ...], sender: str | None, reason_contains: str | None, every: bool
) -> CliDeadLetterFilter:
    chosen = bool(msg_ids or sender or reason_contains)
    require_choice(chosen, every, "dead letters by id, --sender or --reason-contains")
    return CliDeadLetterFilter(list(msg_ids) or None, sender, reason_contains)
