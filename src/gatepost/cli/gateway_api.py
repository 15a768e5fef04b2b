"""Finds the gateway a command talks to, and calls its HTTP API."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from gatepost.cli.options import GatewayOptions
from gatepost.cli.problems import (
    CommandProblem,
    lost_answer_problem,
    unreachable_problem,
    usage_problem,
)
from gatepost.cli.settings import report_unusable_settings
from gatepost.clock import Clock
from gatepost.config import default_settings_path, is_loopback, load_settings
from gatepost.connect.agent_session_file import open_token_file
from gatepost.connect.connect_errors import TRUST_ADVICE, explain_connect_error, is_untrusted
from gatepost.connect.event_stream import decode_events
from gatepost.connect.gateway_contexts import GatewayContext, GatewayContexts
from gatepost.connect.gateway_endpoint import (
    ENDPOINT_FILE_NAME,
    TOKEN_FILE_NAME,
    Target,
    read_endpoint,
)
from gatepost.connect.http_calls import HttpCalls, NotGatewayAnswer, httpx
from gatepost.errors import GatepostError, Unauthorized, Unavailable
from gatepost.events import check_agent_id
from gatepost.tls import local_context
from gatepost.wire.frame_types import Op
from gatepost.wire.gateway_views import Status, StoredBlob

T = TypeVar("T")

_ADDRESS_ADVICE = "write it as http://HOST:PORT"
_TOKEN_ADVICE = "name its file with --token-file"
_OPERATIONS, _BLOBS = "/v1/operations", "/v1/blobs"
_SESSION_CALLS = "/ansible/agent/invoke"
_SESSION_BLOBS = "/ansible/agent/blobs"
_SESSION_UPLOADS = "/ansible/agent/uploads"


class CliTarget(msgspec.Struct, frozen=True):
    """A gateway's address, and the file with its token or with an external agent's session."""

    url: str
    token_file: Path
    tls_cert: str | None = None
    context: GatewayContext | None = None

    def load_token(self, clock: Clock | None = None) -> Target:
        """The gateway with the token to use now. A session that ends soon is renewed.

        A local gateway is trusted by exactly its own certificate, one that gave an invite by the
        pin in that, and one of a context by the context's pin.
        """
        tls = None if self.tls_cert is None else local_context(self.tls_cert)
        try:
            if self.context is not None:
                return self.context.open_target(clock)
            return open_token_file(self.token_file, self.url, tls, _TOKEN_ADVICE, clock)
        except Unavailable as error:
            raise unreachable_problem(error.message) from None
        except GatepostError as error:
            raise CommandProblem(error.code, error.message) from None


class CliGateway:
    """One gateway's HTTP API. Every call has a deadline."""

    def __init__(self, target: CliTarget) -> None:
        self.target = target
        loaded = target.load_token()
        self._is_session = loaded.is_session
        # The agent of an external agent's session; None for the operator.
        self.agent = loaded.agent
        self._calls = HttpCalls(target.url, loaded.token, verify=loaded.tls or True)

    @classmethod
    def find(cls, options: GatewayOptions) -> Self:
        return cls(locate_gateway(options, os.environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.close()

    def get(self, path: str, answer: type[T], wait: float = 0.0, **params: object) -> T:
        given = {key: str(value) for key, value in params.items() if value is not None}
        return self._call("GET", path, answer, wait=wait, params=given)

    def post(self, path: str, body: object, answer: type[T], wait: float = 0.0) -> T:
        return self._call("POST", path, answer, body=body, wait=wait)

    def put(self, path: str, answer: type[T], body: object = None) -> T:
        return self._call("PUT", path, answer, body=body)

    def delete(self, path: str, answer: type[T]) -> T:
        return self._call("DELETE", path, answer)

    def perform(self, op: Op, answer: type[T], wait: float = 0.0) -> T:
        """Do an operation of an agent: as the operator, or as the agent of the session."""
        path = _SESSION_CALLS if self._is_session else _OPERATIONS
        return self._call("POST", path, answer, body=op, wait=wait)

    def status(self) -> Status:
        """The gateway's status; a session asks for it as an operation."""
        if self._is_session:
            return self.post(_SESSION_CALLS, {"op": "status"}, Status)
        return self.get("/v1/status", Status)

    def upload(self, pieces: Iterable[bytes], size: int | None) -> StoredBlob:
        """Store a large payload; without a `size` it is sent in chunks."""
        headers = {} if size is None else {"content-length": str(size)}
        path = _SESSION_UPLOADS if self._is_session else _BLOBS
        return self._call("POST", path, StoredBlob, content=pieces, headers=headers)

    @contextmanager
    def download(self, digest: str) -> Iterator[Iterator[bytes]]:
        """Stream a payload that is stored as a blob."""
        path = f"{_SESSION_BLOBS if self._is_session else _BLOBS}/{digest}"
        with self._report_errors(), self._calls.download(path) as pieces:
            yield pieces

    @contextmanager
    def listen(self, path: str, kind: type[T]) -> Iterator[Iterator[T]]:
        """The events of a stream, as they come. It ends if the gateway does."""
        with self._report_errors(), self._calls.download(path) as pieces:
            yield decode_events(pieces, kind)

    def _call(self, method: str, path: str, answer: type[T], **request: Any) -> T:
        with self._report_errors():
            return self._calls.call(method, path, answer, **request)

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        url = self.target.url
        try:
            yield
        except GatepostError as error:
            raise self._refusal_problem(error) from None
        except NotGatewayAnswer as answer:
            raise CommandProblem(
                "unexpected_answer",
                f"{url} answered HTTP {answer.status} with unexpected content:"
                " check --url, and that gateway and command have the same version",
            ) from None
        except httpx.InvalidURL:
            raise usage_problem(f"{url} is not an address; {_ADDRESS_ADVICE}") from None
        except httpx.ConnectError as error:
            raise unreachable_problem(describe_unreachable(url, error)) from None
        except httpx.TimeoutException:
            raise lost_answer_problem(f"{url} did not answer in time") from None
        except httpx.RequestError as error:
            # Only the class name: the text may quote the request with its token.
            kind = type(error).__name__
            raise lost_answer_problem(f"the connection to {url} broke ({kind})") from None

    def _refusal_problem(self, error: GatepostError) -> CommandProblem:
        # Other codes with this status concern a token that was an argument of the command.
        if type(error) is not Unauthorized:
            return CommandProblem(error.code, error.message)
        if self._is_session:
            return CommandProblem(
                error.code,
                f"{self.target.token_file} holds the session of an external agent, and this command"
                " needs the token of the operator",
            )
        return CommandProblem(
            error.code,
            f"the gateway at {self.target.url} refused the token in {self.target.token_file}:"
            " name the right one with --state-dir or --token-file",
        )


def describe_unreachable(url: str, error: Exception) -> str:
    """Say why a gateway could not be reached, and the next step."""
    if not _is_local(url) or is_untrusted(error):
        explained = explain_connect_error(url, error, TRUST_ADVICE)
        if explained is not None:
            return explained
    return f"no gateway answers at {url}: start one with `gatepost up`"


def mailbox_path(agent: str) -> str:
    return f"/v1/mailboxes/{check_agent_id(agent)}"


def quote_segment(text: str) -> str:
    """Quote a value for use as one path segment."""
    return quote(text, safe="")


def locate_gateway(options: GatewayOptions, env: Mapping[str, str]) -> CliTarget:
    """Find the gateway: options win over the environment, which wins over the state directory."""
    if (context := _find_context(options, env)) is not None:
        return CliTarget(context.url, context.token_file, context=context)
    chosen = options.state_dir
    home = chosen.absolute() if chosen else default_settings_path(env).parent
    url = options.url or (None if chosen else env.get("GATEPOST_URL"))
    token_file = options.token_file or _token_file_from_env(options, env)
    if url is None:
        home = home if chosen else _announcing_state_dir(home, env)
        return _announced_target(home, token_file or home / TOKEN_FILE_NAME)
    if not url.startswith(("http://", "https://")):
        raise usage_problem(f"{url!r} is not an address; {_ADDRESS_ADVICE}")
    if token_file is None and not chosen and not _is_local(url):
        raise usage_problem(
            f"{url} is not on this machine: name the file with its token: --token-file FILE"
        )
    return CliTarget(url.rstrip("/"), token_file or home / TOKEN_FILE_NAME)


def choose_context_name(options: GatewayOptions, env: Mapping[str, str]) -> str | None:
    """The context that an option, the environment or `gatepost context use` names."""
    others = (options.state_dir, options.url, options.token_file)
    is_elsewhere = any(other is not None for other in others)
    if options.context is not None and is_elsewhere:
        raise usage_problem(
            "--context names the gateway and its token: give it without --url, --state-dir and"
            " --token-file"
        )
    if is_elsewhere:
        return None
    if name := options.context or env.get("GATEPOST_CONTEXT"):
        return name
    with report_unusable_settings():
        return None if env.get("GATEPOST_URL") else GatewayContexts(env).current()


def _find_context(options: GatewayOptions, env: Mapping[str, str]) -> GatewayContext | None:
    name = choose_context_name(options, env)
    with report_unusable_settings():
        return None if name is None else GatewayContexts(env).find(name)


def _token_file_from_env(options: GatewayOptions, env: Mapping[str, str]) -> Path | None:
    named = None if options.state_dir else env.get("GATEPOST_TOKEN_FILE")
    return Path(named).expanduser() if named else None


def _announcing_state_dir(home: Path, env: Mapping[str, str]) -> Path:
    """The state directory in which a gateway runs: `home`, or the one its settings file names."""
    if (home / ENDPOINT_FILE_NAME).exists():
        return home
    with report_unusable_settings():
        configured = load_settings(env).node.state_dir
    return configured if (configured / ENDPOINT_FILE_NAME).exists() else home


def _announced_target(home: Path, token_file: Path) -> CliTarget:
    if not (home / ENDPOINT_FILE_NAME).exists():
        raise unreachable_problem(
            f"no gateway runs on {home}: start one with `gatepost up`,"
            " or name another with --state-dir, --url or --context"
        )
    try:
        endpoint = read_endpoint(home)
    except GatepostError as error:
        raise unreachable_problem(error.message) from None
    return CliTarget(endpoint.url, token_file, endpoint.tls_cert)


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
