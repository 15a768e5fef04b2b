"""`gatepost mcp` and `gatepost mcp hook`, without the command line's library: see the package."""

import os
import sys

from gatepost.mcp.clients import hook

_OPTIONS = ("--agent", "--client", "--state-dir")
_FLAGS = ("--operator",)


def is_light(arguments: list[str]) -> bool:
    """Whether this module runs a command line itself; all others go to the full command line."""
    if arguments[:1] != ["mcp"] or arguments[1:2] in (["--help"], ["-h"]):
        return False
    return len(arguments) == 1 or arguments[1] == "hook" or arguments[1].startswith("--")


def run_light(arguments: list[str]) -> int:
    rest = arguments[1:]
    event = None
    if rest[:1] == ["hook"]:
        event = rest[1] if len(rest) > 1 else ""
        rest = rest[2:]
    try:
        given = _parse_options(rest)
        if event is not None and event not in hook.EVENTS:
            raise ValueError(f"{event or 'nothing'} is not one of {', '.join(hook.EVENTS)}")
    except ValueError as error:
        print(f"gatepost: {error}. Try `gatepost mcp --help`.", file=sys.stderr)
        # Not 2: a hook that ends so has something to tell.
        return 1 if event is not None else 2
    agent = given.get("--agent") or os.environ.get("GATEPOST_AGENT")
    if event is not None:
        return 0 if not agent else _run_hook(event, agent, given)
    return _run_bridge(agent, given)


def _run_hook(event: str, agent: str, given: dict[str, str]) -> int:
    try:
        client = given.get("--client", "claude-code")
        return hook.run_hook(event, agent, client, given.get("--state-dir"))
    except KeyboardInterrupt:
        return 0


def _run_bridge(agent: str | None, given: dict[str, str]) -> int:
    from gatepost.mcp.clients.stdio_bridge import StdioBridge

    greeting: dict[str, object] = {}
    if agent:
        greeting["agent"] = agent
    if "--operator" in given or not agent:
        greeting["operator"] = True
    try:
        StdioBridge(given.get("--state-dir"), greeting).run()
    except (KeyboardInterrupt, BrokenPipeError):
        return 0
    return 0


def _parse_options(arguments: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in _FLAGS and not equals:
            given[name] = ""
        elif name in _OPTIONS and (equals or rest):
            given[name] = value if equals else rest.pop(0)
        else:
            raise ValueError(f"{name} is not an option, or has no value")
    return given
