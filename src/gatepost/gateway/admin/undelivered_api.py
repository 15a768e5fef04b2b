"""Operator API for undelivered messages (/v1/undelivered): list, show, replay, discard, give up."""

import asyncio
from functools import partial
from typing import Annotated

from litestar import Router
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from gatepost.core.batch_commit import commit_until_none
from gatepost.core.gateway_core import Core
from gatepost.delivery import undelivered as messages
from gatepost.delivery.reroute import OpenFilter
from gatepost.delivery.undelivered import UndeliveredFilter
from gatepost.delivery.undelivered_table import UndeliveredMessage
from gatepost.errors import UnknownMessage
from gatepost.events import AgentId, EventId
from gatepost.journal import Tx
from gatepost.listening.connected_requests import while_connected
from gatepost.listening.route_decorators import delete, get, post
from gatepost.listening.route_parameters import (
    AnyRequest,
    OptionalFlag,
    OptionalText,
    PageSize,
    PathName,
    QueryText,
)
from gatepost.wire.gateway_views import Replayed, Replays, Undelivered, UndeliveredPage
from gatepost.wire.operations import Count, Seconds

EpochMsQuery = Annotated[int | None, QueryParameter(ge=0, le=2**53)]

_OPERATOR = "operator"


class UndeliveredFilterBody(Struct, forbid_unknown_fields=True):
    """Selects messages that match all given conditions; without conditions, all of them."""

    event_ids: Annotated[list[EventId], Meta(min_length=1, max_length=1000)] | None = None
    agent: AgentId | None = None
    reason: Annotated[str, Meta(max_length=100)] | None = None
    failed_after: Seconds | None = None
    failed_before: Seconds | None = None
    replayed: bool | None = None

    def to_filter(self) -> UndeliveredFilter:
        return UndeliveredFilter(
            **{name: getattr(self, name) for name in UndeliveredFilter.__struct_fields__}
        )


class UndeliveredReplayBody(UndeliveredFilterBody):
    """Selects messages to replay. `force` includes those their last owner may have processed."""

    force: bool = False
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    rate_per_sec: Annotated[float, Meta(ge=0.01, le=1e6)] | None = None


class GiveUpBody(Struct, forbid_unknown_fields=True):
    """Selects open messages: those given, or all for a gateway or a receiver."""

    event_ids: Annotated[list[EventId], Meta(min_length=1, max_length=1000)] | None = None
    node: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    agent: AgentId | None = None


class UndeliveredApi:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._batch_size = core.settings.journal.sweep_batch

    async def find_page(self, wanted: UndeliveredFilter, limit: int, after: str) -> UndeliveredPage:
        found = await self._core.read(
            lambda tx: messages.find_undelivered(tx, wanted, limit, after)
        )
        return UndeliveredPage(
            [messages.view_message(message, with_payload=False) for message in found]
        )

    async def show_message(self, event_id: str) -> Undelivered:
        wanted = UndeliveredFilter(event_ids=[event_id])
        found = await self._core.read(lambda tx: messages.find_undelivered(tx, wanted, 1))
        if not found:
            raise UnknownMessage(f"no undelivered message {event_id} here")
        return messages.view_message(found[0], with_payload=True)

    async def replay_messages(self, wanted: UndeliveredReplayBody) -> Replays:
        """Send messages again, at most `rate_per_sec`. Failed ones are reported and kept."""
        which, rate = wanted.to_filter(), wanted.rate_per_sec
        if which.event_ids is None and which.replayed is None:
            which.replayed = False
        done: list[Replayed] = []
        after = ""
        while len(done) < wanted.limit:
            pace = self._batch_size if rate is None else max(1, int(rate / 10))
            size = min(wanted.limit - len(done), pace)
            batch = partial(
                self._replay_batch, wanted=which, size=size, after=after, force=wanted.force
            )
            more = await self._core.commit(batch)
            done += more
            if len(more) < size:
                break
            after = more[-1].event_id
            await asyncio.sleep(0 if rate is None else size / rate)
        return Replays(done)

    def _replay_batch(
        self, tx: Tx, wanted: UndeliveredFilter, size: int, after: str, force: bool
    ) -> list[Replayed]:
        return [
            messages.replay_message(tx, message, self._send_again, force=force, actor=_OPERATOR)
            for message in messages.find_undelivered(tx, wanted, size, after)
        ]

    def _send_again(self, tx: Tx, message: UndeliveredMessage) -> str:
        out = message.outgoing_event(self._core.node.event_ids.next_id())
        self._core.coordinator.send_again(tx, out, message.node)
        return out.event_id

    async def give_up_messages(self, wanted: GiveUpBody) -> int:
        which, delivery = (
            OpenFilter(wanted.event_ids, wanted.node, wanted.agent),
            self._core.delivery,
        )
        return await commit_until_none(
            self._core,
            lambda tx: messages.give_up_messages(tx, delivery, which, self._batch_size, _OPERATOR),
        )

    async def discard_messages(self, wanted: UndeliveredFilter) -> int:
        return await commit_until_none(
            self._core,
            lambda tx: messages.discard_messages(tx, wanted, self._batch_size, _OPERATOR),
        )


def create_router(core: Core) -> Router:
    api = UndeliveredApi(core)

    @get("/", summary="List messages this gateway gave up, oldest first")
    async def undelivered(
        limit: PageSize = 100,
        after: QueryText = "",
        agent: OptionalText = None,
        reason: OptionalText = None,
        failed_after: EpochMsQuery = None,
        failed_before: EpochMsQuery = None,
        replayed: OptionalFlag = None,
    ) -> UndeliveredPage:
        wanted = UndeliveredFilter(None, agent, reason, failed_after, failed_before, replayed)
        return await api.find_page(wanted, limit, after)

    @get("/{event_id:str}", summary="Show one, with its payload")
    async def one(event_id: PathName) -> Undelivered:
        return await api.show_message(event_id)

    @post("/replay", status_code=200, summary="Send some again, as new events")
    async def replay(data: JSONBody[UndeliveredReplayBody], request: AnyRequest) -> Replays:
        return await while_connected(request, api.replay_messages(data))

    @post("/discard", status_code=200, summary="Give some up for good")
    async def discard(data: JSONBody[UndeliveredFilterBody]) -> Count:
        return Count(count=await api.discard_messages(data.to_filter()))

    @post("/give-up", status_code=200, summary="Give up open messages that no gateway will end")
    async def give_up(data: JSONBody[GiveUpBody]) -> Count:
        return Count(count=await api.give_up_messages(data))

    @delete("/{event_id:str}", status_code=200, summary="Give one up for good")
    async def drop(event_id: PathName) -> Count:
        count = await api.discard_messages(UndeliveredFilter(event_ids=[event_id]))
        if not count:
            raise UnknownMessage(f"no undelivered message {event_id} here")
        return Count(count=count)

    return Router(
        "/v1/undelivered", route_handlers=[undelivered, one, replay, discard, give_up, drop]
    )
