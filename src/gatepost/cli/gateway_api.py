"""Finds the gateway a command talks to, and calls its HTTP API."""

import ipaddress
import os
import ssl
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote, urlsplit

import msgspec

from gatepost.cli.options import GatewayOptions
from gatepost.cli.problems import (
    CommandProblem,
    lost_answer_problem,
    unreachable_problem,
    usage_problem,
)
from gatepost.config import Settings, default_settings_path
from gatepost.errors import Unauthorized
from gatepost.events import check_agent_id
from gatepost.gateway.state_dir import StateDir
from gatepost.gateway_endpoint import GatewayEndpoint
from gatepost.wire import Failure

# httpx loads click, rich and pygments for its own command line whenever they are installed, which
# costs a third of a `gatepost send`. With this entry its command line module cannot be imported,
# and httpx works without it.
cast(dict[str, object], sys.modules).setdefault("httpx._main", None)
import httpx  # noqa: E402

T = TypeVar("T")

_ANSWER_SECS = 30.0
_ADDRESS_ADVICE = "write it as http://HOST:PORT"


class CliTarget(msgspec.Struct, frozen=True):
    """A gateway's address, and the file that holds its token."""

    url: str
    token_file: Path
    tls_cert: str | None = None

    def tls_verification(self) -> ssl.SSLContext | bool:
        """httpx's `verify`: a local gateway is trusted by exactly its own certificate."""
        if not self.url.startswith("https:"):
            # Loading the system's certificates takes longer than a whole call without TLS.
            return False
        if self.tls_cert is None:
            return True
        context = ssl.create_default_context(cafile=self.tls_cert)
        context.check_hostname = False
        return context


class CliGateway:
    """One gateway's HTTP API. Every call has a deadline."""

    def __init__(self, target: CliTarget) -> None:
        self.target = target
        self._http = httpx.Client(
            base_url=target.url,
            headers={"authorization": f"Bearer {read_token(target.token_file)}"},
            timeout=httpx.Timeout(_ANSWER_SECS, connect=5.0),
            verify=target.tls_verification(),
            # No proxy: it would see the token.
            trust_env=False,
        )

    @classmethod
    def find(cls, options: GatewayOptions) -> Self:
        return cls(locate_gateway(options, os.environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, answer: type[T], wait: float = 0.0, **params: object) -> T:
        given = {key: str(value) for key, value in params.items() if value is not None}
        return self._request_answer("GET", path, answer, wait, params=given)

    def post(self, path: str, body: object, answer: type[T], wait: float = 0.0) -> T:
        return self._request_answer("POST", path, answer, wait, content=msgspec.json.encode(body))

    def put(self, path: str, answer: type[T], body: object = None) -> T:
        content = None if body is None else msgspec.json.encode(body)
        return self._request_answer("PUT", path, answer, content=content)

    def delete(self, path: str, answer: type[T]) -> T:
        return self._request_answer("DELETE", path, answer)

    def upload(self, path: str, pieces: Iterable[bytes], size: int | None, answer: type[T]) -> T:
        """Stream a body; without a `size` it is sent in chunks."""
        headers = {} if size is None else {"content-length": str(size)}
        return self._request_answer("POST", path, answer, content=pieces, headers=headers)

    @contextmanager
    def download(self, path: str) -> Iterator[Iterator[bytes]]:
        """Stream the body of an answer."""
        with self._translate_http_errors(), self._http.stream("GET", path) as response:
            if not response.is_success:
                response.read()
                raise self._refusal_problem(response)
            yield response.iter_bytes()

    def _request_answer(
        self, method: str, path: str, answer: type[T], wait: float = 0.0, **request: Any
    ) -> T:
        timeout = httpx.Timeout(_ANSWER_SECS + wait, connect=5.0)
        with self._translate_http_errors():
            response = self._http.request(method, path, timeout=timeout, **request)
        if not response.is_success:
            raise self._refusal_problem(response)
        try:
            return msgspec.json.decode(response.content, type=answer)
        except msgspec.MsgspecError:
            raise self._unexpected_answer_problem(response) from None

    @contextmanager
    def _translate_http_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.InvalidURL:
            raise usage_problem(f"{self.target.url} is not an address; {_ADDRESS_ADVICE}") from None
        except httpx.ConnectError:
            raise unreachable_problem(
                f"no gateway answers at {self.target.url}: start one with `gatepost up`"
            ) from None
        except httpx.TimeoutException:
            raise lost_answer_problem(f"{self.target.url} did not answer in time") from None
        except httpx.RequestError as error:
            # Only the class name: the text may quote the request with its token.
            kind = type(error).__name__
            raise lost_answer_problem(
                f"the connection to {self.target.url} broke ({kind})"
            ) from None

    def _refusal_problem(self, response: httpx.Response) -> CommandProblem:
        try:
            failure = msgspec.json.decode(response.content, type=Failure)
        except msgspec.MsgspecError:
            return self._unexpected_answer_problem(response)
        # Other codes with this status concern a token that was an argument of the command.
        if failure.code == Unauthorized.code:
            return CommandProblem(failure.code, self._refused_token_message())
        return CommandProblem(failure.code, failure.message)

    def _refused_token_message(self) -> str:
        return (
            f"the gateway at {self.target.url} refused the token in {self.target.token_file}:"
            " name the right one with --state-dir or --token-file"
        )

    def _unexpected_answer_problem(self, response: httpx.Response) -> CommandProblem:
        return CommandProblem(
            "unexpected_answer",
            f"{self.target.url} answered HTTP {response.status_code} with unexpected content:"
            " check --url, and that gateway and command have the same version",
        )


def mailbox_path(agent: str) -> str:
    return f"/v1/mailboxes/{check_agent_id(agent)}"


def quote_segment(text: str) -> str:
    """Quote a value for use as one path segment."""
    return quote(text, safe="")


def locate_gateway(options: GatewayOptions, env: Mapping[str, str]) -> CliTarget:
    """Find the gateway: options win over the environment, which wins over the state directory."""
    chosen = options.state_dir
    state = StateDir(chosen.absolute() if chosen else default_settings_path(env).parent)
    url = options.url or (None if chosen else env.get("GATEPOST_URL"))
    token_file = options.token_file or _token_file_from_env(options, env)
    if url is None:
        endpoint, state = _read_endpoint(state, settings_decide=chosen is None)
        return CliTarget(endpoint.url, token_file or state.token, endpoint.tls_cert)
    if not url.startswith(("http://", "https://")):
        raise usage_problem(f"{url!r} is not an address; {_ADDRESS_ADVICE}")
    if token_file is None and not chosen and not _is_local(url):
        raise usage_problem(
            f"{url} is not on this machine: name the file with its token: --token-file FILE"
        )
    return CliTarget(url.rstrip("/"), token_file or state.token)


def _token_file_from_env(options: GatewayOptions, env: Mapping[str, str]) -> Path | None:
    named = None if options.state_dir else env.get("GATEPOST_TOKEN_FILE")
    return Path(named).expanduser() if named else None


def _read_endpoint(state: StateDir, *, settings_decide: bool) -> tuple[GatewayEndpoint, StateDir]:
    """The endpoint announced in this state directory, or in the one its settings file names."""
    if settings_decide and not state.endpoint.exists():
        state = _configured_state_dir(state)
    try:
        return msgspec.json.decode(state.endpoint.read_bytes(), type=GatewayEndpoint), state
    except FileNotFoundError:
        raise unreachable_problem(
            f"no gateway runs on {state.path}: start one with `gatepost up`,"
            " or name another with --state-dir or --url"
        ) from None
    except OSError as error:
        raise unreachable_problem(f"{state.endpoint} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError:
        raise unreachable_problem(f"{state.endpoint} is damaged: restart the gateway") from None


def _configured_state_dir(state: StateDir) -> StateDir:
    file = default_settings_path(os.environ)
    settings = Settings.load(file if file.exists() else None, os.environ)
    configured = StateDir(settings.node.state_dir)
    return configured if configured.endpoint.exists() else state


def read_token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CommandProblem(
            "unauthorized",
            f"the gateway's token cannot be read from {file} ({why}):"
            " name its file with --token-file",
        ) from None
    if not token or not all(char.isalnum() or char in "-._~+/=" for char in token):
        raise CommandProblem(
            "unauthorized", f"{file} holds no token: name its file with --token-file"
        )
    return token


def _is_local(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
