"""What the pages read: each a call of the operator's API, side by side."""

import asyncio
from collections.abc import Awaitable, Iterable

from msgspec import Struct

from gatepost.errors import GatepostError
from gatepost.web.api_calls import ApiCalls
from gatepost.wire.gateway_views import MailboxCounts, UndeliveredPage
from gatepost.wire.mesh_views import MeshStatusView
from gatepost.wire.operations import DeadLetter, DeadLetters
from gatepost.wire.room_views import NodeList

_MAX_BOXES = 40


class MeshView(Struct, frozen=True):
    """The nodes of the room, and who leads. Without a room there is neither."""

    nodes: NodeList | None
    mesh: MeshStatusView

    @property
    def publisher(self) -> str | None:
        return self.mesh.publisher


class BoxLetter(Struct, frozen=True):
    mailbox: str
    letter: DeadLetter


async def read_mesh(calls: ApiCalls) -> MeshView:
    nodes, mesh = await asyncio.gather(
        _or_none(calls.get("/v1/room/nodes", NodeList)), calls.get("/v1/mesh", MeshStatusView)
    )
    return MeshView(nodes, mesh)


async def _or_none(call: Awaitable[NodeList]) -> NodeList | None:
    """None where there is no room yet."""
    try:
        return await call
    except GatepostError:
        return None


async def read_dead_letters(
    calls: ApiCalls, limit: int, mailbox: str = "", **wanted: str | None
) -> list[BoxLetter]:
    """Dead letters that were not replayed, of one mailbox or of all."""
    boxes = await calls.get("/v1/mailboxes", list[MailboxCounts])
    names = [b.name for b in boxes if b.dead_letters and mailbox in ("", b.name)][:_MAX_BOXES]
    pages = await asyncio.gather(*(_letters_of(calls, name, limit, wanted) for name in names))
    found = [letter for page in pages for letter in page]
    found.sort(key=lambda each: -each.letter.failed_at)
    return found[:limit]


async def _letters_of(
    calls: ApiCalls, name: str, limit: int, wanted: dict[str, str | None]
) -> Iterable[BoxLetter]:
    path = f"/v1/mailboxes/{name}/dead-letters"
    page = await calls.get(path, DeadLetters, limit=limit, replayed=False, **wanted)
    return [BoxLetter(name, letter) for letter in page.messages]


async def read_undelivered(calls: ApiCalls, limit: int) -> UndeliveredPage:
    return await calls.get("/v1/undelivered/", UndeliveredPage, limit=limit, replayed=False)
