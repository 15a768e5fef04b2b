"""A token file with an agent session, for jobs that run repeatedly.

The file starts as an invite, as `gatepost agent invite` prints it. The first run exchanges the
invite; from then on the file holds the session, which is refreshed before it expires. A refresh
token works only once, so one process at a time refreshes, and the request is never repeated.
"""

from pathlib import Path

import msgspec

from gatepost.access.auth_messages import AgentExchangeRequest, AgentRefreshRequest, AgentTokens
from gatepost.access.tokens import TokenKind
from gatepost.cli.gateway_api import CliTarget
from gatepost.cli.problems import CommandProblem, unreachable_problem
from gatepost.clock import Clock, SystemClock
from gatepost.errors import GatepostError
from gatepost.files import hold_file_lock, write_file_atomically
from gatepost.http_calls import HttpCalls, NotGatewayAnswer, httpx

_LOCK_SECS = 60.0
# Refresh early enough that a job started with the token can finish.
_RENEW_MARGIN_MS = 120_000


def current_token(target: CliTarget, clock: Clock | None = None) -> str:
    """The token to use now: the file's own, or the access token of the session in it."""
    file, now = target.token_file, (clock or SystemClock()).now()
    if not _holds_session(file):
        return target.read_token()
    busy = CommandProblem("unavailable", f"another process is using {file}")
    with hold_file_lock(file.with_name(f".{file.name}.lock"), _LOCK_SECS, busy):
        held = _read_session(target)
        if isinstance(held, AgentTokens) and held.access_expires_at - now > _RENEW_MARGIN_MS:
            return held.access_token
        tokens = _request_tokens(target, held)
        write_file_atomically(file, msgspec.json.encode(tokens))
        return tokens.access_token


def _holds_session(file: Path) -> bool:
    try:
        start = file.read_bytes()[:8].lstrip()
    except OSError:
        # `CliTarget.read_token` reports why the file cannot be read.
        return False
    return start.startswith((b"{", f"{TokenKind.AGENT_INVITE}.".encode()))


def _read_session(target: CliTarget) -> AgentTokens | str:
    content = target.token_file.read_bytes().strip()
    if not content.startswith(b"{"):
        return target.read_token()
    try:
        return msgspec.json.decode(content, type=AgentTokens)
    except msgspec.MsgspecError:
        raise CommandProblem(
            "unauthorized", f"{target.token_file} holds no session: invite the agent again"
        ) from None


def _request_tokens(target: CliTarget, held: AgentTokens | str) -> AgentTokens:
    body: AgentExchangeRequest | AgentRefreshRequest
    if isinstance(held, str):
        path, body = "exchange", AgentExchangeRequest(held)
    else:
        path, body = "refresh", AgentRefreshRequest(held.refresh_token)
    try:
        with HttpCalls(target.url, verify=target.tls_verification()) as calls:
            return calls.call("POST", f"/ansible/agent/auth/{path}", AgentTokens, body=body)
    except httpx.RequestError as error:
        # Only the class name: the text may quote the request.
        raise unreachable_problem(
            f"{target.url} does not answer ({type(error).__name__})"
        ) from None
    except NotGatewayAnswer as answer:
        raise unreachable_problem(
            f"the answer to the session request is not a gateway's: HTTP {answer.status}"
        ) from None
    except GatepostError as error:
        raise CommandProblem(
            error.code,
            f"the session in {target.token_file} was not renewed: {error.message}."
            " Invite the agent again with `gatepost agent invite`",
        ) from None
