"""The door for A2A: clients at its bindings, and couriers to agents elsewhere."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

from gatepost.a2a.card_key import CardKey
from gatepost.a2a.door_records import DoorRecords
from gatepost.a2a.http_endpoint import HttpEndpoint
from gatepost.a2a.outside.outside_desk import OutsideDesk, create_routes
from gatepost.a2a.sdk import Sdk
from gatepost.errors import InvalidRequest
from gatepost.gateway.doors import DoorServices

log = logging.getLogger(__name__)


class A2aDoor:
    def __init__(self, services: DoorServices) -> None:
        state_dir = services.settings.node.state_dir
        self._services = services
        self._sdk = Sdk()
        self._records = DoorRecords(state_dir / "a2a-records.db")
        self._key = CardKey(state_dir / "a2a-card.key")
        self._outside = OutsideDesk(services, self._records, self._load_courier)
        self._http = HttpEndpoint(services, self._sdk, self._key)

    async def _load_courier(self) -> ModuleType:
        return (await self._sdk.load()).courier

    def create_routes(self) -> list[Any]:
        return [*self._http.create_routes(), *create_routes(self._outside)]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = asyncio.create_task(self._run_app())
        if self._records.exists and self._sdk.is_installed:
            # Push notifications go on, and a client that has called before does not wait.
            self._http.is_wanted.set()
        try:
            async with self._outside.running():
                yield
        finally:
            app.cancel()
            await asyncio.gather(app, return_exceptions=True)
            self._records.close()

    async def _run_app(self) -> None:
        """Run what needs the SDK once a request wants it, until the gateway stops."""
        await self._http.is_wanted.wait()
        try:
            modules = await self._sdk.load()
            app = modules.app.A2aApp(self._services, self._records, self._key)
            async with app.running():
                self._http.app = app
                self._http.is_ready.set()
                await asyncio.Event().wait()
        except Exception:
            log.exception("the door for A2A has failed")
        finally:
            self._http.app = None
            self._http.is_ready.set()

    async def serve_connection(
        self, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raise InvalidRequest("the door for A2A is reached over HTTP only")


def open_door(services: DoorServices) -> A2aDoor:
    return A2aDoor(services)
