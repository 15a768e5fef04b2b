"""Publishes the rendezvous descriptor while this gateway is the publisher, and serves it always."""

import asyncio
import contextlib
from typing import Any

from gatepost.errors import NotFound
from gatepost.listening.connection_guard import ConnectionGuard
from gatepost.listening.route_decorators import get
from gatepost.listening.route_parameters import AnyRequest
from gatepost.mesh.heard_addresses import HeardAddresses
from gatepost.mesh.rendezvous import (
    DESCRIPTOR_MAP,
    DESCRIPTOR_PATH,
    DescriptorDocument,
    find_descriptor,
    renew_descriptor,
)
from gatepost.room import RoomChange, claim_key
from gatepost.room.service.current_publisher import CurrentPublisher
from gatepost.room.service.record_announcer import RecordAnnouncer

# The interval in which a new publisher or an old descriptor is noticed.
_CHECK_SECS = 5.0
_RELEVANT_MAPS = {"nodes", "standing", "transports"}


class DescriptorService:
    """`heard` are the addresses that peers named in datagrams."""

    def __init__(
        self, announcer: RecordAnnouncer, current: CurrentPublisher, heard: HeardAddresses
    ) -> None:
        self._announcer = announcer
        self._replica = announcer.replica
        self._core = announcer.replica.core
        self._current = current
        self._heard = heard
        self._changed = asyncio.Event()
        self._replica.watch_changes(self._note_change)

    async def publish_once(self) -> None:
        """One turn of the background loop: publish if needed, then wait for a change."""
        self._changed.clear()
        if self._announcer.is_ready and self._current.is_this_node():
            await self.publish_descriptor()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECS):
                await self._changed.wait()

    async def publish_descriptor(self) -> None:
        node, now = self._core.node, self._core.clock.now()
        room = self._replica.current_room
        record = renew_descriptor(room, node.id, node.key.public, self._heard, now)
        if record is not None:
            slot = (DESCRIPTOR_MAP, claim_key("descriptor", node.id))
            await self._announcer.publish_records({slot: record})

    def check_served(self) -> None:
        """Raise NotFound if strangers may not see the descriptor."""
        if not self._core.settings.bootstrap.serve_descriptor:
            raise _no_descriptor()

    def current_document(self) -> DescriptorDocument:
        """The descriptor as every node serves it; NotFound if there is none yet."""
        room = self._replica.room
        now = self._core.clock.now()
        found = None if room is None else find_descriptor(room, self._current.node_id(), now)
        if room is None or found is None:
            raise _no_descriptor()
        return DescriptorDocument.of_record(room.genesis, found)

    def _note_change(self, change: RoomChange | None) -> None:
        if change is None or any(signed.map in _RELEVANT_MAPS for signed in change.changed):
            self._changed.set()


def _no_descriptor() -> NotFound:
    return NotFound("this gateway has no descriptor of a mesh")


def create_routes(descriptors: DescriptorService, guard: ConnectionGuard) -> list[Any]:
    @get(
        DESCRIPTOR_PATH,
        summary="Where the mesh can be reached, signed by its publisher",
        opt={"open": True},
        security=[],
    )
    async def descriptor(request: AnyRequest) -> DescriptorDocument:
        guard.check_attempt(request)
        descriptors.check_served()
        return descriptors.current_document()

    @get("/v1/mesh/descriptor", summary="The same, for the operator")
    async def own_descriptor() -> DescriptorDocument:
        return descriptors.current_document()

    return [descriptor, own_descriptor]
