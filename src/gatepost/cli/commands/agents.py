"""`gatepost agent`: adds, lists, claims, invites and removes agents."""

import time
from urllib.parse import urlencode

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions, YesOption
from gatepost.cli.problems import ExitCode
from gatepost.events import Order, check_agent_id
from gatepost.gateway.api.room_views import (
    AgentInviteResult,
    AgentInviteView,
    AgentSessionView,
    EndedSessions,
    ExternalAgentList,
    RoomAgentView,
)
from gatepost.wire import AgentInfo, AgentRole, Count, MailboxCounts

_DEFAULT_SCOPES = ("ansible.message.read", "ansible.message.send", "ansible.status.read")


def add_agents(
    *names: str,
    standby: Flag = False,
    role: AgentRole | None = None,
    order: Order | None = None,
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

    Parameters
    ----------
    names
        The agents' names.
    standby
        The agents live behind another gateway; this one takes their mail while that one is away.
    role
        Their role, which the room shows. For an agent that is there already, it is changed.
    order
        none: their mailboxes are work queues, whose mail several workers share. fifo: the mail of
        each sender is handled in order. Mail that is there already stays as it is.
    """
    wanted = {"standby": "true" if standby else None, "role": role, "order": order}
    query = urlencode({name: value for name, value in wanted.items() if value})
    more = f"?{query}" if query else ""
    with options.find_gateway() as gateway:
        added = [gateway.put(_agent_path(name) + more, AgentInfo) for name in names]
    ids = ", ".join(agent.id for agent in added)
    effect = "this gateway stands by for" if standby else "mail can be sent to"
    output.print_result(options, added, lambda: output.print_line(f"{effect} {ids}"))
    for agent in added:
        _hint_problem(agent)


def _hint_problem(agent: AgentInfo) -> None:
    if agent.problem:
        output.print_hint(f"{agent.id}: {agent.problem}")


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


def give_agent(name: AgentName, node: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Give an agent of this gateway to another gateway.

    The agent moves with its waiting mail, although it may be served here. The mail
    waits until the agent is registered there: it connects, or `gatepost agent add`.

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
        "the agent exchanges it once for a session: POST /ansible/agent/auth/exchange"
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
    text = f"{name} removed; {output.format_count(count, 'message')} became dead letters"
    output.print_result(options, {"count": count}, lambda: output.print_line(text))
    return ExitCode.OK


def _waiting_count(gateway: CliGateway, name: str) -> int:
    boxes = gateway.get("/v1/mailboxes", list[MailboxCounts])
    return sum(box.waiting for box in boxes if box.name == name)


def _agent_path(name: str) -> str:
    return f"/v1/agents/{check_agent_id(name)}"
