"""`gatepost status` and `gatepost audit`: the state of the gateway, and its audit log."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct, UnsetType

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.message_outcome import describe_sent
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.cli.problems import ExitCode
from gatepost.cli.watched_view import WatchOption, show_watched
from gatepost.ledger import Ledger
from gatepost.wire.gateway_views import AuditEntry, MailboxCounts, PeerStatus, Status
from gatepost.wire.operations import Await, Awaited, Sent
from gatepost.wire.overview_views import NodeLedger, RoomLedger, Topic
from gatepost.wire.view_texts import describe_unknown, describe_waiting


class StatusOverview(Struct):
    url: str
    gateway: Status
    mailboxes: list[MailboxCounts]
    ledger: Ledger
    nodes: list[NodeLedger]


def show_status(
    message: str | None = None,
    /,
    *,
    watch: WatchOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Show the state of the gateway and of its mailboxes, or of one message.

    Exits with 1 if the gateway runs but does not accept messages.

    For example:

      gatepost status
      gatepost status --json | jq .gateway.waiting
      gatepost status ID
      gatepost status --watch

    Parameters
    ----------
    message
        The id of a message that was sent from this gateway. `gatepost trace` shows its steps.
    """
    if watch:
        topics: set[Topic] = {"messages", "ledger", "nodes"}
        show_watched(options, topics, lambda gateway: _show(gateway, message, options))
    with options.find_gateway() as gateway:
        return _show(gateway, message, options)


def _show(gateway: CliGateway, message: str | None, options: GatewayOptions) -> int:
    if message is not None:
        sent = gateway.perform(Await(event_id=message, wait_secs=0), Awaited).result
        output.print_result(options, sent, lambda: _print_message(sent))
        return ExitCode.OK
    if gateway.agent is not None:
        return _show_to_agent(gateway, gateway.agent, options)
    room = gateway.get("/v1/ledger", RoomLedger)
    glance = StatusOverview(
        gateway.target.url,
        gateway.status(),
        gateway.get("/v1/mailboxes", list[MailboxCounts]),
        room.ledger,
        room.nodes,
    )
    output.print_result(options, glance, lambda: _print_status(glance))
    return ExitCode.OK if glance.gateway.accepting else ExitCode.FAILED


def _show_to_agent(gateway: CliGateway, agent: str, options: GatewayOptions) -> int:
    """Show an external agent only whether the gateway accepts messages."""
    found = gateway.status()
    text = "accepting messages" if found.accepting else f"NOT accepting messages: {found.problem}"

    def show() -> None:
        output.print_line(f"node {found.node_id} at {gateway.target.url}, as {agent}", "bold")
        output.print_line(text, "green" if found.accepting else "red")

    output.print_result(options, {"agent": agent, "gateway": found}, show)
    return ExitCode.OK if found.accepting else ExitCode.FAILED


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
        what = "after it was given up" if sent.state == "dead_letter" else "amended its end"
        facts["verdict"] += f", {output.format_ago(sent.verdict_at)}: {what}"
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
    output.print_problems(now.mesh_problems)
    if now.accepting:
        output.print_line("accepting messages", "green")
    else:
        output.print_line(f"NOT accepting messages: {now.problem}", "red")
    if now.health != "online":
        reasons = "; ".join(now.health_problems) or "it recovers"
        output.print_line(f"degraded: {reasons}", "yellow")
    output.print_line(
        f"version {now.version}, pid {now.pid}, journal {output.format_size(now.journal_bytes)}"
    )
    output.print_line(str(glance.ledger))
    for each in glance.nodes:
        if each.problem:
            output.print_line(describe_unknown(each, output.now_ms()), "yellow")
    output.print_line(
        f"{output.format_count(now.agents, 'agent')}; in mailboxes: {now.waiting} pending,"
        f" {now.in_flight} in flight,"
        f" {output.format_count(now.dead_letters, 'dead letter')}"
    )
    if now.runs_as_root:
        advice = "give it a user of its own, see docs/operations.md"
        output.print_line(f"the gateway runs as root: {advice}", "yellow")
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
            ("Mailbox", "Pending", "In flight", "Dead letters"),
            [(m.name, m.waiting, m.in_flight, m.dead_letters) for m in glance.mailboxes],
        )


def _print_peers(peers: list[PeerStatus]) -> None:
    rows = [(p.id or "none", p.state, describe_waiting(p, output.now_ms()), p.why) for p in peers]
    output.print_table(("Gateway", "State", "Waiting for it", "Because"), rows)


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
