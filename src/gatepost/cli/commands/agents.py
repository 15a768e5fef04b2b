"""`gatepost agent`: adds, lists, claims, invites and removes agents."""

import os
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, choose_context_name
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions, YesOption
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.errors import UnknownAgent
from gatepost.events import Order, check_agent_id
from gatepost.wire.gateway_views import AgentInfo, MailboxCounts
from gatepost.wire.operations import AgentRole, Count, Done
from gatepost.wire.room_views import (
    AgentInviteResult,
    AgentInviteView,
    AgentSessionView,
    EndedSessions,
    ExternalAgentList,
    RoomAgentView,
)

_DEFAULT_SCOPES = ("ansible.message.read", "ansible.message.send", "ansible.status.read")


def add_agents(
    *names: str,
    standby: Flag = False,
    role: AgentRole | None = None,
    order: Order | None = None,
    a2a: Annotated[str | None, Parameter(name="--a2a")] = None,
    a2a_token_file: Annotated[str | None, Parameter(name="--a2a-token-file")] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Register agents, so that mail can be sent to them.

    A running agent registers itself when it connects; use this for agents that have
    never connected.

    For example:

      gatepost agent add bob alice
      gatepost agent add bob --standby
      gatepost agent add bob --role maintenance
      gatepost agent add worker --order none
      gatepost agent add planner --a2a https://planner.example --a2a-token-file planner.token

    Parameters
    ----------
    names
        The agents' names.
    standby
        The agents live behind another gateway; this one takes their mail while that one is away.
    role
        Their role, which the room shows. It replaces the role of a known agent.
    order
        none: their mailboxes are work queues, whose mail several workers share. fifo: the mail of
        each sender is handled in order. Waiting mail is not changed.
    a2a
        The address of an agent of A2A elsewhere, without the path of its card. The gateway carries
        the mail of NAME there, and brings back the answers.
    a2a_token_file
        The file with the token for that agent, on the gateway's machine. It is read before each
        call.
    """
    if a2a is not None and len(names) != 1:
        raise usage_problem("--a2a is the address of one agent: name one")
    if a2a is None and a2a_token_file is not None:
        raise usage_problem("--a2a-token-file goes with --a2a")
    wanted = {"standby": "true" if standby else None, "role": role, "order": order}
    query = urlencode({name: value for name, value in wanted.items() if value})
    more = f"?{query}" if query else ""
    with options.find_gateway() as gateway:
        added = [gateway.put(_agent_path(name) + more, AgentInfo) for name in names]
        if a2a is not None:
            token_file = str(Path(a2a_token_file).absolute()) if a2a_token_file else ""
            address = {"url": a2a, "token_file": token_file}
            gateway.put(_outside_path(names[0]), Any, address)
    ids = ", ".join(agent.id for agent in added)
    effect = "this gateway stands by for" if standby else "mail can be sent to"
    output.print_result(options, added, lambda: output.print_line(f"{effect} {ids}"))
    for agent in added:
        _hint_problem(agent)


def _hint_problem(agent: AgentInfo) -> None:
    if agent.problem:
        output.print_hint(f"{agent.id}: {agent.problem}")


def run_agent(
    name: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    concurrency: Annotated[int, Parameter(validator=Number(gte=1, lte=256))] = 4,
    time_limit: Annotated[float, Parameter(validator=Number(gt=0, lte=86_400))] = 300.0,
    order: Order | None = None,
    text: Flag = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Run a command for each message to an agent, and reply with its output.

    The command reads the payload on standard input. If it exits with 0, its
    output is the reply: JSON if it is JSON, else text; without output there is
    none. If it fails, the turn fails, with the last line on standard error as its
    reason, and is tried again later. These variables tell it about the message:
    GATEPOST_MESSAGE_ID, GATEPOST_SENDER, GATEPOST_CORRELATION_ID, GATEPOST_KIND,
    GATEPOST_ATTEMPT and GATEPOST_PAYLOAD, which is text, json or bytes. SIGTERM or
    Ctrl-C lets running commands end.

    For example:

      gatepost agent run upper -- tr a-z A-Z
      gatepost agent run reviewer --concurrency 2 --time-limit 600 -- ./review.sh
      gatepost agent run ci-bot --context vps -- ./handler.sh

    Parameters
    ----------
    name
        The agent's name.
    command
        The program and its arguments, after --.
    concurrency
        Messages at a time. Those of one sender are handled in order.
    time_limit
        Seconds until a command is ended and its turn fails.
    order
        none: the mailbox is a work queue, whose messages of one sender are handled together.
    text
        Reply with text even if the output is JSON.
    """
    from gatepost.cli.handler_command import (
        GRACE_SECS,
        HandlerCommand,
        check_program,
        handler_environment,
    )
    from gatepost.client import Agent

    if not command:
        raise usage_problem("name the command after --: gatepost agent run NAME -- COMMAND")
    if (problem := check_program(command[0])) is not None:
        raise usage_problem(problem)
    context = choose_context_name(options, os.environ)
    where: dict[str, Any] = {
        "state_dir": options.state_dir,
        "url": options.url,
        "token_file": options.token_file,
        "context": context,
    }
    handler = HandlerCommand(
        command,
        handler_environment(os.environ, **where),
        time_limit=time_limit,
        concurrency=concurrency,
        as_text=text,
    )
    agent = Agent(
        check_agent_id(name),
        **where,
        concurrency=concurrency,
        stop_timeout=time_limit + 2 * GRACE_SECS,
        order=order,
    )
    agent.on_message(handler.handle_message)
    agent.run()
    return ExitCode.OK


def claim_agent(
    name: AgentName,
    /,
    *,
    override: Flag = False,
    node: str | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Move an agent of the room to this gateway.

    The gateway it lives behind is asked to give it; waiting mail is forwarded. That
    gateway refuses if the agent is being served there, or if its settings do not name
    this one (ownership.takers). If that gateway is revoked, or silent for
    ownership.dead_after_secs, a backbone node can override it.

    For example:

      gatepost agent claim bob
      gatepost agent claim bob --override
      gatepost agent claim bob --override --node lab-1

    Parameters
    ----------
    name
        The agent.
    override
        Do not ask the gateway the agent lives behind, because it is gone. Only backbone nodes can.
    node
        With --override: the node that gets the agent. Default: this one.
    """
    body = {"override": override, "node": node}
    with options.find_gateway() as gateway:
        path = f"/v1/room/agents/{check_agent_id(name)}/claim"
        claimed = gateway.post(path, body, RoomAgentView)
    text = f"{name} lives behind {claimed.owner}"
    if claimed.asked:
        text += ", which was asked for it and has not answered yet"
    output.print_result(options, claimed, lambda: output.print_line(text))


def alias_agent(
    name: AgentName | None = None,
    alias: AgentName | None = None,
    /,
    *,
    remove: AgentName | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Give an agent another name for senders, list these names, or remove one.

    Messages and tasks that are sent at this gateway to an alias go to its agent. An
    alias is not an identity: no agent registers, sends or takes mail under it.

    For example:

      gatepost agent alias code-reviewer reviewer
      gatepost agent alias
      gatepost agent alias --remove reviewer

    Parameters
    ----------
    name
        The agent. Without it, all aliases are listed.
    alias
        Its other name.
    remove
        The alias to remove.
    """
    if (name is None) != (alias is None) or (name is not None and remove is not None):
        raise usage_problem("give an agent and an alias, or --remove and an alias, or nothing")
    with options.find_gateway() as gateway:
        if name is not None and alias is not None:
            gateway.put(f"{_agent_path(name)}/aliases/{check_agent_id(alias)}", dict[str, str])
        if remove is not None:
            gateway.delete(f"/v1/aliases/{check_agent_id(remove)}", Done)
        found = gateway.get("/v1/aliases", dict[str, str])
    output.print_result(options, found, lambda: _print_aliases(found))


def _print_aliases(found: dict[str, str]) -> None:
    if not found:
        output.print_line("no agent has an alias")
        return
    output.print_table(("Alias", "Agent"), sorted(found.items()))


def give_agent(name: AgentName, node: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Give an agent of this gateway to another gateway.

    The agent moves with its waiting mail, even if it is served here. The mail waits until the agent
    is registered there: it connects, or `gatepost agent add`.

    For example:

      gatepost agent give bob lab-1

    Parameters
    ----------
    name
        The agent.
    node
        The node that gets it.
    """
    with options.find_gateway() as gateway:
        path = f"/v1/room/agents/{check_agent_id(name)}/give"
        given = gateway.post(path, {"node": node}, RoomAgentView)
    text = f"{name} lives behind {given.owner}; run `gatepost agent add {name}` there if it is new"
    output.print_result(options, given, lambda: output.print_line(text))


def list_agents(
    *, external: Flag = False, room: Flag = False, options: GatewayOptions = DEFAULT_OPTIONS
) -> None:
    """List the gateway's agents.

    For example:

      gatepost agent list
      gatepost agent list --room
      gatepost agent list --external

    Parameters
    ----------
    external
        List the invites and sessions of external agents instead.
    room
        List every agent of the room instead, with the gateway it lives behind.
    """
    if external:
        _list_external_agents(options)
        return
    if room:
        _list_room_agents(options)
        return
    with options.find_gateway() as gateway:
        agents = gateway.get("/v1/agents", list[AgentInfo])
    output.print_result(options, agents, lambda: _print_agents(agents))


def _print_agents(agents: list[AgentInfo]) -> None:
    if not agents:
        output.print_line("no agents yet: start one, or run `gatepost agent add NAME`")
        return
    output.print_table(
        ("Agent", "Type", "Role", "Lives", "Registered", "Seen"),
        [
            (
                a.id,
                a.type,
                a.role or "",
                _home_text(a),
                output.format_ago(a.created_at),
                output.format_ago(a.seen_at),
            )
            for a in agents
        ],
    )
    for agent in agents:
        _hint_problem(agent)
        if agent.rivals:
            output.print_hint(f"{agent.id}: claimed in vain by {', '.join(agent.rivals)}")


def _home_text(agent: AgentInfo) -> str:
    where = agent.owner or "here"
    return f"{where}, standby here" if agent.standby else where


def _list_room_agents(options: GatewayOptions) -> None:
    with options.find_gateway() as gateway:
        agents = gateway.get("/v1/room/agents", list[RoomAgentView])
    rows = [(a.id, a.owner or "", " ".join(a.standbys), " ".join(a.rivals)) for a in agents]
    columns = ("Agent", "Lives behind", "Standbys", "Rivals")
    output.print_result(options, agents, lambda: output.print_table(columns, rows))


def _list_external_agents(options: GatewayOptions) -> None:
    with options.find_gateway() as gateway:
        access = gateway.get("/v1/external-agents", ExternalAgentList)
    output.print_result(options, access, lambda: _print_external_agents(access))


def _print_external_agents(access: ExternalAgentList) -> None:
    rows = [(i.agent_id, "invite", _access_state(i), " ".join(i.scopes)) for i in access.invites]
    rows += [(s.agent_id, "session", _access_state(s), " ".join(s.scopes)) for s in access.sessions]
    if rows:
        output.print_table(("Agent", "Access", "State", "Scopes"), rows)
    else:
        output.print_line("no external agents yet: run `gatepost agent invite NAME`")


def _access_state(access: AgentInviteView | AgentSessionView) -> str:
    if access.revoked_at is not None:
        return "revoked"
    if isinstance(access, AgentInviteView) and access.used_at is not None:
        return "used"
    return "expired" if (access.expires_at or 0) <= time.time() * 1000 else "open"


def invite_agent(
    name: str,
    /,
    *,
    scope: tuple[str, ...] = _DEFAULT_SCOPES,
    ttl: int = 86_400,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Invite an external agent, one that reaches this gateway over the network.

    Prints the invite, a secret that works once. Without --scope the agent may send
    messages, take its own mail, and see the gateway's status.

    For example:

      gatepost agent invite ci-bot
      gatepost agent invite ci-bot --scope ansible.message.send --ttl 600

    Parameters
    ----------
    name
        The agent's name. It can act under no other name.
    scope
        A permission; repeat the option for several.
    ttl
        Seconds until the invite expires.
    """
    body = {"agentId": check_agent_id(name), "scopes": scope, "ttlSecs": ttl}
    with options.find_gateway() as gateway:
        invited = gateway.post("/ansible/agent/invites", body, AgentInviteResult)
    output.print_result(options, invited, lambda: output.print_line(invited.invite_token))
    output.print_hint(
        "it works once: the agent's machine keeps it with"
        " `gatepost context add NAME URL --token-file -`"
    )


def revoke_agent(name: AgentName, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """End the sessions and open invites of an external agent.

    For example:

      gatepost agent revoke ci-bot

    Parameters
    ----------
    name
        The agent.
    """
    with options.find_gateway() as gateway:
        path = f"/v1/external-agents/{check_agent_id(name)}/revoke"
        ended = gateway.post(path, {}, EndedSessions)
    text = f"{output.format_count(ended.sessions, 'session')} of {ended.agent} ended"
    output.print_result(options, ended, lambda: output.print_line(text))


def remove_agent(
    name: AgentName, /, *, yes: YesOption = False, options: GatewayOptions = DEFAULT_OPTIONS
) -> int:
    """Remove an agent; its waiting mail becomes dead letters.

    For example:

      gatepost agent remove bob

    Parameters
    ----------
    name
        The agent.
    """
    path = _agent_path(name)
    with options.find_gateway() as gateway:
        waiting = _waiting_count(gateway, name)
        warning = f" {output.format_count(waiting, 'waiting message')} will become dead letters."
        question = f"Remove agent {name}?{warning if waiting else ''}"
        if not output.confirm_action(question, yes or not waiting, options):
            return ExitCode.FAILED
        count = gateway.delete(path, Count).count
        _forget_outside_address(gateway, name)
    text = f"{name} removed; {output.format_count(count, 'message')} became dead letters"
    output.print_result(options, {"count": count}, lambda: output.print_line(text))
    return ExitCode.OK


def _waiting_count(gateway: CliGateway, name: str) -> int:
    boxes = gateway.get("/v1/mailboxes", list[MailboxCounts])
    return sum(box.waiting for box in boxes if box.name == name)


def _forget_outside_address(gateway: CliGateway, name: str) -> None:
    """Carry no more mail to an agent of A2A elsewhere, if `name` was one."""
    try:
        gateway.delete(_outside_path(name), Done)
    except CommandProblem as problem:
        if problem.code != UnknownAgent.code:
            raise


def _outside_path(name: str) -> str:
    return f"/v1/a2a/agents/{check_agent_id(name)}"


def _agent_path(name: str) -> str:
    return f"/v1/agents/{check_agent_id(name)}"
