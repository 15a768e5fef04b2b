"""Operator API for the room: invites, joining, nodes, revocation and rotation (/v1/room)."""

from typing import Any, Literal

from litestar.params import JSONBody
from msgspec import Raw

from gatepost.access import MeshSecretStore, NodeRevoker, node_invites
from gatepost.access.node_directory import KnownNode
from gatepost.access.node_invites import IssuedNodeInvite, NodeInvite
from gatepost.delivery.inbox.cursors import last_read_seq
from gatepost.errors import Conflict, Forbidden, UnknownNode
from gatepost.events import check_node_id, fingerprint_key
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.journal import Tx, outbox_reads
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.facts import save_fact
from gatepost.links.outbox_replica import last_replicated_seq
from gatepost.links.service.bootstrap_client import BootstrapClient
from gatepost.links.service.dialer import Dialer
from gatepost.links.service.join_client import JoinedPeer, http_url
from gatepost.links.service.reach_checks import ReachChecks
from gatepost.listening.route_decorators import delete, get, post, put
from gatepost.listening.route_parameters import PathName, RoomWaitSecs, SeenCount
from gatepost.room import (
    InviteRecord,
    RevocationRecord,
    RoomMember,
    StandingRecord,
    claim_key,
    store,
)
from gatepost.room.records import MAX_STANDING, standing_key
from gatepost.room.roles import Act
from gatepost.room.service.record_announcer import RecordAnnouncer, RecordChanges
from gatepost.room.service.room_coordinator import RoomCoordinator
from gatepost.wire.gateway_views import PeerStatus
from gatepost.wire.room_views import (
    InviteResult,
    InviteView,
    JoinMeshRequest,
    JoinRequest,
    JoinResult,
    NewInvite,
    NodeIdentity,
    NodeList,
    NodeView,
    PeerReach,
    RecordView,
    RevocationView,
    RevokedView,
    RevokeRequest,
    RoomView,
    RotateResult,
    VerifyResult,
)

_SECOND_MS = 1000


class RoomApi:
    def __init__(
        self,
        announcer: RecordAnnouncer,
        dialer: Dialer,
        peers: PeerStatuses,
        room_coordinator: RoomCoordinator,
        bootstrap: BootstrapClient,
        reach: ReachChecks,
    ) -> None:
        self._announcer = announcer
        self._replica = announcer.replica
        self._core = announcer.replica.core
        self._dialer = dialer
        self._peers = peers
        self._room_coordinator = room_coordinator
        self._bootstrap = bootstrap
        self._reach = reach

    async def issue_invite(self, wanted: NewInvite) -> InviteResult:
        issued: IssuedNodeInvite = await self._replica.found_room(
            lambda tx: self._issue_in(tx, wanted)
        )
        await self._publish_invite(issued.invite)
        return InviteResult(issued.token, self._seed_url(), self._invite_view(issued.invite))

    def _issue_in(self, tx: Tx, wanted: NewInvite) -> IssuedNodeInvite:
        return node_invites.issue_node_invite(
            tx,
            self._replica.create_issuer(),
            tier=wanted.tier,
            ttl=wanted.ttl_secs * _SECOND_MS,
            actor="operator",
            expected_node_id=wanted.node,
            tls_pin=self._replica.tls_pin,
        )

    async def list_invites(self) -> list[InviteView]:
        return [
            self._invite_view(invite)
            for invite in await self._core.read(node_invites.list_node_invites)
        ]

    async def withdraw_invite(self, id: str) -> InviteView:
        invite = await self._core.commit(
            lambda tx: node_invites.revoke_node_invite(tx, id, "operator")
        )
        await self._publish_invite(invite)
        return self._invite_view(invite)

    async def choose_node_id(self, wanted: NodeIdentity) -> NodeIdentity:
        """Take another node id and start again. Only a gateway that no other knows yet can."""
        current, id = self._core.node.id, check_node_id(wanted.id)
        if id == current:
            return NodeIdentity(current)
        if self._core.settings.node.id:
            raise Conflict(f"the settings name this gateway {current!r}: change `node.id` there")
        if self._replica.room is not None:
            raise Conflict(f"the room knows this gateway as {current!r}: that is its name for good")
        await self._core.commit(lambda tx: _change_node_id(tx, current, id))
        self._core.restart_wanted.set()
        return NodeIdentity(id)

    async def join_room(self, wanted: JoinRequest) -> JoinResult:
        return self._join_result(await self._dialer.join_room(wanted.seed, wanted.token, wanted.ca))

    async def join_mesh(self, wanted: JoinMeshRequest) -> JoinResult:
        way = (wanted.via, wanted.descriptor)
        return self._join_result(await self._bootstrap.join_mesh(*way, wanted.secret, wanted.ca))

    def _join_result(self, peer: JoinedPeer) -> JoinResult:
        tier = self._replica.author.chain[-1].tier
        return JoinResult(peer.id, peer.welcome.genesis.node, tier)

    async def list_nodes(self) -> NodeList:
        room = self._replica.current_room
        peers = {peer.id: peer for peer in await self._peers.describe_peers()}
        members = sorted(room.effective.nodes.values(), key=lambda member: member.rank)
        revoked = [
            RevokedView(node, fingerprint_key(key))
            for node, key in room.effective.membership.revoked
        ]
        nodes = NodeList(
            [self._node_view(m, peers.get(m.id)) for m in members],
            revoked,
            dict(self._dialer.problems),
            self._peers.mesh_problems(),
        )
        await self._replica.wait_until_routed()
        return nodes

    async def check_reach(self) -> list[PeerReach]:
        return await self._reach.check_peers()

    async def revoke_node(self, node: str, wanted: RevokeRequest) -> RevocationView:
        known = await self._core.read(lambda tx: self._replica.directory.by_id(tx, node))
        self._check_revocable(node, known)
        assert known is not None
        last_seq = await self._core.commit(lambda tx: self._stop_honouring(tx, node, wanted))
        record, parts = self._revocation_records(known, last_seq, wanted)
        revoker = self._create_revoker()
        key = claim_key(node, self._core.node.id)

        def revoke_sessions(tx: Tx) -> list[str]:
            standing = wanted.standing
            options: Any = {"last_seq": last_seq, "reason": wanted.reason, "standing": standing}
            return revoker.revoke_node(tx, node, actor="operator", **options).sessions

        try:
            await self._announcer.publish_records(parts)
            sessions = await self._announcer.commit_with("nodes", key, record, revoke_sessions)
        except BaseException:
            self._core.delivery.routes.honoured_seqs.pop(node, None)
            raise
        ended = self._replica.connections.end_sessions(sessions, node)
        return RevocationView(node, record.revoked_at, ended, last_seq)

    def _stop_honouring(self, tx: Tx, node: str, wanted: RevokeRequest) -> int:
        """Ignore further events of a node; return the last seq that counts."""
        known = max(last_read_seq(tx, node), last_replicated_seq(tx, node))
        last_seq = known if wanted.last_seq is None else wanted.last_seq
        routes = self._core.delivery.routes
        tx.add_effect(lambda: routes.limit_honoured(node, last_seq))
        return last_seq

    def _check_revocable(self, node: str, known: KnownNode | None) -> None:
        """Raise, with the reason, for a revocation the room would ignore."""
        if known is None:
            raise UnknownNode(f"no node {node!r} is known here; `gatepost nodes` shows all")
        if known.revoked:
            raise Conflict(f"node {node} was revoked before; a revocation is permanent")
        members = self._replica.current_room.effective.nodes
        own, other = members.get(self._core.node.id), members.get(node)
        if own is None or not own.may(Act.REVOKE_NODE):
            raise Forbidden("only a backbone node of the room can revoke others")
        if other is not None and other.rank <= own.rank:
            raise Forbidden(f"{node} is senior to this node; revoke it from a node senior to it")

    def _revocation_records(
        self, known: KnownNode, last_seq: int, wanted: RevokeRequest
    ) -> tuple[RevocationRecord, RecordChanges]:
        """The revocation, and the records with the standing keys that do not fit into it."""
        admitted = self._replica.members.admitted_by(None, known.node_id)
        kept = sorted(
            fingerprint_key(each.public_key)
            for each in admitted
            if wanted.standing is None or each.node_id in wanted.standing
        )
        key = fingerprint_key(known.public_key)
        starts = range(MAX_STANDING, len(kept), MAX_STANDING)
        parts = {
            ("standing", standing_key(key, part, self._core.node.id)): StandingRecord(
                standing=tuple(kept[start : start + MAX_STANDING])
            )
            for part, start in enumerate(starts)
        }
        record = RevocationRecord(
            key=key,
            standing=tuple(kept[:MAX_STANDING]),
            standing_parts=len(parts),
            last_seq=last_seq,
            revoked_at=self._core.clock.now(),
        )
        return record, parts

    def _create_revoker(self) -> NodeRevoker:
        issuer = self._replica.create_issuer()
        return NodeRevoker(issuer, self._replica.directory, MeshSecretStore(issuer))

    async def show_room(self, seen: int, wait_secs: float) -> RoomView:
        await self._replica.changes.wait_for_change(seen, wait_secs)
        room = self._replica.current_room
        records = [
            RecordView(
                s.map, s.key, s.version, s.writer, _record_state(s.data), Raw(s.text.encode())
            )
            for s in sorted(room.document, key=lambda s: s.slot_key)
        ]
        incidents = dict(self._replica.connections.incident_counts)
        changes = self._replica.changes.count
        genesis, key = room.genesis.node, room.genesis.key.hex()
        return RoomView(room.id, genesis, key, room.epoch, changes, records, incidents)

    async def verify_records(self) -> VerifyResult:
        """Check the signature of every stored record, and show who signed one version twice."""
        genesis = self._replica.current_room.genesis
        found = await self._core.read(
            lambda tx: [e.message for e in store.find_violations(tx, genesis)]
        )
        count = await self._core.read(store.count_records)
        twice = await self._core.read(lambda tx: store.load_evidence(tx, genesis))
        found += [
            f"{s.writer} signed version {s.version} of {s.map} {s.key} twice, which no honest"
            f" gateway does; ask its operator, or `gatepost revoke {s.writer}`"
            for s in (proof.first for proof in twice)
        ]
        return VerifyResult(count, found)

    async def rotate_room(self) -> RotateResult:
        """Start a new document without finished records; every gateway follows."""
        moved = await self._room_coordinator.rotate()
        return RotateResult(moved.id, moved.epoch, len(moved.document))

    async def _publish_invite(self, invite: NodeInvite) -> None:
        record = InviteRecord(
            tier=invite.tier,
            expected_node_id=invite.expected_node_id,
            expires_at=invite.expires_at,
            created_by=self._core.node.id,
            used_at=invite.used_at,
            revoked_at=invite.revoked_at,
        )
        await self._announcer.publish_records(
            {("invites", claim_key(invite.id, self._core.node.id)): record}
        )

    def _seed_url(self) -> str | None:
        endpoint = self._replica.endpoint
        return None if endpoint is None else http_url(endpoint)

    def _invite_view(self, invite: NodeInvite) -> InviteView:
        state = invite.state_at(self._core.clock.now())
        times = (invite.created_at, invite.expires_at)
        identity = (invite.id, invite.tier, invite.expected_node_id)
        return InviteView(*identity, state, *times, invite.used_by)

    def _node_view(self, member: RoomMember, peer: PeerStatus | None) -> NodeView:
        connected = sum(c.public_key == member.public_key for c in self._replica.connections)
        record, health = member.record, self._core.health
        return NodeView(
            member.id,
            member.tier,
            health.current_status() if peer is None else peer.status,
            fingerprint_key(member.public_key),
            record.endpoint_ws,
            record.added_by,
            record.last_heartbeat_at,
            connected,
            member.public_key == self._core.node.key.public,
            peer,
            health.describe() if peer is None else peer.state,
        )


def create_routes(api: RoomApi) -> list[Any]:
    @post("/v1/room/invites", status_code=201, summary="Invite a node")
    async def invite(data: JSONBody[NewInvite]) -> InviteResult:
        return await api.issue_invite(data)

    @get("/v1/room/invites", summary="Invites this gateway issued")
    async def invites() -> list[InviteView]:
        return await api.list_invites()

    @delete("/v1/room/invites/{invite_id:str}", status_code=200, summary="Withdraw an invite")
    async def withdraw(invite_id: PathName) -> InviteView:
        return await api.withdraw_invite(invite_id)

    @put("/v1/node", summary="Choose the id of a gateway that no other knows yet; it starts again")
    async def choose_node_id(data: JSONBody[NodeIdentity]) -> NodeIdentity:
        return await api.choose_node_id(data)

    @post("/v1/room/join", status_code=200, summary="Join the room of another gateway")
    async def join(data: JSONBody[JoinRequest]) -> JoinResult:
        return await api.join_room(data)

    @post("/v1/room/join-mesh", status_code=200, summary="Join a mesh with its join secret")
    async def join_mesh(data: JSONBody[JoinMeshRequest]) -> JoinResult:
        return await api.join_mesh(data)

    @get("/v1/room/nodes", summary="Every node of the room")
    async def nodes() -> NodeList:
        return await api.list_nodes()

    @get("/v1/room/reach", summary="How each linked gateway reaches this one")
    async def reach() -> list[PeerReach]:
        return await api.check_reach()

    @post("/v1/room/nodes/{node:str}/revoke", status_code=200, summary="Revoke a node for good")
    async def revoke(node: PathName, data: JSONBody[RevokeRequest]) -> RevocationView:
        return await api.revoke_node(check_node_id(node), data)

    @get("/v1/room", summary="Every record of the room; may wait for a change")
    async def show(seen: SeenCount = -1, wait_secs: RoomWaitSecs = 0.0) -> RoomView:
        return await api.show_room(seen, wait_secs)

    @post("/v1/room/rotate", status_code=200, summary="Move the room to a fresh document")
    async def rotate() -> RotateResult:
        return await api.rotate_room()

    @get("/v1/room/verify", summary="Check the signature of every record kept")
    async def verify() -> VerifyResult:
        return await api.verify_records()

    members = [choose_node_id, invite, invites, withdraw, join, join_mesh, nodes, revoke]
    return [*members, reach, show, rotate, verify]


def _change_node_id(tx: Tx, current: str, id: str) -> None:
    """Every event names its node, so the first event settles the id."""
    if outbox_reads.last_seq(tx):
        raise Conflict(f"this gateway has sent messages as {current!r}: that is its name for good")
    save_fact(tx, "node_id", id)
    record_audit_entry(tx, "operator", "node.choose_id", id, f"was {current}")


def _record_state(data: object) -> Literal["live", "tombstone"]:
    return "tombstone" if data is None else "live"
