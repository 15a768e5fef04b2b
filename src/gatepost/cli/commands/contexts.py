"""`gatepost context`: names gateways, so that commands can talk to them by name."""

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, CliTarget
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.settings import report_unusable_settings
from gatepost.config import is_loopback
from gatepost.connect.gateway_contexts import (
    GatewayContext,
    GatewayContexts,
    check_context_name,
    require_private,
)
from gatepost.files import write_file_atomically
from gatepost.tls import PIN_DIGITS

_MAX_TOKEN_BYTES = 16 * 1024
_STDIN = Path("-")


class ContextView(Struct, omit_defaults=True):
    name: str
    url: str
    token_file: str
    tls_pin: str | None = None
    current: bool = False


def add_context(
    name: str,
    url: str,
    /,
    *,
    token_file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    pin: str | None = None,
    use: Flag = False,
    force: Flag = False,
    unchecked: Flag = False,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Name a gateway, and the file of its token.

    Commands talk to it with --context NAME, with GATEPOST_CONTEXT=NAME, or after
    `gatepost context use NAME`. The file holds the operator's token, or an external
    agent's invite, which becomes the agent's session. It must belong to its owner
    alone (chmod 600). The gateway is asked once, to prove that it all works.

    For example:

      gatepost context add vps https://vps.example:7433 --token-file ~/vps.token
      gatepost context add ci https://vps.example:7433 --token-file - <invite.txt

    Parameters
    ----------
    name
        The name of the context.
    url
        The gateway's address.
    token_file
        File that holds the token, the invite or the session; - reads it from standard input and
        keeps it in a file that only you can read.
    pin
        The pin of the gateway's key, as `gatepost init --public` prints it. Invites carry it.
    use
        Make it the current context.
    force
        Replace a context of this name.
    unchecked
        Do not ask the gateway.
    """
    contexts = GatewayContexts(os.environ)
    with report_unusable_settings():
        check_context_name(name)
        if name in contexts.load_all() and not force:
            raise CommandProblem(
                "conflict", f"there is a context {name!r} already: replace it with --force"
            )
    _check_address(url)
    _check_pin(pin)
    is_piped = token_file == _STDIN
    file = _keep_token(contexts, name) if is_piped else token_file.expanduser().absolute()
    context = GatewayContext(url.rstrip("/"), file, pin)
    require_private(file)
    try:
        identity = "" if unchecked else _ask_identity(context)
    except CommandProblem as problem:
        if not is_piped:
            raise
        text = f"{problem.message}. What came from standard input is kept in {file}"
        raise CommandProblem(problem.code, text, problem.exit) from None
    with report_unusable_settings():
        replaced = contexts.load_all().get(name)
        contexts.add(name, context)
        if use:
            contexts.use(name)
    if replaced is not None and replaced.token_file != file:
        _forget_token(contexts, replaced)
    view = _view(name, context, contexts.current())
    output.print_result(options, view, lambda: output.print_line(_added_text(view, identity)))
    if url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        output.print_hint("the token travels unencrypted: use https:// unless the network encrypts")
    return ExitCode.OK


def list_contexts(*, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """List the contexts; the current one has a star.

    For example:

      gatepost context list
    """
    contexts = GatewayContexts(os.environ)
    with report_unusable_settings():
        current = contexts.current()
        found = [_view(name, each, current) for name, each in sorted(contexts.load_all().items())]
    output.print_result(options, found, lambda: _print_contexts(found))


def use_context(
    name: str | None = None, /, *, none: Flag = False, options: OutputOptions = DEFAULT_OUTPUT
) -> int:
    """Let commands talk to the gateway of a context, unless they name another.

    Programs with gatepost.client do not follow it; they follow GATEPOST_CONTEXT.

    For example:

      gatepost context use vps
      gatepost context use --none

    Parameters
    ----------
    name
        The name of the context.
    none
        Talk to the gateway on this machine again.
    """
    if (name is None) != none:
        raise usage_problem("name a context, or go back to this machine with --none")
    with report_unusable_settings():
        GatewayContexts(os.environ).use(name)
    text = "commands talk to the gateway on this machine" if none else f"commands talk to {name}"
    output.print_result(options, {"current": name}, lambda: output.print_line(text))
    return ExitCode.OK


def remove_context(name: str, /, *, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """Forget a context. A token file that you named is kept.

    The session of an external agent goes on at its gateway until it ends, or until
    `gatepost agent revoke` ends it there.

    For example:

      gatepost context remove vps

    Parameters
    ----------
    name
        The name of the context.
    """
    contexts = GatewayContexts(os.environ)
    with report_unusable_settings():
        removed = contexts.remove(name)
    _forget_token(contexts, removed)
    view = _view(name, removed, None)
    output.print_result(options, view, lambda: output.print_line(f"{name} removed"))


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_bare = not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        is_address = is_bare = False
    if not (is_address and is_bare):
        raise usage_problem(f"{url!r} is not an address; write it as https://HOST:PORT")


def _check_pin(pin: str | None) -> None:
    if pin is not None and not re.fullmatch(rf"[0-9a-f]{{{PIN_DIGITS}}}", pin):
        raise usage_problem(f"a pin has {PIN_DIGITS} hex digits, as `gatepost init` prints it")


def _keep_token(contexts: GatewayContexts, name: str) -> Path:
    """Store the token from standard input in a new file that only its owner can read."""
    token = sys.stdin.buffer.read(_MAX_TOKEN_BYTES + 1)
    if not token.strip() or len(token) > _MAX_TOKEN_BYTES:
        raise usage_problem("standard input holds no token")
    file = contexts.create_token_folder() / f"{name}-{secrets.token_hex(4)}.token"
    write_file_atomically(file, token)
    return file


def _forget_token(contexts: GatewayContexts, context: GatewayContext) -> None:
    """Remove a token that came from standard input; other files belong to the user."""
    if context.token_file.parent == contexts.token_folder:
        context.token_file.unlink(missing_ok=True)
        lock = context.token_file.with_name(f".{context.token_file.name}.lock")
        lock.unlink(missing_ok=True)


def _ask_identity(context: GatewayContext) -> str:
    """The identity that the gateway gives to the holder of the token."""
    target = CliTarget(context.url, context.token_file, context=context)
    with CliGateway(target) as gateway:
        try:
            node = f" at node {gateway.status().node_id}"
        except CommandProblem as problem:
            if problem.code != "insufficient_scope":
                raise
            node = ""
        return f"{gateway.agent or 'operator'}{node}"


def _view(name: str, context: GatewayContext, current: str | None) -> ContextView:
    file = str(context.token_file)
    return ContextView(name, context.url, file, context.tls_pin, name == current)


def _added_text(view: ContextView, identity: str) -> str:
    known = f", as {identity}" if identity else ", unchecked"
    advice = (
        "" if view.current else f"; make it the current one with `gatepost context use {view.name}`"
    )
    return f"{view.name} is {view.url}{known}{advice}"


def _print_contexts(found: list[ContextView]) -> None:
    if not found:
        output.print_line("no contexts yet: run `gatepost context add NAME URL --token-file FILE`")
        return
    rows = [("*" if c.current else "", c.name, c.url, c.token_file) for c in found]
    output.print_table(("", "Context", "Gateway", "Token file"), rows)
