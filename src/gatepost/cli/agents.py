"""`gatepost agent`: who can be sent mail."""

from gatepost.cli import output
from gatepost.cli.connect import Gateway
from gatepost.cli.options import OPTIONS, AgentName, Options, Yes
from gatepost.cli.problems import Exit
from gatepost.events import check_agent_id
from gatepost.wire import Agent, Count, MailboxCounts


def add(*names: str, options: Options = OPTIONS) -> None:
    """Register agents, so that mail can be sent to them.

    Parameters
    ----------
    names
        What they are called.
    """
    with options.gateway() as gateway:
        added = [gateway.put(_path(name), Agent) for name in names]
    said = ", ".join(agent.id for agent in added)
    output.show(options, added, lambda: output.say(f"mail can be sent to {said}"))


def list_(*, options: Options = OPTIONS) -> None:
    """List the agents of the gateway."""
    with options.gateway() as gateway:
        agents = gateway.get("/v1/agents", list[Agent])
    output.show(options, agents, lambda: _list(agents))


def _list(agents: list[Agent]) -> None:
    if not agents:
        output.say("no agents yet: start one, or run `gatepost agent add NAME`")
        return
    output.table(
        ("Agent", "Type", "Registered", "Seen"),
        [(a.id, a.type, _ago(a.created_at), _ago(a.seen_at)) for a in agents],
    )


def _ago(millis: int) -> str:
    return f"{output.age(millis / 1000)} ago"


def remove(name: AgentName, /, *, yes: Yes = False, options: Options = OPTIONS) -> int:
    """Remove an agent; its waiting mail becomes dead letters.

    Parameters
    ----------
    name
        Which agent.
    """
    path = _path(name)
    with options.gateway() as gateway:
        waiting = _waiting(gateway, name)
        mail = f" {output.plural(waiting, 'waiting message')} will become dead letters."
        question = f"Remove agent {name}?{mail if waiting else ''}"
        if not output.confirm(question, yes or not waiting, options):
            return Exit.FAILED
        count = gateway.delete(path, Count).count
    said = f"{name} removed; {output.plural(count, 'message')} became dead letters"
    output.show(options, {"count": count}, lambda: output.say(said))
    return Exit.OK


def _waiting(gateway: Gateway, name: str) -> int:
    boxes = gateway.get("/v1/mailboxes", list[MailboxCounts])
    return sum(box.waiting for box in boxes if box.name == name)


def _path(name: str) -> str:
    return f"/v1/agents/{check_agent_id(name)}"
