"""Operator API of the send mirror (/v1/mirror): switch it, read the copies, remove them."""

from litestar import Router
from litestar.params import JSONBody

from gatepost.gateway.api.operations import Operations
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.listening.connected_requests import while_connected
from gatepost.listening.route_decorators import get, post, put
from gatepost.listening.route_parameters import AnyRequest, PageSize, RoomWaitSecs
from gatepost.wire.mirror_views import MirrorDone, MirrorPage, MirrorSwitch
from gatepost.wire.operations import Count


def create_router(operations: Operations) -> Router:
    core = operations.core
    mirror = core.mirror

    async def read_copies(limit: int, wait_secs: float) -> MirrorPage:
        found = await core.read(lambda tx: mirror.read_page(tx, limit))
        if found.messages or not wait_secs:
            return found
        added = mirror.next_copy()
        try:
            if await operations.waits.wait_for(added, wait_secs):
                # The copy is in the commit group being written: wait until it is on disk.
                await core.commit(lambda tx: None)
        finally:
            added.cancel()
        return await core.read(lambda tx: mirror.read_page(tx, limit))

    def switch_mirror(tx: Tx, on: bool) -> None:
        mirror.switch(tx, on)
        record_audit_entry(tx, "operator", "mirror.switch", "on" if on else "off", "")

    @get("/", summary="Messages that wait for the legacy document, oldest first; may wait for one")
    async def copies(
        request: AnyRequest, limit: PageSize = 100, wait_secs: RoomWaitSecs = 0.0
    ) -> MirrorPage:
        return await while_connected(request, read_copies(limit, wait_secs))

    @put("/", summary="Switch the mirror of sends on or off")
    async def switch(data: JSONBody[MirrorSwitch]) -> MirrorPage:
        await core.commit(lambda tx: switch_mirror(tx, data.on))
        return await read_copies(1, 0)

    @post("/done", status_code=200, summary="Remove messages that are in the legacy document")
    async def done(data: JSONBody[MirrorDone]) -> Count:
        return Count(count=await core.commit(lambda tx: mirror.remove_copies(tx, data.through)))

    return Router("/v1/mirror", route_handlers=[copies, switch, done])
