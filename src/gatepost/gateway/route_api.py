"""Operator API for routes: /v1/room/routes.

A route is a node's claim of how to reach an agent, or any agent of a node. Backbone nodes may set
any route, an edge node only its own and those of its agents. Of several claims the latest epoch
counts.
"""

from typing import Any

from litestar.params import FromPath, JSONBody

from gatepost.errors import Conflict, Forbidden, NotFound, UnknownNode
from gatepost.events import check_agent_id
from gatepost.gateway.room import RoomKeeper
from gatepost.gateway.route import delete, get, put
from gatepost.gateway.views import NewRoute, RouteView
from gatepost.journal.audit import record_audit_entry
from gatepost.room import RoutingRecord, claim_key
from gatepost.room.records import key_subject

Name = FromPath[str]


class RouteApi:
    def __init__(self, replica: RoomKeeper) -> None:
        self._keeper = replica
        self._me = replica.core.node.id

    def list(self) -> list[RouteView]:
        return [self._shown(target) for target in sorted(self._keeper.current.effective.routing)]

    def get(self, target: str) -> RouteView:
        if target not in self._keeper.current.effective.routing:
            raise NotFound(f"there is no route for {target!r}; `gatepost route list` shows all")
        return self._shown(target)

    async def set(self, target: str, wanted: NewRoute) -> RouteView:
        self._check_say(target)
        owner = wanted.owner or self._owner(target)
        self._check_nodes(owner, *wanted.fallbacks)
        async with self._keeper.speaking:
            known = self._keeper.current.effective.routing.get(target)
            record = RoutingRecord(
                owner_node_id=owner,
                fallback_node_ids=wanted.fallbacks,
                requires_capabilities=wanted.requires,
                priority_default=wanted.priority,
                epoch=1 if known is None else known.epoch + 1,
            )
            await self._say(target, record, "route.set")
        return self.get(target)

    async def remove(self, target: str) -> RouteView:
        """Withdraw our own claim; an earlier claim of another node counts again."""
        shown = self.get(target)
        if shown.set_by != self._me:
            raise Conflict(
                f"the route for {target} was set by {shown.set_by}: remove it there, or set another"
            )
        await self._say(target, None, "route.remove")
        return shown

    async def _say(self, target: str, record: RoutingRecord | None, action: str) -> None:
        await self._keeper.publish({("routing", claim_key(target, self._me)): record})
        detail = "" if record is None else f"epoch {record.epoch}"
        await self._keeper.core.commit(
            lambda tx: record_audit_entry(tx, "operator", action, target, detail)
        )

    def _check_say(self, target: str) -> None:
        """Raise Forbidden for a route the room would ignore."""
        view = self._keeper.current.effective
        own = view.nodes.get(self._me)
        owned = view.agents.get(target)
        mine = self._me in (target, owned.gateway if owned else None)
        if own is None or not (own.is_backbone or mine):
            raise Forbidden(
                f"this node may not set the route for {target}: it is an edge node, and {target}"
                " does not live here; set it on a backbone node, or where it lives"
            )

    def _owner(self, target: str) -> str:
        """Return the gateway that owns the agent, or the node itself."""
        view = self._keeper.current.effective
        owned = view.agents.get(target)
        if owned is not None and owned.gateway is not None:
            return owned.gateway
        if target in view.nodes:
            return target
        raise UnknownNode(f"the room does not know where {target!r} lives; name its --owner")

    def _check_nodes(self, *nodes: str) -> None:
        for node in nodes:
            if node not in self._keeper.current.effective.nodes:
                raise UnknownNode(f"no node {node!r} is in the room; `gatepost nodes` shows all")

    def _shown(self, target: str) -> RouteView:
        rule = self._keeper.current.effective.routing[target]
        return RouteView(
            target,
            rule.owner_node_id,
            rule.fallback_node_ids,
            rule.requires_capabilities,
            rule.priority_default,
            rule.epoch,
            self._writer(target, rule),
        )

    def _writer(self, target: str, rule: RoutingRecord) -> str:
        room = self._keeper.current
        members = room.effective.nodes
        claims = (s for s in room.document if s.map == "routing" and key_subject(s.key) == target)
        writers = (members[s.writer] for s in claims if s.writer in members and s.data == rule)
        return min(writers, key=lambda member: member.rank).id


def routes(api: RouteApi) -> list[Any]:
    path = "/v1/room/routes/{target:str}"

    @get("/v1/room/routes", summary="Every route of the room")
    async def all_routes() -> list[RouteView]:
        return api.list()

    @get(path, summary="How an agent, or any agent of a node, is reached")
    async def route(target: Name) -> RouteView:
        return api.get(check_agent_id(target))

    @put(path, summary="Set a route")
    async def set_route(target: Name, data: JSONBody[NewRoute]) -> RouteView:
        return await api.set(check_agent_id(target), data)

    @delete(path, status_code=200, summary="Withdraw a route of this node")
    async def remove_route(target: Name) -> RouteView:
        return await api.remove(check_agent_id(target))

    return [all_routes, route, set_route, remove_route]
