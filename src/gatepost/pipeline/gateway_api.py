"""A client of the gateway's HTTP API for the pipeline, with timeouts and bounded retries."""

import ssl
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

import httpx
import msgspec

from gatepost.errors import GatepostError, Unavailable, error_from_code
from gatepost.wire import Failure, Status

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
        self._http = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(_ANSWER_TIMEOUT, connect=5.0),
            verify=verify,
            # The token is for the gateway alone, never for a proxy.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def fetch_node_id(self) -> str:
        """The id of the gateway's node."""
        return self.get("/v1/status", Status).node_id

    def get(self, path: str, answer: type[T]) -> T:
        return self._call_with_retries("GET", path, answer)

    def post(self, path: str, body: object, answer: type[T]) -> T:
        return self._call_with_retries("POST", path, answer, content=msgspec.json.encode(body))

    def _call_with_retries(self, method: str, path: str, answer: type[T], **request: Any) -> T:
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._call_once(method, path, answer, request)
            except _RetryLater as later:
                if attempt == _ATTEMPTS:
                    raise Unavailable(f"{later.why}; asked {attempt} times") from None
                self._sleep(min(_LONGEST_PAUSE, later.after or pause))
                pause *= 2
        raise AssertionError("the last attempt returns or raises")

    def _call_once(self, method: str, path: str, answer: type[T], request: dict[str, Any]) -> T:
        try:
            response = self._http.request(method, path, **request)
        except httpx.RequestError as error:
            # Only the error's name: its text may quote the request, including the token.
            why = f"{self.url} does not answer ({type(error).__name__})"
            raise _RetryLater(why) from None
        if response.is_success:
            return self._decode_answer(response, answer)
        failure = self._decode_failure(response)
        if response.status_code in _BUSY_STATUSES:
            raise _RetryLater(f"{self.url} says {failure.message!r}", failure.retry_after)
        raise error_from_code(failure.code, failure.message)

    def _decode_answer(self, response: httpx.Response, answer: type[T]) -> T:
        try:
            return msgspec.json.decode(response.content, type=answer)
        except msgspec.MsgspecError:
            raise self._unexpected_answer(response) from None

    def _decode_failure(self, response: httpx.Response) -> Failure:
        try:
            return msgspec.json.decode(response.content, type=Failure)
        except msgspec.MsgspecError:
            raise self._unexpected_answer(response) from None

    def _unexpected_answer(self, response: httpx.Response) -> GatepostError:
        return Unavailable(
            f"{self.url} answered HTTP {response.status_code} with something no gateway says:"
            " check the address, and that gateway and pipeline have the same version"
        )


class _RetryLater(Exception):
    """The call failed for a reason that may pass; `after` is the pause the gateway asks for."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.after = after
