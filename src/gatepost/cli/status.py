"""`gatepost status` and `gatepost audit`: the state of the gateway, and its audit log."""

from datetime import datetime
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import OPTIONS, Options
from gatepost.cli.problems import Exit
from gatepost.wire import AuditEntry, MailboxCounts, Status


class Glance(Struct):
    url: str
    gateway: Status
    mailboxes: list[MailboxCounts]


def status(*, options: Options = OPTIONS) -> int:
    """Show the state of the gateway and of its mailboxes."""
    with options.gateway() as gateway:
        glance = Glance(
            gateway.target.url,
            gateway.get("/v1/status", Status),
            gateway.get("/v1/mailboxes", list[MailboxCounts]),
        )
    output.show(options, glance, lambda: _print(glance))
    return Exit.OK if glance.gateway.accepting else Exit.FAILED


def _print(glance: Glance) -> None:
    now = glance.gateway
    output.say(f"node {now.node_id} at {glance.url}", "bold")
    if now.accepting:
        output.say("accepting messages", "green")
    else:
        output.say(f"NOT accepting messages: {now.problem}", "red")
    output.say(f"version {now.version}, pid {now.pid}, journal {output.size(now.journal_bytes)}")
    output.say(
        f"{output.plural(now.agents, 'agent')}, {now.waiting} waiting, {now.in_flight} in flight,"
        f" {output.plural(now.dead_letters, 'dead letter')}"
    )
    if now.undelivered or now.reviews_open:
        given_up = f"{now.undelivered} undelivered"
        output.say(f"{given_up}, {output.plural(now.reviews_open, 'open review')}")
    if now.incidents:
        counts = ", ".join(f"{count} {name}" for name, count in now.incidents.items())
        output.say(f"incidents: {counts}; see `gatepost incidents`", "yellow")
    if glance.mailboxes:
        output.say("")
        output.table(
            ("Mailbox", "Waiting", "In flight", "Dead letters"),
            [(m.name, m.waiting, m.in_flight, m.dead_letters) for m in glance.mailboxes],
        )


def audit(
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 20,
    options: Options = OPTIONS,
) -> None:
    """List manual actions, newest first.

    Parameters
    ----------
    limit
        Maximum number of entries.
    """
    with options.gateway() as gateway:
        entries = gateway.get("/v1/audit", list[AuditEntry], limit=limit)
    output.show(options, entries, lambda: _list(entries))


def _list(entries: list[AuditEntry]) -> None:
    if not entries:
        output.say("no manual actions yet")
        return
    output.table(
        ("When", "Actor", "Action", "Subject", "Detail"),
        [(_when(e.at), e.actor, e.action, e.subject, e.detail) for e in entries],
    )


def _when(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000).strftime("%Y-%m-%d %H:%M:%S")
