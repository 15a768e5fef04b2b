"""Operator API for routes: /v1/room/routes.

A route is a node's claim of how to reach an agent, or any agent of a node. Backbone nodes may set
any route, an edge node only its own and those of its agents. Of several claims the latest epoch
counts.
"""

from typing import Any

from litestar.params import JSONBody

from gatepost.errors import Conflict, Forbidden, NotFound, UnknownNode
from gatepost.events import check_agent_id
from gatepost.events.reserved_names import require_agent_name
from gatepost.journal.audit import record_audit_entry
from gatepost.listening.route_decorators import delete, get, put
from gatepost.listening.route_parameters import PathName
from gatepost.room import RoutingRecord, claim_key
from gatepost.room.records import MAX_EPOCH, key_subject
from gatepost.room.roles import Act
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.wire.room_views import NewRoute, RouteView


class RouteApi:
    def __init__(self, announcer: RecordAnnouncer) -> None:
        self._announcer = announcer
        self._replica = announcer.replica
        self._node_id = announcer.replica.core.node.id

    def list_routes(self) -> list[RouteView]:
        return [
            self._route_view(target)
            for target in sorted(self._replica.current_room.effective.routing)
        ]

    def get_route(self, target: str) -> RouteView:
        if target not in self._replica.current_room.effective.routing:
            raise NotFound(f"there is no route for {target!r}; `gatepost route list` shows all")
        return self._route_view(target)

    async def set_route(self, target: str, wanted: NewRoute) -> RouteView:
        self._check_may_set(target)
        owner = wanted.owner or self._default_owner(target)
        self._replica.check_members(owner, *wanted.fallbacks)
        async with self._announcer.claims_lock:
            known = self._replica.current_room.effective.routing.get(target)
            record = RoutingRecord(
                owner_node_id=owner,
                fallback_node_ids=wanted.fallbacks,
                requires_capabilities=wanted.requires,
                priority_default=wanted.priority,
                # At the highest epoch of all, the claim of the senior node counts.
                epoch=1 if known is None else min(known.epoch + 1, MAX_EPOCH),
            )
            await self._publish_route(target, record, "route.set")
        return self.get_route(target)

    async def remove_route(self, target: str) -> RouteView:
        """Withdraw our own claim; an earlier claim of another node counts again."""
        shown = self.get_route(target)
        if shown.set_by != self._node_id:
            raise Conflict(
                f"the route for {target} was set by {shown.set_by}: remove it there, or set another"
            )
        await self._publish_route(target, None, "route.remove")
        return shown

    async def _publish_route(self, target: str, record: RoutingRecord | None, action: str) -> None:
        key = ("routing", claim_key(target, self._node_id))
        await self._announcer.publish_records({key: record})
        detail = "" if record is None else f"epoch {record.epoch}"
        await self._replica.core.commit(
            lambda tx: record_audit_entry(tx, "operator", action, target, detail)
        )

    def _check_may_set(self, target: str) -> None:
        """Raise Forbidden for a route the room would ignore."""
        view = self._replica.current_room.effective
        own = view.nodes.get(self._node_id)
        owned = view.agents.get(target)
        if target not in view.nodes:
            require_agent_name(target)
        mine = self._node_id in (target, owned.gateway if owned else None)
        if own is None or not (own.may(Act.DESCRIBE_ANY_AGENT) or mine):
            raise Forbidden(
                f"this node may not set the route for {target}: it is an edge node, and {target}"
                " does not live here; set it on a backbone node, or where it lives"
            )

    def _default_owner(self, target: str) -> str:
        """Return the gateway that owns the agent, or the node itself."""
        view = self._replica.current_room.effective
        owned = view.agents.get(target)
        if owned is not None and owned.gateway is not None:
            return owned.gateway
        if target in view.nodes:
            return target
        raise UnknownNode(f"the room does not know where {target!r} lives; name its --owner")

    def _route_view(self, target: str) -> RouteView:
        rule = self._replica.current_room.effective.routing[target]
        return RouteView(
            target,
            rule.owner_node_id,
            rule.fallback_node_ids,
            rule.requires_capabilities,
            rule.priority_default,
            rule.epoch,
            self._find_writer(target, rule),
        )

    def _find_writer(self, target: str, rule: RoutingRecord) -> str:
        room = self._replica.current_room
        members = room.effective.nodes
        claims = (s for s in room.document if s.map == "routing" and key_subject(s.key) == target)
        writers = (members[s.writer] for s in claims if s.writer in members and s.data == rule)
        return min(writers, key=lambda member: member.rank).id


def create_routes(api: RouteApi) -> list[Any]:
    path = "/v1/room/routes/{target:str}"

    @get("/v1/room/routes", summary="Every route of the room")
    async def all_routes() -> list[RouteView]:
        return api.list_routes()

    @get(path, summary="How an agent, or any agent of a node, is reached")
    async def route(target: PathName) -> RouteView:
        return api.get_route(check_agent_id(target))

    @put(path, summary="Set a route")
    async def set_route(target: PathName, data: JSONBody[NewRoute]) -> RouteView:
        return await api.set_route(check_agent_id(target), data)

    @delete(path, status_code=200, summary="Withdraw a route of this node")
    async def remove_route(target: PathName) -> RouteView:
        return await api.remove_route(check_agent_id(target))

    return [all_routes, route, set_route, remove_route]
