"""The onion service of the mesh, with a control port that only remembers."""

from pathlib import Path
from typing import Any

import pytest

from gatepost.access import MeshSecretStore
from gatepost.mesh.onion.onion_blinding import blind_key
from gatepost.mesh.onion.onion_descriptor import OnionIntroPoint, build_descriptor, open_descriptor
from gatepost.mesh.onion.onion_identity import OnionIdentity, master_identity
from gatepost.mesh.service.master_onion import MasterOnionService
from gatepost.mesh.service.mesh_secret_sharing import MeshSecretSharing
from gatepost.mesh.transports.tor_control import TorCommandFailed, TorControlLost
from gatepost.mesh.transports.tor_process import TorProcess
from gatepost.room import RecordAuthor, TransportRecord, sign_admission
from gatepost.room.service.current_publisher import CurrentPublisher
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.testing import ManualClock
from gatepost.wire.operations import Tier
from tests.room.sample_records import key, node, update

pytestmark = pytest.mark.anyio


def point(number: int) -> OnionIntroPoint:
    keys = [bytes([number, kind]) * 16 for kind in range(4)]
    return OnionIntroPoint(keys[0], keys[1], keys[2], keys[3], b"link" + bytes([number]))


def named_points(identity: OnionIdentity, *numbers: int) -> TransportRecord:
    packed = tuple(point(number).pack() for number in numbers)
    return TransportRecord(master_onion=identity.host, master_points=packed)


class FakeControl:
    """Tor, as far as the service sees it: it has intro points, and remembers what is posted."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.identity: OnionIdentity | None = None
        self.points = [point(1), point(2)]
        self.posted: list[str] = []
        self.opened: list[str] = []
        self.deleted: list[str] = []
        self.settings: list[str] = []
        self.is_lost = False

    async def add_onion(self, key_blob: str, ports: object) -> str:
        self.opened.append(key_blob)
        return ""

    async def delete_onion(self, host: str) -> None:
        self.deleted.append(host)

    async def read_info(self, name: str) -> str:
        if self.is_lost:
            raise TorControlLost("Tor closed its control port")
        if self.identity is None:
            raise TorCommandFailed("552 not yet")
        blinded = blind_key(self.identity, self.clock.now() // 60_000 // 1440).public_key
        return build_descriptor(self.identity, blinded, self.points, self.clock)

    async def ask(self, command: str, data: str | None = None) -> list[str]:
        if command.startswith("HSPOST"):
            self.posted.append(data or "")
        else:
            self.settings.append(command)
        return ["OK"]

    async def close(self) -> None:
        return


class World:
    def __init__(self, replica: RoomReplica, clock: ManualClock, folder: Path) -> None:
        self.replica = replica
        self.clock = clock
        self.control = FakeControl(clock)
        self.tor = tor = TorProcess(folder)
        control: Any = self.control
        tor.control = control
        current = CurrentPublisher(replica, lambda: self.announcer)
        self.announcer = "ann"
        sharing = MeshSecretSharing(RecordAnnouncer(replica), current)
        port = (80, "127.0.0.1:1")
        self.service = MasterOnionService(replica, sharing, current, tor, port)

    async def rotate(self) -> OnionIdentity:
        store = MeshSecretStore(self.replica.create_issuer())
        identity = master_identity(await self.replica.core.commit(store.rotate_secrets))
        self.control.identity = identity
        return identity

    def posted_points(self, identity: OnionIdentity) -> set[OnionIntroPoint]:
        return set(open_descriptor(self.control.posted[-1], identity).points)

    def admit(self, name: str, tier: Tier, record: TransportRecord) -> None:
        own, room = self.replica.author, self.replica.current_room
        link = sign_admission(own.key, "ann", name, key(name).public, tier, 1)
        author = RecordAuthor(key(name), (link,))
        for map, data in {"nodes": node(author, room.genesis), "transports": record}.items():
            room.apply_update(update(sign_record(author, map, name, 1, 1, data)), "peer")


@pytest.fixture
async def world(replica: RoomReplica, clock: ManualClock, tmp_path: Path) -> World:
    await replica.found_room(lambda tx: None)
    return World(replica, clock, tmp_path / "tor")


async def test_a_node_without_secrets_opens_nothing(world: World) -> None:
    await world.service.serve_once()
    assert world.control.opened == []


async def test_the_publisher_merges_the_points_of_backbone_nodes(world: World) -> None:
    identity = await world.rotate()
    other = OnionIdentity(b"x" * 32)
    world.admit("bob", "backbone", named_points(identity, 3, 4))
    world.admit("eve", "edge", named_points(identity, 5))
    world.admit("old", "backbone", named_points(other, 6))
    await world.service.serve_once()
    assert world.posted_points(identity) == {point(1), point(2), point(3), point(4)}
    shared = world.replica.transport
    assert shared.master_onion == identity.host
    assert shared.master_points == (point(1).pack(), point(2).pack())


async def test_a_tor_that_ended_is_given_up_and_begun_anew(world: World) -> None:
    await world.rotate()
    await world.service.serve_once()
    world.control.is_lost = True
    with pytest.raises(TorControlLost):
        await world.service.serve_once()
    assert world.tor.control is None


async def test_nothing_is_posted_twice_but_again_after_ten_minutes_or_a_change(
    world: World, clock: ManualClock
) -> None:
    await world.rotate()
    for _ in range(3):
        await world.service.serve_once()
    assert (len(world.control.opened), len(world.control.posted)) == (1, 1)
    clock.advance(600_000)
    await world.service.serve_once()
    assert len(world.control.posted) == 2
    world.control.points = [point(7)]
    await world.service.serve_once()
    assert len(world.control.posted) == 3


async def test_a_descriptor_of_an_earlier_period_is_left_to_tor(
    world: World, clock: ManualClock
) -> None:
    await world.rotate()
    world.control.clock = ManualClock(clock.now())
    clock.advance(5 * 86_400_000)
    await world.service.serve_once()
    assert world.control.posted == []


async def test_only_the_publisher_posts(world: World) -> None:
    await world.rotate()
    world.announcer = "bob"
    await world.service.serve_once()
    assert world.control.posted == []
    assert world.replica.transport.master_points
    assert world.control.settings == []
    world.announcer = "ann"
    await world.service.serve_once()
    await world.service.serve_once()
    assert len(world.control.posted) == 1
    world.announcer = "bob"
    await world.service.serve_once()
    name = "PublishHidServDescriptors"
    assert world.control.settings == [f"SETCONF {name}=1", f"SETCONF {name}=0"]


async def test_a_rotation_gives_the_service_another_address(world: World) -> None:
    first = await world.rotate()
    await world.service.serve_once()
    second = await world.rotate()
    await world.service.serve_once()
    assert world.control.deleted == [first.host]
    assert world.replica.transport.master_onion == second.host
    assert world.posted_points(second) == {point(1), point(2)}
