"""What the screens ask of a gateway: reads, actions, and the stream of changes."""

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar
from urllib.parse import urlencode

from msgspec import Raw, Struct

from gatepost.connect.event_stream import listen_to_events
from gatepost.connect.gateway_endpoint import LocateGateway, Target
from gatepost.connect.http_calls import AsyncHttpCalls
from gatepost.wire.operations import Failure
from gatepost.wire.overview_views import ChangeNotice

T = TypeVar("T")

_READ_SECS = 30.0
_ACTION_SECS = 120.0


class ActionResult(Struct):
    error: Failure | None = None


class ActionAnswer(Struct):
    """What actions answer: how many it concerned, or one result for each."""

    count: int | None = None
    results: list[ActionResult] = []


class OperatorApi(Protocol):
    @property
    def place(self) -> str:
        """The address of the gateway that answered last."""

    async def get(self, path: str, kind: type[T], **params: object) -> T:
        """Read; parameters that are None are left out."""

    async def ask(self, path: str, body: object, kind: type[T]) -> T:
        """Do an operation of an agent that changes nothing."""

    async def act(self, method: str, path: str, body: Raw) -> ActionAnswer: ...

    def changes(self) -> AsyncIterator[ChangeNotice]:
        """What may have changed, as it does; the first notice names everything."""

    async def close(self) -> None: ...


class HttpOperatorApi:
    """The API of the gateway that `locate` finds, over HTTP."""

    def __init__(self, locate: LocateGateway) -> None:
        self.place = ""
        self._find_target = locate
        self._calls = AsyncHttpCalls(self._locate)

    def _locate(self) -> Target:
        target = self._find_target()
        self.place = target.url
        return target

    async def close(self) -> None:
        await self._calls.close()

    async def get(self, path: str, kind: type[T], **params: object) -> T:
        query = urlencode({name: str(value) for name, value in params.items() if value is not None})
        return await self._calls.get(f"{path}?{query}" if query else path, kind, _READ_SECS)

    async def ask(self, path: str, body: object, kind: type[T]) -> T:
        return await self._calls.post(path, body, kind, _READ_SECS)

    async def act(self, method: str, path: str, body: Raw) -> ActionAnswer:
        return await self._calls.call(method, path, body, ActionAnswer, _ACTION_SECS)

    def changes(self) -> AsyncIterator[ChangeNotice]:
        return listen_to_events(self._calls, "/v1/changes", ChangeNotice)
