"""The master onion service: one address for the whole mesh, with intro points of all its nodes.

Every backbone node opens it in its own Tor process. The nodes name their intro points in the room.
The publisher merges them into one descriptor, and has it published by Tor (HSPOST). The key of the
service is one of the mesh secrets, so only members can open it, and it is another one after a
revocation. A gateway that is not a member yet has no such key: it joins first.

A service has two descriptors, of two periods, and Tor shows only the first one to merge. From the
start of a period until the next shared random value, clients use the second. So the Tor of the
publisher publishes both by itself too; those of the others publish nothing. A merged descriptor
replaces the first one, because its revision is higher.
"""

from msgspec.structs import replace

from gatepost.errors import EncryptionError
from gatepost.mesh.onion.onion_descriptor import (
    OnionIntroPoint,
    OpenedDescriptor,
    build_descriptor,
    merge_intro_points,
    open_descriptor,
)
from gatepost.mesh.onion.onion_identity import OnionIdentity, master_identity
from gatepost.mesh.service.mesh_secret_sharing import MeshSecretSharing
from gatepost.mesh.transports.tor_control import TorCommandFailed, TorControl, TorControlLost
from gatepost.mesh.transports.tor_process import TorProcess
from gatepost.room.roles import Act
from gatepost.room.service.current_publisher import CurrentPublisher
from gatepost.room.service.room_replica import RoomReplica

_MAX_OWN_POINTS = 4
# How often a descriptor is published again, because directories forget it or change.
_MAX_REPUBLISH_MS = 600_000
_REPUBLISHED_PER_PERIOD = 8
_PublishedState = tuple[bytes, tuple[OnionIntroPoint, ...]]


class MasterOnionService:
    """`port` is (port of the service, HOST:PORT of the gateway)."""

    def __init__(
        self,
        replica: RoomReplica,
        sharing: MeshSecretSharing,
        current: CurrentPublisher,
        tor: TorProcess,
        port: tuple[int, str],
    ) -> None:
        self._replica = replica
        self._core = replica.core
        self._sharing = sharing
        self._current = current
        self._tor = tor
        self._port = port
        self._opened: OnionIdentity | None = None
        self._published: _PublishedState | None = None
        self._published_at = 0
        self._is_publishing = False
        period_ms = self._core.settings.tor.period_minutes * 60_000
        self._republish_ms = min(_MAX_REPUBLISH_MS, period_ms // _REPUBLISHED_PER_PERIOD)

    async def serve_once(self) -> None:
        """Open the service, share its intro points, and publish, as far as something changed."""
        identity = await self._wanted_identity()
        if identity is not None:
            try:
                control = await self._open_service(identity)
                await self._share_and_publish(control, identity)
            except (TorCommandFailed, TorControlLost):
                # The connection and the service may be lost: start again.
                self._opened, self._is_publishing = None, False
                await self._tor.stop()
                raise

    async def _wanted_identity(self) -> OnionIdentity | None:
        """The key of the service, if this node is to answer there."""
        room, settings = self._replica.room, self._core.settings.bootstrap
        member = None if room is None else room.effective.nodes.get(self._core.node.id)
        if member is None or not member.may(Act.ADMIT_NODE) or not settings.accept_joins:
            return None
        secrets = await self._sharing.current_secrets()
        return None if secrets is None else master_identity(secrets)

    async def _open_service(self, identity: OnionIdentity) -> TorControl:
        control = self._tor.control or await self._tor.start()
        if self._opened != identity:
            if self._opened is not None:
                await control.delete_onion(self._opened.host)
            await control.add_onion(identity.key_blob, [self._port])
            self._opened, self._published = identity, None
        return control

    async def _share_and_publish(self, control: TorControl, identity: OnionIdentity) -> None:
        await self._let_tor_publish(control, self._current.is_this_node())
        own = await self._read_own_points(control, identity)
        if own is None:
            return
        packed = tuple(point.pack() for point in own.points[:_MAX_OWN_POINTS])
        self._replica.transport = replace(
            self._replica.transport, master_onion=identity.host, master_points=packed
        )
        if self._current.is_this_node():
            await self._publish_merged(control, identity, own)

    async def _let_tor_publish(self, control: TorControl, wanted: bool) -> None:
        if wanted != self._is_publishing:
            await control.ask(f"SETCONF PublishHidServDescriptors={int(wanted)}")
            self._is_publishing = wanted

    async def _read_own_points(
        self, control: TorControl, identity: OnionIdentity
    ) -> OpenedDescriptor | None:
        """The descriptor that our Tor would publish; None until it has intro points."""
        name = identity.host.removesuffix(".onion")
        try:
            text = await control.read_info(f"hs/service/desc/id/{name}")
            opened = open_descriptor(text, identity)
        except (TorCommandFailed, EncryptionError):
            return None
        return opened if opened.points else None

    async def _publish_merged(
        self, control: TorControl, identity: OnionIdentity, own: OpenedDescriptor
    ) -> None:
        points = tuple(merge_intro_points([own.points, *self._points_of_others(identity)]))
        now, state = self._core.clock.now(), (own.blinded_key, points)
        is_recent = self._published_at <= now < self._published_at + self._republish_ms
        if state == self._published and is_recent:
            return
        minutes = self._core.settings.tor.period_minutes
        try:
            text = build_descriptor(identity, own.blinded_key, points, self._core.clock, minutes)
        except EncryptionError:
            # The period of this descriptor is over, and our Tor publishes the next one by itself.
            return
        await control.ask(f"HSPOST HSADDRESS={identity.host.removesuffix('.onion')}", text)
        self._published, self._published_at = state, now

    def _points_of_others(self, identity: OnionIdentity) -> list[list[OnionIntroPoint]]:
        """The intro points that other backbone members named for this very service."""
        room = self._replica.current_room
        found = []
        for node, record in sorted(room.effective.transports.items()):
            member = room.effective.nodes.get(node)
            counts = member is not None and member.may(Act.ADMIT_NODE)
            if counts and node != self._core.node.id and record.master_onion == identity.host:
                found.append(_unpack_points(record.master_points))
        return found


def _unpack_points(packed: tuple[str, ...]) -> list[OnionIntroPoint]:
    points = []
    for text in packed:
        try:
            points.append(OnionIntroPoint.unpack(text))
        except EncryptionError:
            continue
    return points
