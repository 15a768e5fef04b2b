"""Who calls the door, and how many streams each caller has."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from gatepost.config.a2a_settings import A2aSettings
from gatepost.errors import Forbidden, RateLimited, Unauthorized
from gatepost.gateway.doors import DoorCaller, DoorServices
from gatepost.listening.connection_guard import AnyConnection

# Under which name the operator acts; agents with a token of their own have one name only.
AGENT_HEADER = "gatepost-agent"


class A2aCaller(Struct, frozen=True):
    """An agent, by its token. Anonymous callers share one agent, and nothing tells them apart."""

    door: DoorCaller
    is_anonymous: bool = False

    @property
    def key(self) -> str:
        """Under which name the door keeps what belongs to the caller."""
        return "" if self.is_anonymous else self.door.agent or ""

    @property
    def session(self) -> str:
        return "" if self.door.session is None else self.door.session.id


async def identify_caller(services: DoorServices, connection: AnyConnection) -> A2aCaller:
    if "authorization" in connection.headers:
        door = await services.authenticate(connection, connection.headers.get(AGENT_HEADER))
        if door.session is None:
            raise Forbidden("say with the header `Gatepost-Agent` as which agent you call")
        return A2aCaller(door)
    if not (agent := services.settings.a2a.anonymous_agent):
        raise Unauthorized("send `Authorization: Bearer` with the token of an agent")
    return A2aCaller(services.local_caller(agent, is_operator=False), is_anonymous=True)


class StreamPlaces:
    """Streams and waiting calls, of all callers and of each."""

    def __init__(self, settings: A2aSettings) -> None:
        self._most, self._most_each = settings.max_streams, settings.max_streams_per_caller
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def taking(self, caller: A2aCaller) -> Iterator[None]:
        key = caller.key
        if self._taken[key] >= self._most_each or self._taken.total() >= self._most:
            raise RateLimited("too many streams and waiting calls at once", retry_after=5.0)
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
