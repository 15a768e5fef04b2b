"""The state of the mesh for people and monitoring: GET /v1/mesh, and metrics."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gatepost.errors import Conflict
from gatepost.listening.route_decorators import get, post
from gatepost.listening.route_parameters import RoomWaitSecs, SeenCount
from gatepost.mesh.mesh_node import MeshNode
from gatepost.mesh.messages import MeshRole
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.peer_table import MeshPeer
from gatepost.mesh.service.mesh_service import MeshService
from gatepost.room.service.room_replica import RoomReplica
from gatepost.wire.mesh_views import MeshPeerView, MeshStatusView

# Says in words how a node stands.
DescribeNode = Callable[[str], str]


def describe_mesh(
    replica: RoomReplica, mesh: MeshService | None, describe_node: DescribeNode
) -> MeshStatusView:
    node = replica.core.node.id
    if mesh is None:
        genesis = None if replica.room is None else replica.room.genesis.node
        return MeshStatusView(node, "off", genesis)
    if mesh.node is None:
        state = "publisher" if mesh.publisher() == node else "waiting"
        address = mesh.transport.local_address
        transport = replica.core.settings.mesh.transport
        return MeshStatusView(node, transport, mesh.publisher(), state, address)
    core, election = mesh.node.engine, mesh.node.engine.election
    return MeshStatusView(
        node,
        replica.core.settings.mesh.transport,
        election.publisher,
        election.state.value,
        mesh.transport.local_address,
        core.identity.priority,
        core.identity.may_lead,
        election.honoured,
        _describe_peers(mesh.node, describe_node),
        election.takeovers,
        mesh.suspicions,
        mesh.transport.counts.sent,
        mesh.node.received,
        {refusal.value: count for refusal, count in sorted(mesh.node.refused.items())},
        mesh.changes.count,
        mesh.find_problems(),
        core.is_barred,
    )


def _describe_peers(node: MeshNode, describe_node: DescribeNode) -> list[MeshPeerView]:
    core = node.engine
    return [
        _describe_peer(peer, core.members[peer.id].may_lead, describe_node(peer.id))
        for peer in sorted(core.peers, key=lambda peer: peer.id)
        if peer.id in core.members
    ]


def _describe_peer(peer: MeshPeer, may_lead: bool, state_text: str) -> MeshPeerView:
    now = asyncio.get_running_loop().time()
    return MeshPeerView(
        peer.id,
        peer.state.value,
        (MeshRole.PUBLISHER if peer.is_publisher else MeshRole.STANDBY).value,
        may_lead,
        peer.address,
        peer.priority,
        peer.term,
        round(max(0.0, now - peer.heard_at / 1000), 3),
        [point.data for point in peer.intro_points],
        peer.is_barred,
        state_text,
    )


def create_routes(
    replica: RoomReplica, mesh: MeshService | None, describe_node: DescribeNode
) -> list[Any]:
    @get("/v1/mesh", summary="Who is alive, and who leads; may wait for a change")
    async def show(seen: SeenCount = -1, wait_secs: RoomWaitSecs = 0.0) -> MeshStatusView:
        if mesh is not None:
            await mesh.changes.wait_for_change(seen, wait_secs)
        else:
            await asyncio.sleep(wait_secs if seen == 0 else 0)
        return describe_mesh(replica, mesh, describe_node)

    @post("/v1/mesh/release", summary="Hand the lease of the mesh over", status_code=200)
    async def release() -> MeshStatusView:
        if mesh is None:
            raise Conflict("this gateway is in no mesh")
        await mesh.release_office()
        return describe_mesh(replica, mesh, describe_node)

    return [show, release]


class MeshCollector(Collector):
    """Metrics of a gateway that is in a mesh."""

    def __init__(self, mesh: MeshService) -> None:
        self._mesh = mesh

    def collect(self) -> Iterator[Metric]:
        if (node := self._mesh.node) is None:
            return
        election = node.engine.election
        counter = 0 if election.honoured is None else election.honoured.counter
        yield _gauge("term", "Counter of the term of the publisher.", counter)
        yield _gauge("publisher", "1 while this gateway leads.", election.is_publisher)
        yield self._peers(node)
        yield _counter("takeovers", "Times this gateway became publisher.", election.takeovers)
        yield _counter("suspicions", "Peers that fell silent.", self._mesh.suspicions)
        yield _counter("datagrams_received", "Datagrams that came.", node.received)
        yield _counter("datagrams_sent", "Datagrams sent.", self._mesh.transport.counts.sent)
        yield self._refused(node)
        yield self._clocks(node)
        yield self._backends()

    def _peers(self, node: MeshNode) -> Metric:
        counts = Counter(peer.state for peer in node.engine.peers)
        family = GaugeMetricFamily("gatepost_mesh_peers", "Peers by state.", labels=["state"])
        for state in (PeerState.HINTED, PeerState.ALIVE, PeerState.SUSPECT, PeerState.DEAD):
            family.add_metric([state.value], counts[state])
        return family

    def _backends(self) -> Metric:
        text = "Agents that their own gateway calls unhealthy."
        family = GaugeMetricFamily("gatepost_mesh_unhealthy_agents", text, labels=["node"])
        for node, count in Counter(node for node, _ in self._mesh.unhealthy_agents()).items():
            family.add_metric([node], count)
        return family

    def _clocks(self, node: MeshNode) -> Metric:
        text = "Seconds by which a clock is ahead of the others, while it differs too much."
        family = GaugeMetricFamily("gatepost_mesh_clock_offset_seconds", text, labels=["node"])
        for finding in node.engine.clocks:
            family.add_metric([finding.node], finding.offset_secs)
        return family

    def _refused(self, node: MeshNode) -> Metric:
        text = "Datagrams that did not count, by reason."
        family = CounterMetricFamily("gatepost_mesh_refused", text, labels=["reason"])
        for refusal, count in sorted(node.refused.items()):
            family.add_metric([refusal.value], count)
        return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gatepost_mesh_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"gatepost_mesh_{name}", text, value=float(value))
