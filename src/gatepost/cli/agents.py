"""`gatepost agent`: adds, lists, claims, invites and removes agents."""

import time

from gatepost.cli import output
from gatepost.cli.connect import Gateway
from gatepost.cli.options import OPTIONS, AgentName, Flag, Options, Yes
from gatepost.cli.problems import Exit
from gatepost.events import check_agent_id
from gatepost.gateway.api.room_views import (
    AgentInviteResult,
    AgentInviteView,
    AgentSessionView,
    EndedSessions,
    ExternalAgentList,
    RoomAgentView,
)
from gatepost.wire import AgentInfo, Count, MailboxCounts

_SCOPES = ("ansible.message.read", "ansible.message.send", "ansible.status.read")


def add(*names: str, standby: Flag = False, options: Options = OPTIONS) -> None:
    """Register agents, so that mail can be sent to them.

    Parameters
    ----------
    names
        The agents' names.
    standby
        The agents live behind another gateway; this one takes their mail while that one is away.
    """
    more = "?standby=true" if standby else ""
    with options.gateway() as gateway:
        added = [gateway.put(_path(name) + more, AgentInfo) for name in names]
    ids = ", ".join(agent.id for agent in added)
    effect = "this gateway stands by for" if standby else "mail can be sent to"
    output.show(options, added, lambda: output.say(f"{effect} {ids}"))
    for agent in added:
        _say_problem(agent)


def _say_problem(agent: AgentInfo) -> None:
    if agent.problem:
        output.hint(f"{agent.id}: {agent.problem}")


def claim(
    name: AgentName,
    /,
    *,
    override: Flag = False,
    node: str | None = None,
    options: Options = OPTIONS,
) -> None:
    """Move an agent of the room to this gateway.

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
    with options.gateway() as gateway:
        path = f"/v1/room/agents/{check_agent_id(name)}/claim"
        claimed = gateway.post(path, body, RoomAgentView)
    text = f"{name} lives behind {claimed.owner}"
    if claimed.asked:
        text += ", which was asked to let it go"
    output.show(options, claimed, lambda: output.say(text))


def list_(*, external: Flag = False, room: Flag = False, options: Options = OPTIONS) -> None:
    """List the agents of the gateway.

    Parameters
    ----------
    external
        List the invites and sessions of external agents instead.
    room
        List every agent of the room instead, with the gateway it lives behind.
    """
    if external:
        _list_external(options)
        return
    if room:
        _list_room(options)
        return
    with options.gateway() as gateway:
        agents = gateway.get("/v1/agents", list[AgentInfo])
    output.show(options, agents, lambda: _list(agents))


def _list(agents: list[AgentInfo]) -> None:
    if not agents:
        output.say("no agents yet: start one, or run `gatepost agent add NAME`")
        return
    output.table(
        ("Agent", "Type", "Lives", "Registered", "Seen"),
        [(a.id, a.type, _lives(a), _ago(a.created_at), _ago(a.seen_at)) for a in agents],
    )
    for agent in agents:
        _say_problem(agent)
        if agent.rivals:
            output.hint(f"{agent.id}: claimed in vain by {', '.join(agent.rivals)}")


def _lives(agent: AgentInfo) -> str:
    where = agent.owner or "here"
    return f"{where}, standby here" if agent.standby else where


def _list_room(options: Options) -> None:
    with options.gateway() as gateway:
        agents = gateway.get("/v1/room/agents", list[RoomAgentView])
    rows = [(a.id, a.owner or "", " ".join(a.standbys), " ".join(a.rivals)) for a in agents]
    columns = ("Agent", "Lives behind", "Standbys", "Rivals")
    output.show(options, agents, lambda: output.table(columns, rows))


def _list_external(options: Options) -> None:
    with options.gateway() as gateway:
        access = gateway.get("/v1/external-agents", ExternalAgentList)
    output.show(options, access, lambda: _say_external(access))


def _say_external(access: ExternalAgentList) -> None:
    rows = [(i.agent_id, "invite", _state(i), " ".join(i.scopes)) for i in access.invites]
    rows += [(s.agent_id, "session", _state(s), " ".join(s.scopes)) for s in access.sessions]
    if rows:
        output.table(("Agent", "Access", "State", "Scopes"), rows)
    else:
        output.say("no external agents yet: run `gatepost agent invite NAME`")


def _state(access: AgentInviteView | AgentSessionView) -> str:
    if access.revoked_at is not None:
        return "revoked"
    if isinstance(access, AgentInviteView) and access.used_at is not None:
        return "used"
    return "expired" if (access.expires_at or 0) <= time.time() * 1000 else "open"


def invite(
    name: str,
    /,
    *,
    scope: tuple[str, ...] = _SCOPES,
    ttl: int = 86_400,
    options: Options = OPTIONS,
) -> None:
    """Invite an external agent.

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
    with options.gateway() as gateway:
        invited = gateway.post("/ansible/agent/invites", body, AgentInviteResult)
    output.show(options, invited, lambda: output.say(invited.invite_token))
    output.hint("the agent exchanges it once for a session: POST /ansible/agent/auth/exchange")


def revoke(name: AgentName, /, *, options: Options = OPTIONS) -> None:
    """End the sessions and open invites of an external agent.

    Parameters
    ----------
    name
        The agent.
    """
    with options.gateway() as gateway:
        path = f"/v1/external-agents/{check_agent_id(name)}/revoke"
        ended = gateway.post(path, {}, EndedSessions)
    text = f"{output.plural(ended.sessions, 'session')} of {ended.agent} ended"
    output.show(options, ended, lambda: output.say(text))


def _ago(millis: int) -> str:
    return f"{output.age(millis / 1000)} ago"


def remove(name: AgentName, /, *, yes: Yes = False, options: Options = OPTIONS) -> int:
    """Remove an agent; its waiting mail becomes dead letters.

    Parameters
    ----------
    name
        The agent.
    """
    path = _path(name)
    with options.gateway() as gateway:
        waiting = _waiting(gateway, name)
        warning = f" {output.plural(waiting, 'waiting message')} will become dead letters."
        question = f"Remove agent {name}?{warning if waiting else ''}"
        if not output.confirm(question, yes or not waiting, options):
            return Exit.FAILED
        count = gateway.delete(path, Count).count
    text = f"{name} removed; {output.plural(count, 'message')} became dead letters"
    output.show(options, {"count": count}, lambda: output.say(text))
    return Exit.OK


def _waiting(gateway: Gateway, name: str) -> int:
    boxes = gateway.get("/v1/mailboxes", list[MailboxCounts])
    return sum(box.waiting for box in boxes if box.name == name)


def _path(name: str) -> str:
    return f"/v1/agents/{check_agent_id(name)}"
