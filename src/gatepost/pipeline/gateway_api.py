"""A client of the gateway's HTTP API for the pipeline, with timeouts and bounded retries."""

import ssl
import time
from collections.abc import Callable
from typing import Self, TypeVar

from gatepost.connect.http_calls import HttpCalls, NotGatewayAnswer, httpx
from gatepost.errors import GatepostError, Unavailable
from gatepost.wire.gateway_views import Status

T = TypeVar("T")

_ANSWER_TIMEOUT = 60.0
_ATTEMPTS = 5
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_BUSY_STATUSES = (429, 502, 503, 504)


class GatewayApi:
    """Repeats calls that fail. This is safe because the gateway performs each request once."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        verify: ssl.SSLContext | bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self._sleep = sleep
        self._calls = HttpCalls(url, token, timeout=_ANSWER_TIMEOUT, verify=verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.close()

    def fetch_node_id(self) -> str:
        """The id of the gateway's node."""
        return self.get("/v1/status", Status).node_id

    def get(self, path: str, answer: type[T]) -> T:
        return self._call_with_retries("GET", path, answer)

    def post(self, path: str, body: object, answer: type[T]) -> T:
        return self._call_with_retries("POST", path, answer, body)

    def _call_with_retries(self, method: str, path: str, answer: type[T], body: object = None) -> T:
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._call_once(method, path, answer, body)
            except _RetryLater as later:
                if attempt == _ATTEMPTS:
                    raise Unavailable(f"{later.why}; asked {attempt} times") from None
                self._sleep(min(_LONGEST_PAUSE, later.after or pause))
                pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def _call_once(self, method: str, path: str, answer: type[T], body: object) -> T:
        try:
            return self._calls.call(method, path, answer, body=body)
        except httpx.RequestError as error:
            # Only the error's name: its text may quote the request, including the token.
            why = f"{self.url} does not answer ({type(error).__name__})"
            raise _RetryLater(why) from None
        except NotGatewayAnswer as other:
            raise Unavailable(
                f"{self.url} answered HTTP {other.status} with something no gateway says:"
                " check the address, and that gateway and pipeline have the same version"
            ) from None
        except GatepostError as error:
            if error.status not in _BUSY_STATUSES:
                raise
            raise _RetryLater(f"{self.url} says {error.message!r}", error.retry_after) from None


class _RetryLater(Exception):
    """The call failed for a reason that may pass; `after` is the pause the gateway asks for."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.after = after
