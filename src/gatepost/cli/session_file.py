"""A token file with an agent session, for jobs that run repeatedly.

The file starts as an invite, as `gatepost agent invite` prints it. The first run exchanges the
invite; from then on the file holds the session, which is refreshed before it expires. A refresh
token works only once, so one process at a time refreshes, and the request is never repeated.
"""

from pathlib import Path

import httpx
import msgspec

from gatepost.access.auth_messages import AgentExchangeRequest, AgentRefreshRequest, AgentTokens
from gatepost.access.tokens import TokenKind
from gatepost.cli.gateway_api import CliTarget, read_token
from gatepost.cli.problems import CommandProblem, unreachable_problem
from gatepost.clock import Clock, SystemClock
from gatepost.files import hold_file_lock, write_file_atomically
from gatepost.wire import Failure

_ANSWER_SECS = 30.0
_LOCK_SECS = 60.0
# Refresh early enough that a job started with the token can finish.
_RENEW_MARGIN_MS = 120_000


def current_token(target: CliTarget, clock: Clock | None = None) -> str:
    """The token to use now: the file's own, or the access token of the session in it."""
    file, now = target.token_file, (clock or SystemClock()).now()
    if not _holds_session(file):
        return read_token(file)
    busy = CommandProblem("unavailable", f"another process is using {file}")
    with hold_file_lock(file.with_name(f".{file.name}.lock"), _LOCK_SECS, busy):
        held = _read_session(file)
        if isinstance(held, AgentTokens) and held.access_expires_at - now > _RENEW_MARGIN_MS:
            return held.access_token
        tokens = _request_tokens(target, held)
        write_file_atomically(file, msgspec.json.encode(tokens))
        return tokens.access_token


def _holds_session(file: Path) -> bool:
    try:
        start = file.read_bytes()[:8].lstrip()
    except OSError:
        # `read_token` reports why the file cannot be read.
        return False
    return start.startswith((b"{", f"{TokenKind.AGENT_INVITE}.".encode()))


def _read_session(file: Path) -> AgentTokens | str:
    content = file.read_bytes().strip()
    if not content.startswith(b"{"):
        return read_token(file)
    try:
        return msgspec.json.decode(content, type=AgentTokens)
    except msgspec.MsgspecError:
        raise CommandProblem(
            "unauthorized", f"{file} holds no session: invite the agent again"
        ) from None


def _request_tokens(target: CliTarget, held: AgentTokens | str) -> AgentTokens:
    if isinstance(held, str):
        path, body = "exchange", msgspec.json.encode(AgentExchangeRequest(held))
    else:
        path, body = "refresh", msgspec.json.encode(AgentRefreshRequest(held.refresh_token))
    with httpx.Client(
        verify=target.tls_verification(), trust_env=False, timeout=_ANSWER_SECS
    ) as http:
        try:
            answer = http.post(f"{target.url}/ansible/agent/auth/{path}", content=body)
        except httpx.RequestError as error:
            # Only the class name: the text may quote the request.
            raise unreachable_problem(
                f"{target.url} does not answer ({type(error).__name__})"
            ) from None
    return _decode_tokens(answer, target.token_file)


def _decode_tokens(answer: httpx.Response, file: Path) -> AgentTokens:
    try:
        if answer.is_success:
            return msgspec.json.decode(answer.content, type=AgentTokens)
        failure = msgspec.json.decode(answer.content, type=Failure)
    except msgspec.MsgspecError:
        raise unreachable_problem(
            f"the answer to the session request is not a gateway's: HTTP {answer.status_code}"
        ) from None
    raise CommandProblem(
        failure.code,
        f"the session in {file} was not renewed: {failure.message}."
        " Invite the agent again with `gatepost agent invite`",
    )
