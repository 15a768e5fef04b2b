"""`gatepost inbox` lists or leases the mail of an agent; `gatepost purge` empties its mailbox."""

import time
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct, UnsetType

from gatepost.cli import output
from gatepost.cli.connect import Gateway, mailbox
from gatepost.cli.options import OPTIONS, AgentName, Flag, Options, Yes
from gatepost.cli.problems import Exit, usage
from gatepost.wire import (
    AgentInfo,
    Count,
    LeasedMessage,
    MailboxCounts,
    Messages,
    Summaries,
    Summary,
)

_COLUMNS = ("Message", "From", "Age", "Attempt", "State", "Size")


class Taken(Struct):
    limit: int
    wait_secs: float


class Attachment(Struct):
    """The fields of an event that describe a payload stored as a blob."""

    payload_ref: str | None = None
    size: int = 0


def inbox(
    agent: AgentName,
    /,
    *,
    take: Flag = False,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 20,
    wait: Annotated[float, Parameter(validator=Number(gte=0, lte=60))] = 0.0,
    options: Options = OPTIONS,
) -> None:
    """List an agent's waiting mail, or take it.

    Parameters
    ----------
    agent
        The agent whose mail is meant.
    take
        Lease the messages and print them with their lease handles.
    limit
        Maximum number of messages.
    wait
        With --take: seconds to wait if there is no mail.
    """
    if wait and not take:
        raise usage("--wait works only with --take")
    with options.gateway() as gateway:
        if take:
            _take(gateway, agent, Taken(limit, wait), options)
        else:
            _peek(gateway, agent, limit, options)


def _peek(gateway: Gateway, agent: str, limit: int, options: Options) -> None:
    found = gateway.get(mailbox(agent), Summaries, limit=limit).messages
    if found or options.json:
        output.show(options, {"messages": found}, lambda: _list(found))
    else:
        output.say(f"{agent} has no mail{_unknown(gateway, agent)}")
    if len(found) == limit:
        output.hint("There may be more: raise --limit.")


def _unknown(gateway: Gateway, agent: str) -> str:
    """A note for unknown agents, so that a mistyped name does not look like an empty mailbox."""
    agents = {known.id for known in gateway.get("/v1/agents", list[AgentInfo])}
    boxes = {box.name for box in gateway.get("/v1/mailboxes", list[MailboxCounts])}
    return "" if agent in agents | boxes else "; no such agent, see `gatepost agent list`"


def _list(found: list[Summary]) -> None:
    output.table(
        _COLUMNS,
        [
            (m.msg_id, m.from_, output.age(m.created_at), m.attempt, _state(m), m.size)
            for m in found
        ],
    )


def _state(summary: Summary) -> str:
    if summary.not_before is None:
        return summary.state
    left = int(summary.not_before - time.time())
    return f"{summary.state}, again in {output.duration(left)}" if left > 0 else "nacked, due"


def _take(gateway: Gateway, agent: str, wanted: Taken, options: Options) -> None:
    path = f"{mailbox(agent)}/dequeue"
    found = gateway.post(path, wanted, Messages, wait=wanted.wait_secs).messages
    output.show(options, {"messages": found}, lambda: _print(gateway, agent, found))


def _print(gateway: Gateway, agent: str, found: list[LeasedMessage]) -> None:
    if not found:
        output.say(f"{agent} has no mail to take{_unknown(gateway, agent)}")
        return
    for message in found:
        _print_one(message)
    output.hint(
        f"Settle the messages in this order, each within {found[0].lease_secs:g} s:"
        f" gatepost ack {agent} {found[0].receipt}"
    )


def _print_one(message: LeasedMessage) -> None:
    output.say(
        f"{message.msg_id} from {message.from_}, {output.age(message.created_at)} ago,"
        f" attempt {message.attempt}",
        "bold",
    )
    output.say(f"lease handle {message.receipt}")
    output.say(_attached(message) or output.payload_text(message.payload))
    output.say("")


def _attached(message: LeasedMessage) -> str:
    if isinstance(message.event, UnsetType):
        return ""
    event = msgspec.json.decode(message.event, type=Attachment)
    if event.payload_ref is None:
        return ""
    return f"{output.size(event.size)}, see `gatepost fetch {event.payload_ref}`"


def purge(agent: AgentName, /, *, yes: Yes = False, options: Options = OPTIONS) -> int:
    """Turn an agent's waiting mail into dead letters.

    Parameters
    ----------
    agent
        The agent whose mail is meant.
    """
    path = mailbox(agent)
    if not output.confirm(f"Turn all waiting mail of {agent} into dead letters?", yes, options):
        return Exit.FAILED
    with options.gateway() as gateway:
        count = gateway.delete(path, Count).count
    output.show(options, {"count": count}, lambda: _purged(agent, count))
    return Exit.OK


def _purged(agent: str, count: int) -> None:
    output.say(f"{output.plural(count, 'message')} of {agent} became dead letters")
