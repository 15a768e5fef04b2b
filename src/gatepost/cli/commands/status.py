"""`gatepost status` and `gatepost audit`: the state of the gateway, and its audit log."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import quote_segment
from gatepost.cli.message_outcome import describe_sent
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.cli.peer_texts import heard_text, reach_text, waiting_text
from gatepost.cli.problems import ExitCode
from gatepost.wire import AuditEntry, MailboxCounts, PeerStatus, Sent, Status


class StatusOverview(Struct):
    url: str
    gateway: Status
    mailboxes: list[MailboxCounts]


def show_status(message: str | None = None, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> int:
    """Show the state of the gateway and of its mailboxes, or of one message.

    Exits with 1 if the gateway runs but does not accept messages.

    For example:

      gatepost status
      gatepost status --json | jq .gateway.waiting
      gatepost status ID

    Parameters
    ----------
    message
        The id of a message that was sent from this gateway. `gatepost trace` shows its steps.
    """
    with options.find_gateway() as gateway:
        if message is not None:
            sent = gateway.get(f"/v1/messages/{quote_segment(message)}", Sent)
            output.print_result(options, sent, lambda: _print_message(sent))
            return ExitCode.OK
        glance = StatusOverview(
            gateway.target.url,
            gateway.get("/v1/status", Status),
            gateway.get("/v1/mailboxes", list[MailboxCounts]),
        )
    output.print_result(options, glance, lambda: _print_status(glance))
    return ExitCode.OK if glance.gateway.accepting else ExitCode.FAILED


def _print_message(sent: Sent) -> None:
    output.print_line(f"{sent.event_id} {describe_sent(sent)}", "bold")
    facts = {
        "sent": _moment_text(sent.sent_at),
        "to": sent.node or "",
        "accepted": _moment_text(sent.accepted_at),
        "ended": _moment_text(sent.processed_at),
        "reason": sent.reason or "",
        "verdict": sent.verdict or "",
    }
    if sent.verdict_at is not None:
        facts["verdict"] += f", {output.format_ago(sent.verdict_at)}: after it was given up"
    for label, text in facts.items():
        if text:
            output.print_line(f"{label:<10}{text}")
    if not isinstance(sent.reply, UnsetType):
        output.print_line("")
        output.print_line(output.payload_text(sent.reply))


def _moment_text(at: int | None) -> str:
    return "" if at is None else f"{output.format_time(at)}, {output.format_ago(at)}"


def _print_status(glance: StatusOverview) -> None:
    now = glance.gateway
    output.print_line(f"node {now.node_id} at {glance.url}", "bold")
    if now.accepting:
        output.print_line("accepting messages", "green")
    else:
        output.print_line(f"NOT accepting messages: {now.problem}", "red")
    output.print_line(
        f"version {now.version}, pid {now.pid}, journal {output.format_size(now.journal_bytes)}"
    )
    output.print_line(
        f"{output.format_count(now.agents, 'agent')}, {now.waiting} waiting,"
        f" {now.in_flight} in flight,"
        f" {output.format_count(now.dead_letters, 'dead letter')}"
    )
    if now.undelivered or now.reviews_open:
        late = f" ({now.answered_late} answered after all)" if now.answered_late else ""
        given_up = f"{now.undelivered} undelivered{late}"
        output.print_line(f"{given_up}, {output.format_count(now.reviews_open, 'open review')}")
    if now.incidents:
        counts = ", ".join(f"{count} {name}" for name, count in now.incidents.items())
        output.print_line(f"incidents: {counts}; see `gatepost incidents`", "yellow")
    if now.peers:
        output.print_line("")
        _print_peers(now.peers)
    if glance.mailboxes:
        output.print_line("")
        output.print_table(
            ("Mailbox", "Waiting", "In flight", "Dead letters"),
            [(m.name, m.waiting, m.in_flight, m.dead_letters) for m in glance.mailboxes],
        )


def _print_peers(peers: list[PeerStatus]) -> None:
    rows = [
        (p.id or "none", reach_text(p), heard_text(p), waiting_text(p), p.why or p.problem)
        for p in peers
    ]
    output.print_table(("Gateway", "Reached", "Last heard", "Waiting for it", "Problem"), rows)


def list_audit_log(
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 20,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List manual actions (purge, replay, removal), newest first.

    For example:

      gatepost audit --limit 50

    Parameters
    ----------
    limit
        Maximum number of entries.
    """
    with options.find_gateway() as gateway:
        entries = gateway.get("/v1/audit", list[AuditEntry], limit=limit)
    output.print_result(options, entries, lambda: _print_audit_log(entries))


def _print_audit_log(entries: list[AuditEntry]) -> None:
    if not entries:
        output.print_line("no manual actions yet")
        return
    output.print_table(
        ("When", "Actor", "Action", "Subject", "Detail"),
        [(output.format_time(e.at), e.actor, e.action, e.subject, e.detail) for e in entries],
    )
