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

from gatepost.cli.options import Options
from gatepost.cli.problems import Problem, lost_answer, unreachable, usage
from gatepost.config import Settings, default_settings_path
from gatepost.errors import Unauthorized
from gatepost.events import check_agent_id
from gatepost.gateway.state_dir import GatewayEndpoint, StateDir
from gatepost.wire import Failure

# httpx loads click, rich and pygments for its own command line whenever they are installed, which
# costs a third of a `gatepost send`. With this entry its command line module cannot be imported,
# and httpx works without it.
cast(dict[str, object], sys.modules).setdefault("httpx._main", None)
import httpx  # noqa: E402

T = TypeVar("T")

_ANSWER_SECS = 30.0
_ADDRESS = "write it as http://HOST:PORT"


class Target(msgspec.Struct, frozen=True):
    """A gateway's address, and the file that holds its token."""

    url: str
    token_file: Path
    tls_cert: str | None = None

    def trust(self) -> ssl.SSLContext | bool:
        """httpx's `verify`: a local gateway is trusted by exactly its own certificate."""
        if not self.url.startswith("https:"):
            # Loading the system's certificates takes longer than a whole call without TLS.
            return False
        if self.tls_cert is None:
            return True
        context = ssl.create_default_context(cafile=self.tls_cert)
        context.check_hostname = False
        return context


class Gateway:
    """One gateway's HTTP API. Every call has a deadline."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._http = httpx.Client(
            base_url=target.url,
            headers={"authorization": f"Bearer {read_token(target.token_file)}"},
            timeout=httpx.Timeout(_ANSWER_SECS, connect=5.0),
            verify=target.trust(),
            # No proxy: it would see the token.
            trust_env=False,
        )

    @classmethod
    def find(cls, options: Options) -> Self:
        return cls(locate(options, os.environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, answer: type[T], wait: float = 0.0, **params: object) -> T:
        given = {key: str(value) for key, value in params.items() if value is not None}
        return self._call("GET", path, answer, wait, params=given)

    def post(self, path: str, body: object, answer: type[T], wait: float = 0.0) -> T:
        return self._call("POST", path, answer, wait, content=msgspec.json.encode(body))

    def put(self, path: str, answer: type[T], body: object = None) -> T:
        content = None if body is None else msgspec.json.encode(body)
        return self._call("PUT", path, answer, content=content)

    def delete(self, path: str, answer: type[T]) -> T:
        return self._call("DELETE", path, answer)

    def upload(self, path: str, pieces: Iterable[bytes], size: int | None, answer: type[T]) -> T:
        """Stream a body; without a `size` it is sent in chunks."""
        headers = {} if size is None else {"content-length": str(size)}
        return self._call("POST", path, answer, content=pieces, headers=headers)

    @contextmanager
    def download(self, path: str) -> Iterator[Iterator[bytes]]:
        """Stream the body of an answer."""
        with self._reached(), self._http.stream("GET", path) as response:
            if not response.is_success:
                response.read()
                raise self._refusal(response)
            yield response.iter_bytes()

    def _call(
        self, method: str, path: str, answer: type[T], wait: float = 0.0, **request: Any
    ) -> T:
        timeout = httpx.Timeout(_ANSWER_SECS + wait, connect=5.0)
        with self._reached():
            response = self._http.request(method, path, timeout=timeout, **request)
        if not response.is_success:
            raise self._refusal(response)
        try:
            return msgspec.json.decode(response.content, type=answer)
        except msgspec.MsgspecError:
            raise self._stranger(response) from None

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.InvalidURL:
            raise usage(f"{self.target.url} is not an address; {_ADDRESS}") from None
        except httpx.ConnectError:
            raise unreachable(
                f"no gateway answers at {self.target.url}: start one with `gatepost up`"
            ) from None
        except httpx.TimeoutException:
            raise lost_answer(f"{self.target.url} did not answer in time") from None
        except httpx.RequestError as error:
            # Only the class name: the text may quote the request with its token.
            kind = type(error).__name__
            raise lost_answer(f"the connection to {self.target.url} broke ({kind})") from None

    def _refusal(self, response: httpx.Response) -> Problem:
        try:
            failure = msgspec.json.decode(response.content, type=Failure)
        except msgspec.MsgspecError:
            return self._stranger(response)
        # Other codes with this status concern a token that was an argument of the command.
        if failure.code == Unauthorized.code:
            return Problem(failure.code, self._locked_out())
        return Problem(failure.code, failure.message)

    def _locked_out(self) -> str:
        return (
            f"the gateway at {self.target.url} refused the token in {self.target.token_file}:"
            " name the right one with --state-dir or --token-file"
        )

    def _stranger(self, response: httpx.Response) -> Problem:
        return Problem(
            "unexpected_answer",
            f"{self.target.url} answered HTTP {response.status_code} with unexpected content:"
            " check --url, and that gateway and command have the same version",
        )


def mailbox(agent: str) -> str:
    return f"/v1/mailboxes/{check_agent_id(agent)}"


def segment(text: str) -> str:
    """Quote a value for use as one path segment."""
    return quote(text, safe="")


def locate(options: Options, env: Mapping[str, str]) -> Target:
    """Find the gateway: options win over the environment, which wins over the state directory."""
    chosen = options.state_dir
    state = StateDir(chosen.absolute() if chosen else default_settings_path(env).parent)
    url = options.url or (None if chosen else env.get("GATEPOST_URL"))
    token_file = options.token_file or _token_file_of(options, env)
    if url is None:
        endpoint, state = _endpoint(state, settings_decide=chosen is None)
        return Target(endpoint.url, token_file or state.token, endpoint.tls_cert)
    if not url.startswith(("http://", "https://")):
        raise usage(f"{url!r} is not an address; {_ADDRESS}")
    if token_file is None and not chosen and not _is_local(url):
        raise usage(
            f"{url} is not on this machine: name the file with its token: --token-file FILE"
        )
    return Target(url.rstrip("/"), token_file or state.token)


def _token_file_of(options: Options, env: Mapping[str, str]) -> Path | None:
    named = None if options.state_dir else env.get("GATEPOST_TOKEN_FILE")
    return Path(named).expanduser() if named else None


def _endpoint(state: StateDir, *, settings_decide: bool) -> tuple[GatewayEndpoint, StateDir]:
    """The endpoint announced in this state directory, or in the one its settings file names."""
    if settings_decide and not state.endpoint.exists():
        state = _configured(state)
    try:
        return msgspec.json.decode(state.endpoint.read_bytes(), type=GatewayEndpoint), state
    except FileNotFoundError:
        raise unreachable(
            f"no gateway runs on {state.path}: start one with `gatepost up`,"
            " or name another with --state-dir or --url"
        ) from None
    except OSError as error:
        raise unreachable(f"{state.endpoint} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError:
        raise unreachable(f"{state.endpoint} is damaged: restart the gateway") from None


def _configured(state: StateDir) -> StateDir:
    file = default_settings_path(os.environ)
    settings = Settings.load(file if file.exists() else None, os.environ)
    configured = StateDir(settings.node.state_dir)
    return configured if configured.endpoint.exists() else state


def read_token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Problem(
            "unauthorized",
            f"the gateway's token cannot be read from {file} ({why}):"
            " name its file with --token-file",
        ) from None
    if not token or not all(char.isalnum() or char in "-._~+/=" for char in token):
        raise Problem("unauthorized", f"{file} holds no token: name its file with --token-file")
    return token


def _is_local(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
