"""Other gateways, as one part of the process: the room, its doors, the dialling."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gatepost.access.retention import prune
from gatepost.errors import GatepostError
from gatepost.gateway import nodes, ownership, room_api, route_api
from gatepost.gateway.core import Core
from gatepost.gateway.dial import Dialer
from gatepost.gateway.metrics import Metrics
from gatepost.gateway.nodes import NodeDoor
from gatepost.gateway.ownership import Ownership
from gatepost.gateway.pipes import Pipes
from gatepost.gateway.room import RoomKeeper
from gatepost.gateway.room_api import RoomApi
from gatepost.gateway.route_api import RouteApi
from gatepost.gateway.threshold import Threshold

log = logging.getLogger(__name__)

_REFRESH_SECS = 0.5
_COALESCE_SECS = 0.02
_FORGET_SECS = 60.0
# How long a gateway that knows others waits to hear from them before it speaks.
_HEAR_FIRST_SECS = 2.0
_FAREWELL_SECS = 2.0


class Neighbours:
    def __init__(self, core: Core, metrics: Metrics, threshold: Threshold) -> None:
        self.keeper = RoomKeeper(core)
        self.pipes = Pipes(self.keeper)
        self._news = asyncio.Event()
        core.coordinator.observe(on_agents_changed=self._news.set)
        self._dialer = Dialer(self.keeper, self.pipes)
        self._ownership = Ownership(self.keeper)
        self._door = NodeDoor(self.keeper, self.pipes, metrics, threshold)
        metrics.count(self.keeper.incidents)
        metrics.observing.watch(self.keeper, self.pipes)

    def routes(self) -> list[Any]:
        api = RoomApi(self.keeper, self._dialer)
        return [
            *nodes.routes(self._door),
            *room_api.routes(api),
            *ownership.routes(self._ownership),
            *route_api.routes(RouteApi(self.keeper)),
        ]

    @contextlib.asynccontextmanager
    async def running(self, url: str | None) -> AsyncIterator[None]:
        """`url` is where others reach this gateway."""
        self.keeper.endpoint = None if url is None else "ws" + url.removeprefix("http")
        await self.keeper.load()
        work = [
            asyncio.create_task(self.keeper.keep_saving()),
            asyncio.create_task(self._dialer.run()),
            asyncio.create_task(self.pipes.run()),
            asyncio.create_task(self._speak()),
            asyncio.create_task(self._ownership.run()),
            asyncio.create_task(_again_and_again(self._forget, _FORGET_SECS)),
        ]
        try:
            yield
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def retire(self) -> None:
        """Before the doors close. Never raises, and never takes long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECS):
                await self.keeper.retire()

    async def _speak(self) -> None:
        if await self._dialer.has_seeds():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEAR_FIRST_SECS):
                    await self.keeper.may_speak.wait()
        self.keeper.may_speak.set()
        self._news.set()
        await _again_and_again(self._refresh, _COALESCE_SECS)

    async def _refresh(self) -> None:
        """Say what is new at once, and now and then that we are here."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_SECS):
                await self._news.wait()
        self._news.clear()
        await self.keeper.refresh()

    async def _forget(self) -> None:
        """What can no longer matter goes: spent tickets, old invites, records that are over."""
        core = self.keeper.core
        batch, policy = core.settings.journal.sweep_batch, self.keeper.policy
        while await core.commit(lambda tx: prune(tx, policy, batch)):
            pass
        await self.keeper.tidy()


async def _again_and_again(work: Callable[[], Awaitable[None]], secs: float) -> None:
    while True:
        try:
            await work()
        except GatepostError as error:
            log.warning("the room was not kept up to date: %s", error.message)
        except Exception:
            log.exception("the room was not kept up to date")
        await asyncio.sleep(secs)
