"""Finds the gateway a command talks to, and calls its HTTP API."""

import os
import ssl
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
from gatepost.config import default_settings_path, is_loopback, load_settings
from gatepost.connect_errors import TRUST_ADVICE, explain_connect_error, is_untrusted
from gatepost.errors import GatepostError, Unauthorized
from gatepost.events import check_agent_id
from gatepost.gateway_endpoint import (
    ENDPOINT_FILE_NAME,
    TOKEN_FILE_NAME,
    read_endpoint,
    read_token,
)
from gatepost.http_calls import HttpCalls, NotGatewayAnswer, httpx
from gatepost.tls import local_context

T = TypeVar("T")

_ADDRESS_ADVICE = "write it as http://HOST:PORT"
_TOKEN_ADVICE = "name its file with --token-file"


class CliTarget(msgspec.Struct, frozen=True):
    """A gateway's address, and the file that holds its token."""

    url: str
    token_file: Path
    tls_cert: str | None = None

    def read_token(self) -> str:
        return read_token(self.token_file, _TOKEN_ADVICE)

    def tls_verification(self) -> ssl.SSLContext | bool:
        """httpx's `verify`: a local gateway is trusted by exactly its own certificate."""
        return True if self.tls_cert is None else local_context(self.tls_cert)


class CliGateway:
    """One gateway's HTTP API. Every call has a deadline."""

    def __init__(self, target: CliTarget) -> None:
        self.target = target
        self._calls = HttpCalls(target.url, target.read_token(), verify=target.tls_verification())

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

    def upload(self, path: str, pieces: Iterable[bytes], size: int | None, answer: type[T]) -> T:
        """Stream a body; without a `size` it is sent in chunks."""
        headers = {} if size is None else {"content-length": str(size)}
        return self._call("POST", path, answer, content=pieces, headers=headers)

    @contextmanager
    def download(self, path: str) -> Iterator[Iterator[bytes]]:
        """Stream the body of an answer."""
        with self._report_errors(), self._calls.download(path) as pieces:
            yield pieces

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
            " or name another with --state-dir or --url"
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
