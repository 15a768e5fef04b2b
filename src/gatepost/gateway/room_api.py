"""Operator API for the room: invites, joining, nodes, revocation and rotation (/v1/room)."""

from typing import Annotated, Any, Literal

from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Raw

from gatepost.access import MeshSecretStore, NodeRevoker, node_invites
from gatepost.access.node_directory import KnownNode
from gatepost.access.node_invites import IssuedNodeInvite, NodeInvite
from gatepost.errors import Conflict, Forbidden, UnknownNode
from gatepost.events import check_node_id, fingerprint_key
from gatepost.gateway.dial import Dialer
from gatepost.gateway.room import RoomKeeper
from gatepost.gateway.route import delete, get, post
from gatepost.gateway.views import (
    Invited,
    InviteView,
    Joined,
    Joining,
    NewInvite,
    Nodes,
    NodeView,
    RecordView,
    RevocationView,
    RevokedView,
    Revoking,
    RoomView,
    Rotated,
    Verified,
)
from gatepost.journal import Tx
from gatepost.room import (
    CoordinationRecord,
    CoordinatorTerm,
    RecordRetention,
    RevocationRecord,
    RoomMember,
    SharedRoom,
    claim_key,
    store,
)
from gatepost.room import InviteRecord as InviteRecord

Name = FromPath[str]
WaitSecs = Annotated[float, QueryParameter(ge=0, le=60)]
Seen = Annotated[int, QueryParameter(ge=-1)]

_SECOND = 1000
_SWEEP_SECS = 600


class RoomApi:
    def __init__(self, replica: RoomKeeper, dialer: Dialer) -> None:
        self._keeper = replica
        self._core = replica.core
        self._dialer = dialer

    async def invite(self, wanted: NewInvite) -> Invited:
        issued: IssuedNodeInvite = await self._keeper.found(lambda tx: self._issue(tx, wanted))
        await self._publish(issued.invite)
        return Invited(issued.token, self._seed(), self._view(issued.invite))

    def _issue(self, tx: Tx, wanted: NewInvite) -> IssuedNodeInvite:
        return node_invites.issue_node_invite(
            tx,
            self._keeper.issuer(),
            tier=wanted.tier,
            ttl=wanted.ttl_secs * _SECOND,
            actor="operator",
            expected_node_id=wanted.node,
        )

    async def invites(self) -> list[InviteView]:
        return [
            self._view(invite) for invite in await self._core.read(node_invites.list_node_invites)
        ]

    async def withdraw(self, id: str) -> InviteView:
        invite = await self._core.commit(
            lambda tx: node_invites.revoke_node_invite(tx, id, "operator")
        )
        await self._publish(invite)
        return self._view(invite)

    async def join(self, wanted: Joining) -> Joined:
        peer = await self._dialer.join(wanted.seed, wanted.token)
        tier = self._keeper.author.chain[-1].tier
        return Joined(peer.id, peer.welcome.genesis.node, tier)

    def nodes(self) -> Nodes:
        room = self._keeper.current
        members = sorted(room.effective.nodes.values(), key=lambda member: member.rank)
        revoked = [
            RevokedView(node, fingerprint_key(key))
            for node, key in room.effective.membership.revoked
        ]
        return Nodes([self._node(m) for m in members], revoked, dict(self._dialer.problems))

    async def revoke(self, node: str, wanted: Revoking) -> RevocationView:
        known = await self._core.read(lambda tx: self._keeper.directory.by_id(tx, node))
        self._check_revocable(node, known)
        assert known is not None
        record = self._revocation(known, wanted)
        revoker = self._revoker()
        key = claim_key(node, self._core.node.id)

        def revoke_sessions(tx: Tx) -> list[str]:
            options: Any = {"last_seq": wanted.last_seq, "reason": wanted.reason}
            return revoker.revoke_node(tx, node, actor="operator", **options).sessions

        sessions = await self._keeper.commit_with("nodes", key, record, revoke_sessions)
        ended = self._keeper.end_sessions(sessions, node)
        return RevocationView(node, record.revoked_at, ended)

    def _check_revocable(self, node: str, known: KnownNode | None) -> None:
        """Raise, with the reason, for a revocation the room would ignore."""
        if known is None:
            raise UnknownNode(f"no node {node!r} is known here; `gatepost nodes` shows all")
        if known.revoked:
            raise Conflict(f"node {node} was revoked before; a revocation is permanent")
        members = self._keeper.current.effective.nodes
        own, other = members.get(self._core.node.id), members.get(node)
        if own is None or not own.is_backbone:
            raise Forbidden("only a backbone node of the room can revoke others")
        if other is not None and other.rank <= own.rank:
            raise Forbidden(f"{node} is senior to this node; revoke it from a node senior to it")

    def _revocation(self, known: KnownNode, wanted: Revoking) -> RevocationRecord:
        kept = self._keeper.known.admitted_by(None, known.node_id)
        return RevocationRecord(
            key=fingerprint_key(known.public_key),
            standing=tuple(sorted(fingerprint_key(each.public_key) for each in kept)),
            last_seq=wanted.last_seq,
            revoked_at=self._core.clock.now(),
        )

    def _revoker(self) -> NodeRevoker:
        issuer = self._keeper.issuer()
        return NodeRevoker(issuer, self._keeper.directory, MeshSecretStore(issuer))

    async def show(self, seen: int, wait_secs: float) -> RoomView:
        await self._keeper.changed_since(seen, wait_secs)
        room = self._keeper.current
        records = [
            RecordView(s.map, s.key, s.version, s.writer, _state(s.data), Raw(s.text.encode()))
            for s in sorted(room.document, key=lambda s: s.slot_key)
        ]
        incidents = dict(self._keeper.incidents)
        changes = self._keeper.changes
        return RoomView(room.id, room.genesis.node, room.epoch, changes, records, incidents)

    async def verify(self) -> Verified:
        """Check the signature of every stored record."""
        genesis = self._keeper.current.genesis
        found = await self._core.read(
            lambda tx: [e.message for e in store.find_violations(tx, genesis)]
        )
        count = await self._core.read(
            lambda tx: tx.fetch_all("SELECT count(*) FROM room_record")[0][0]
        )
        return Verified(count, found)

    async def rotate(self) -> Rotated:
        """Start a new document without finished records; every gateway follows."""
        room = self._keeper.current
        if self._keeper.issuer().tier != "backbone":
            raise Forbidden("an edge node cannot rotate the room; run this on a backbone node")
        key = ("coordination", claim_key("coordinator", self._core.node.id))
        await self._keeper.publish({key: self._next_term(room)})
        await self._keeper.follow_epoch()
        moved = self._keeper.current
        return Rotated(moved.id, moved.epoch, len(moved.document))

    def _next_term(self, room: SharedRoom) -> CoordinationRecord:
        known, node = room.effective.coordination, self._core.node.id
        return CoordinationRecord(
            coordinator=node,
            term=CoordinatorTerm(counter=1 if known is None else known.term.counter + 1, node=node),
            sweep_every_seconds=_SWEEP_SECS if known is None else known.sweep_every_seconds,
            retention=RecordRetention() if known is None else known.retention,
            room_epoch=room.epoch + 1,
        )

    async def _publish(self, invite: NodeInvite) -> None:
        record = InviteRecord(
            tier=invite.tier,
            expected_node_id=invite.expected_node_id,
            expires_at=invite.expires_at,
            created_by=self._core.node.id,
            used_at=invite.used_at,
            revoked_at=invite.revoked_at,
        )
        await self._keeper.publish({("invites", claim_key(invite.id, self._core.node.id)): record})

    def _seed(self) -> str | None:
        endpoint = self._keeper.endpoint
        return None if endpoint is None else "http" + endpoint.removeprefix("ws")

    def _view(self, invite: NodeInvite) -> InviteView:
        state = invite.state_at(self._core.clock.now())
        times = (invite.created_at, invite.expires_at)
        identity = (invite.id, invite.tier, invite.expected_node_id)
        return InviteView(*identity, state, *times, invite.used_by)

    def _node(self, member: RoomMember) -> NodeView:
        connected = sum(c.public_key == member.public_key for c in self._keeper.connections)
        record = member.record
        return NodeView(
            member.id,
            member.tier,
            record.status,
            fingerprint_key(member.public_key),
            record.endpoint_ws,
            record.added_by,
            record.last_heartbeat_at,
            connected,
            member.public_key == self._core.node.key.public,
        )


def routes(api: RoomApi) -> list[Any]:
    @post("/v1/room/invites", status_code=201, summary="Invite a node")
    async def invite(data: JSONBody[NewInvite]) -> Invited:
        return await api.invite(data)

    @get("/v1/room/invites", summary="Invites this gateway issued")
    async def invites() -> list[InviteView]:
        return await api.invites()

    @delete("/v1/room/invites/{invite_id:str}", status_code=200, summary="Withdraw an invite")
    async def withdraw(invite_id: Name) -> InviteView:
        return await api.withdraw(invite_id)

    @post("/v1/room/join", status_code=200, summary="Join the room of another gateway")
    async def join(data: JSONBody[Joining]) -> Joined:
        return await api.join(data)

    @get("/v1/room/nodes", summary="Every node of the room")
    async def nodes() -> Nodes:
        return api.nodes()

    @post("/v1/room/nodes/{node:str}/revoke", status_code=200, summary="Revoke a node for good")
    async def revoke(node: Name, data: JSONBody[Revoking]) -> RevocationView:
        return await api.revoke(check_node_id(node), data)

    @get("/v1/room", summary="Every record of the room; may wait for a change")
    async def show(seen: Seen = -1, wait_secs: WaitSecs = 0.0) -> RoomView:
        return await api.show(seen, wait_secs)

    @post("/v1/room/rotate", status_code=200, summary="Move the room to a fresh document")
    async def rotate() -> Rotated:
        return await api.rotate()

    @get("/v1/room/verify", summary="Check the signature of every record kept")
    async def verify() -> Verified:
        return await api.verify()

    return [invite, invites, withdraw, join, nodes, revoke, show, rotate, verify]


def _state(data: object) -> Literal["live", "tombstone"]:
    return "tombstone" if data is None else "live"
