"""A token file with the session of an external agent.

The file starts as an invite, as `gatepost agent invite` prints it. The first use exchanges the
invite; from then on the file holds the session, which is refreshed before it expires. A refresh
token works only once, so one process at a time refreshes. Each refresh has a random number, which
is saved first: if the answer is lost, the client can repeat the request with it.
"""

import secrets
import ssl
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gatepost.clock import Clock, SystemClock
from gatepost.connect.connect_errors import TRUST_ADVICE, explain_connect_error
from gatepost.connect.gateway_endpoint import Target, read_token
from gatepost.errors import GatepostError, Unauthorized, Unavailable
from gatepost.files import hold_file_lock, write_file_atomically
from gatepost.tls import PIN_DIGITS, pinned_context
from gatepost.wire.agent_tokens import (
    AGENT_INVITE_PREFIX,
    AgentExchangeRequest,
    AgentRefreshRequest,
    AgentTokens,
)

if TYPE_CHECKING:
    from gatepost.connect.http_calls import HttpCalls

_LOCK_SECS = 60.0
# Refresh early enough that work started with the token can finish.
_RENEW_MARGIN_MS = 120_000
_INVITE_ID_DIGITS = 16


class StoredAgentSession(AgentTokens, frozen=True, rename="camel"):
    """A session in its file.

    `attempt` is the number of a refresh without an answer yet. `tls_pin` is the pin of the
    gateway's key, from the invite.
    """

    attempt: str | None = None
    tls_pin: str | None = None


def holds_session(file: Path) -> bool:
    """Whether the file holds an agent's session or its invite, and not a plain token."""
    try:
        start = file.read_bytes()[:8].lstrip()
    except OSError:
        # `read_token` reports the reason.
        return False
    return start.startswith((b"{", AGENT_INVITE_PREFIX.encode()))


def open_token_file(
    file: Path, url: str, tls: ssl.SSLContext | None, advice: str, clock: Clock | None = None
) -> Target:
    """The gateway with the token to use now: the file's own, or that of the session in it."""
    if holds_session(file):
        return AgentSessionFile(file, url, tls, clock).current_target()
    return Target(url, read_token(file, advice), tls)


def _read_pin(invite: str) -> str | None:
    """The pin of the gateway's TLS key, which follows the invite's id if there is one."""
    pin = invite.split(".")[1][_INVITE_ID_DIGITS:]
    return pin if len(pin) == PIN_DIGITS else None


class AgentSessionFile:
    """The session in a file, at the gateway with this address."""

    def __init__(
        self, file: Path, url: str, tls: ssl.SSLContext | None, clock: Clock | None = None
    ) -> None:
        self._file = file
        self._url = url
        self._tls = tls
        self._clock = clock or SystemClock()

    def current_target(self) -> Target:
        """The gateway with the access token to use now. May block, to ask for a new token."""
        with self._hold_lock():
            held = self._read_session()
            if isinstance(held, str) or not self._is_fresh(held):
                held = self._exchange(held) if isinstance(held, str) else self._refresh(held)
                write_file_atomically(self._file, msgspec.json.encode(held))
        token = held.access_token
        tls = self._choose_tls(held.tls_pin)
        return Target(self._url, token, tls, partial(self._expire, token), held.agent_id)

    def _expire(self, token: str) -> None:
        """Refresh at the next use: the gateway's clock says that this token has expired."""
        with self._hold_lock():
            held = self._read_session()
            if not isinstance(held, str) and held.access_token == token:
                expired = msgspec.structs.replace(held, access_expires_at=0)
                write_file_atomically(self._file, msgspec.json.encode(expired))

    def _hold_lock(self) -> AbstractContextManager[None]:
        busy = Unavailable(f"another process is using {self._file}")
        lock = self._file.with_name(f".{self._file.name}.lock")
        return hold_file_lock(lock, _LOCK_SECS, busy)

    def _choose_tls(self, pin: str | None) -> ssl.SSLContext | None:
        return self._tls if self._tls is not None or pin is None else pinned_context(pin)

    def _is_fresh(self, held: StoredAgentSession) -> bool:
        return held.access_expires_at - self._clock.now() > _RENEW_MARGIN_MS

    def _read_session(self) -> StoredAgentSession | str:
        content = self._file.read_bytes().strip()
        if not content.startswith(b"{"):
            return read_token(self._file, "invite the agent again")
        try:
            return msgspec.json.decode(content, type=StoredAgentSession)
        except msgspec.MsgspecError:
            raise Unauthorized(f"{self._file} holds no session: invite the agent again") from None

    def _exchange(self, invite: str) -> StoredAgentSession:
        pin = _read_pin(invite)
        return self._request_tokens("exchange", AgentExchangeRequest(invite), pin)

    def _refresh(self, held: StoredAgentSession) -> StoredAgentSession:
        if held.attempt is None:
            held = msgspec.structs.replace(held, attempt=secrets.token_urlsafe(24))
            write_file_atomically(self._file, msgspec.json.encode(held))
        request = AgentRefreshRequest(held.refresh_token, held.attempt)
        return self._request_tokens("refresh", request, held.tls_pin)

    def _request_tokens(self, action: str, body: object, pin: str | None) -> StoredAgentSession:
        from gatepost.connect.http_calls import HttpCalls

        with HttpCalls(self._url, verify=self._choose_tls(pin) or True) as calls:
            tokens = self._call(calls, action, body)
        return StoredAgentSession(**msgspec.structs.asdict(tokens), tls_pin=pin)

    def _call(self, calls: "HttpCalls", action: str, body: object) -> AgentTokens:
        from gatepost.connect.http_calls import NotGatewayAnswer, httpx

        try:
            return calls.call("POST", f"/ansible/agent/auth/{action}", AgentTokens, body=body)
        except httpx.RequestError as error:
            explained = explain_connect_error(self._url, error, TRUST_ADVICE)
            # Only the class name: the text may quote the request.
            raise Unavailable(
                explained or f"{self._url} does not answer ({type(error).__name__})"
            ) from None
        except NotGatewayAnswer as answer:
            raise Unavailable(
                f"the answer to the session request is not a gateway's: HTTP {answer.status}"
            ) from None
        except GatepostError as error:
            if isinstance(error, Unavailable):
                raise
            raise type(error)(
                f"the session in {self._file} was not renewed: {error.message}."
                " Invite the agent again with `gatepost agent invite`"
            ) from None
