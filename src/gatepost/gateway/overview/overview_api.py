"""Operator API for the room at a glance: /v1/ledger, /v1/needs, /v1/changes,
/v1/events, and GET /v1/messages.

The dashboard, `gatepost top` and `gatepost status` show what these answer, and count nothing.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from litestar.params import QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from gatepost.core.gateway_core import Core
from gatepost.delivery.sent_search import SentFilter, find_sent, find_sent_message
from gatepost.errors import UnknownMessage
from gatepost.gateway.overview.change_stream import ChangeStream
from gatepost.gateway.overview.event_tail import EventTail
from gatepost.gateway.overview.needs import NeedFinder
from gatepost.gateway.overview.room_ledger import RoomLedgers
from gatepost.ledger import Term
from gatepost.listening.event_streams import keep_alive
from gatepost.listening.route_decorators import get
from gatepost.listening.route_parameters import OptionalText, PageSize, QueryText
from gatepost.wire.overview_views import NeedList, RoomLedger, SentPage

OptionalMs = Annotated[int | None, QueryParameter(ge=0, le=2**53)]
OptionalTerm = Annotated[Term | None, QueryParameter()]


class OverviewApi:
    def __init__(
        self,
        core: Core,
        ledgers: RoomLedgers,
        finder: NeedFinder,
        changes: ChangeStream,
        tail: EventTail,
    ) -> None:
        self._core = core
        self.ledgers = ledgers
        self.finder = finder
        self.changes = changes
        self.tail = tail

    async def find_messages(self, wanted: SentFilter, limit: int, before: str) -> SentPage:
        found = await self._core.read(lambda tx: find_sent(tx, wanted, limit, before))
        return SentPage(found, found[-1].event_id if len(found) == limit else "")

    async def find_message(self, event_id: str) -> SentPage:
        found = await self._core.read(lambda tx: find_sent_message(tx, event_id))
        if found is None:
            raise UnknownMessage(f"no message {event_id} was sent from this gateway")
        return SentPage([found])

    async def stream_changes(self) -> AsyncGenerator[ServerSentEventMessage, None]:
        async with aclosing(self.changes.listen()) as notices:
            async for notice in notices:
                data = msgspec.json.encode(notice).decode()
                yield ServerSentEventMessage(event="change", data=data)

    async def stream_events(
        self, agent: str | None
    ) -> AsyncGenerator[ServerSentEventMessage, None]:
        async with aclosing(self.tail.listen(agent)) as batches:
            async for steps in batches:
                data = msgspec.json.encode(steps).decode()
                yield ServerSentEventMessage(event="steps", data=data)


def create_routes(api: OverviewApi) -> list[Any]:
    @get("/v1/ledger", summary="What became of the messages of all gateways of the room")
    async def ledger(at: OptionalMs = None) -> RoomLedger:
        return await (api.ledgers.show() if at is None else api.ledgers.show_at(at))

    @get("/v1/needs", summary="What a person has to do, most urgent first")
    async def needs() -> NeedList:
        return await api.finder.find()

    @get("/v1/changes", include_in_schema=False)
    async def changes() -> ServerSentEvent:
        api.changes.require_place()
        return ServerSentEvent(keep_alive(api.stream_changes()))

    @get("/v1/events", include_in_schema=False)
    async def events(agent: OptionalText = None) -> ServerSentEvent:
        api.tail.require_place()
        return ServerSentEvent(keep_alive(api.stream_events(agent)))

    @get("/v1/messages", summary="Messages that were sent from here, newest first")
    async def messages(
        limit: PageSize = 100,
        before: QueryText = "",
        id: OptionalText = None,
        agent: OptionalText = None,
        conversation: OptionalText = None,
        term: OptionalTerm = None,
        node: OptionalText = None,
        since: OptionalMs = None,
        until: OptionalMs = None,
    ) -> SentPage:
        if id is not None:
            return await api.find_message(id)
        wanted = SentFilter(agent, conversation, term, node, since, until)
        return await api.find_messages(wanted, limit, before)

    return [ledger, needs, changes, events, messages]
