"""`gatepost inbox` lists or leases the mail of an agent; `gatepost purge` empties its mailbox."""

import time
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, mailbox_path
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions, YesOption
from gatepost.cli.problems import ExitCode, usage_problem
from gatepost.cli.watched_view import WatchOption, show_watched
from gatepost.durations import format_duration
from gatepost.events import check_agent_id
from gatepost.wire.gateway_views import AgentInfo, MailboxCounts
from gatepost.wire.operations import (
    Count,
    Dequeue,
    LeasedMessage,
    Messages,
    Peek,
    Summaries,
    Summary,
)

_COLUMNS = ("Message", "From", "Age", "Retries", "State", "Size")


class ShownEvent(Struct):
    """The printed part of an event: its subject, and the blob that holds its payload."""

    payload_ref: str | None = None
    size: int = 0
    subject: str | None = None


def show_inbox(
    agent: AgentName,
    /,
    *,
    take: Flag = False,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 20,
    wait: Annotated[float, Parameter(validator=Number(gte=0, lte=60))] = 0.0,
    watch: WatchOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List an agent's waiting mail, or take it.

    Listing changes nothing. Taking leases the messages: end each turn with
    `gatepost ack` or `gatepost nack` before the lease expires, or the message is
    delivered again.

    For example:

      gatepost inbox bob
      gatepost inbox bob --take --limit 5 --wait 30
      gatepost inbox bob --watch

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
        raise usage_problem("--wait works only with --take")
    if watch and take:
        raise usage_problem("--watch lists mail: it works only without --take")
    name = check_agent_id(agent)
    if watch:
        show_watched(options, {"messages"}, lambda found: _peek_mail(found, name, limit, options))
    with options.find_gateway() as gateway:
        if take:
            _take_mail(gateway, Dequeue(mailbox=name, limit=limit, wait_secs=wait), options)
        else:
            _peek_mail(gateway, name, limit, options)


def _peek_mail(gateway: CliGateway, agent: str, limit: int, options: GatewayOptions) -> None:
    found = gateway.perform(Peek(mailbox=agent, limit=limit), Summaries).messages
    if found or options.json:
        output.print_result(options, {"messages": found}, lambda: _print_summaries(found))
    else:
        output.print_line(f"{agent} has no mail{_unknown_agent_note(gateway, agent)}")
    if len(found) == limit:
        output.print_hint("There may be more: raise --limit.")


def _unknown_agent_note(gateway: CliGateway, agent: str) -> str:
    """A note for unknown agents, so that a mistyped name does not look like an empty mailbox."""
    if gateway.agent is not None:
        return ""
    agents = {known.id for known in gateway.get("/v1/agents", list[AgentInfo])}
    boxes = {box.name for box in gateway.get("/v1/mailboxes", list[MailboxCounts])}
    return "" if agent in agents | boxes else "; no such agent, see `gatepost agent list`"


def _print_summaries(found: list[Summary]) -> None:
    output.print_messages(
        _COLUMNS,
        [
            (
                m.msg_id,
                m.from_,
                output.format_age(m.created_at * 1000),
                m.attempt,
                _state_text(m),
                m.size,
            )
            for m in found
        ],
        [m.subject for m in found],
    )


def _state_text(summary: Summary) -> str:
    if summary.not_before is None:
        return summary.state
    left = int(summary.not_before - time.time())
    when = f"{'again in' if summary.attempt else 'in'} {format_duration(left)}"
    return f"{summary.state}, {when if left > 0 else 'due'}"


def _take_mail(gateway: CliGateway, wanted: Dequeue, options: GatewayOptions) -> None:
    found = gateway.perform(wanted, Messages, wait=wanted.wait_secs).messages
    output.print_result(
        options, {"messages": found}, lambda: _print_messages(gateway, wanted.mailbox, found)
    )


def _print_messages(gateway: CliGateway, agent: str, found: list[LeasedMessage]) -> None:
    if not found:
        output.print_line(f"{agent} has no mail to take{_unknown_agent_note(gateway, agent)}")
        return
    for message in found:
        _print_message(message)
    output.print_hint(
        f"Settle the messages of a sender in this order, each within {found[0].lease_secs:g} s:"
        f" gatepost ack {agent} {found[0].receipt}"
    )


def _print_message(message: LeasedMessage) -> None:
    output.print_line(
        f"{message.msg_id} from {message.from_}, {output.format_ago(message.created_at * 1000)},"
        f" {f'retry {message.attempt}' if message.attempt else 'first delivery'}",
        "bold",
    )
    output.print_line(f"lease handle {message.receipt}")
    event = _decode_event(message)
    if event.subject:
        output.print_line(f"subject: {event.subject}")
    output.print_line(_attachment_text(event) or output.payload_text(message.payload))
    output.print_line("")


def _decode_event(message: LeasedMessage) -> ShownEvent:
    if isinstance(message.event, UnsetType):
        return ShownEvent()
    return msgspec.json.decode(message.event, type=ShownEvent)


def _attachment_text(event: ShownEvent) -> str:
    if event.payload_ref is None:
        return ""
    return f"{output.format_size(event.size)}, see `gatepost fetch {event.payload_ref}`"


def purge_mailbox(
    agent: AgentName, /, *, yes: YesOption = False, options: GatewayOptions = DEFAULT_OPTIONS
) -> int:
    """Turn an agent's waiting mail into dead letters.

    Messages in flight are not touched.

    For example:

      gatepost purge bob

    Parameters
    ----------
    agent
        The agent whose mail is meant.
    """
    path = mailbox_path(agent)
    if not output.confirm_action(
        f"Turn all waiting mail of {agent} into dead letters?", yes, options
    ):
        return ExitCode.FAILED
    with options.find_gateway() as gateway:
        count = gateway.delete(path, Count).count
    output.print_result(options, {"count": count}, lambda: _print_purged(agent, count))
    return ExitCode.OK


def _print_purged(agent: str, count: int) -> None:
    output.print_line(f"{output.format_count(count, 'message')} of {agent} became dead letters")
