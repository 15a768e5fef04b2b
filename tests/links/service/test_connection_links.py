"""Links over connections: they come and go with them, and routing follows the room."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec import structs

from gatepost.delivery.frames import HelloFrame, SubscribeFrame, decode_frame, encode_frame
from gatepost.errors import GatepostError, LinkError
from gatepost.links.connections.connection import PeerConnection
from gatepost.links.service.connection_links import ConnectionLinks, create_presence
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.service.mesh_service import MeshService
from gatepost.room import RecordAuthor, sign_admission
from gatepost.room.service.own_record_announcer import OwnRecordAnnouncer
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.routing import RoutingDirectory
from gatepost.testing import ManualClock
from tests.gateway.tools import opened
from tests.room.sample_records import key, node, update
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

_HELLO = encode_frame(HelloFrame("bob", [("first", 1)], 0, 0))


class _Connection:
    """Stands in for a connection to bob; keeps the frames that were sent to him."""

    def __init__(self, heard_at: float = 0.0) -> None:
        self.node, self.session, self.public_key = "bob", "", key("bob").public
        self.heard_at = heard_at
        self.frames: list[bytes] = []
        self.errors: list[GatepostError] = []
        self.on_frame: Callable[[bytes], None] | None = None
        self.is_congested = False

    def send_frame(self, data: bytes) -> None:
        self.frames.append(data)

    def end(self, error: GatepostError) -> None:
        self.errors.append(error)

    @property
    def kinds(self) -> list[type]:
        return [type(decode_frame(data)) for data in self.frames]

    def receive(self, data: bytes) -> None:
        assert self.on_frame is not None
        self.on_frame(data)

    def as_peer(self) -> PeerConnection:
        """The same, as the type that links take."""
        return cast(PeerConnection, self)


@pytest.fixture
def links(replica: RoomReplica) -> ConnectionLinks:
    return ConnectionLinks(replica)


@pytest.fixture
async def running(links: ConnectionLinks) -> AsyncIterator[ConnectionLinks]:
    task = asyncio.create_task(links.run())
    yield links
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _admit_bob(replica: RoomReplica, heartbeat_at: int) -> None:
    """Bob is a member of the room, which shows this heartbeat of his."""
    own = replica.author
    link = sign_admission(own.key, own.node, "bob", key("bob").public, "backbone", heartbeat_at)
    bob = RecordAuthor(key("bob"), (link,))
    record = structs.replace(
        node(bob, replica.current_room.genesis), last_heartbeat_at=heartbeat_at
    )
    signed = sign_record(bob, "nodes", "bob", 1, heartbeat_at, record)
    replica.current_room.apply_update(update(signed), "peer")


# -- connections come and go


async def test_the_side_that_dialled_introduces_itself_first(links: ConnectionLinks) -> None:
    connection = _Connection()
    links.add_dialled(connection.as_peer())
    await async_wait_until(lambda: connection.kinds == [HelloFrame])


async def test_the_other_side_says_nothing_before_the_first_frame(
    links: ConnectionLinks, replica: RoomReplica
) -> None:
    connection = _Connection()
    links.add_joined(connection.as_peer())
    await replica.core.commit(lambda tx: None)
    assert (connection.frames, links.links_to("bob")) == ([], [])
    connection.receive(_HELLO)
    await async_wait_until(lambda: set(connection.kinds) == {HelloFrame, SubscribeFrame})
    assert len(links.links_to("bob")) == 1


async def test_a_peer_is_linked_from_its_hello_until_its_connection_ends(
    links: ConnectionLinks,
) -> None:
    connection = _Connection()
    links.add_dialled(connection.as_peer())
    assert links.linked_peers() == set()
    connection.receive(_HELLO)
    assert links.linked_peers() == {"bob"}
    assert links.acked_seq("bob") == 0
    links.remove_connection(connection.as_peer())
    assert (links.linked_peers(), links.links_to("bob")) == (set(), [])


async def test_a_peer_that_speaks_nonsense_loses_its_connection(links: ConnectionLinks) -> None:
    connection = _Connection()
    links.add_dialled(connection.as_peer())
    connection.receive(b"nonsense")
    assert [type(error) for error in connection.errors] == [LinkError]


async def test_a_connection_that_never_carried_a_frame_can_be_removed(
    links: ConnectionLinks,
) -> None:
    connection = _Connection()
    links.add_joined(connection.as_peer())
    links.remove_connection(connection.as_peer())
    assert links.links_to("bob") == []


# -- signs of life


async def test_silence_counts_from_the_last_message_of_a_connection(
    links: ConnectionLinks, replica: RoomReplica
) -> None:
    now = asyncio.get_running_loop().time()
    older, newer = _Connection(heard_at=now - 60), _Connection(heard_at=now - 5)
    track = replica.connections.track_connection
    with track(older.as_peer()), track(newer.as_peer()):
        assert 5 <= links.presence.seconds_silent("bob") < 60


async def test_the_end_of_a_silent_connection_is_no_sign_of_life(
    links: ConnectionLinks, replica: RoomReplica, clock: ManualClock
) -> None:
    """A peer that sleeps says nothing for a while before its connection is given up."""
    _admit_bob(replica, clock.now())
    connection = _Connection(heard_at=asyncio.get_running_loop().time() - 38)
    with replica.connections.track_connection(connection.as_peer()):
        links.add_dialled(connection.as_peer())
        assert links.presence.seconds_silent("bob") >= 38
    links.remove_connection(connection.as_peer())
    clock.advance(2_000)
    assert links.presence.seconds_silent("bob") >= 40


async def test_silence_counts_from_the_heartbeat_in_the_room_without_a_connection(
    links: ConnectionLinks, replica: RoomReplica, clock: ManualClock
) -> None:
    _admit_bob(replica, clock.now())
    clock.advance(7_000)
    assert links.presence.seconds_silent("bob") == 7.0
    clock.advance(-60_000)
    assert links.presence.seconds_silent("bob") == 0.0


# -- the directory of routing


async def test_routing_learns_of_agents_that_the_room_shows(
    running: ConnectionLinks, announcer: RecordAnnouncer
) -> None:
    core = announcer.replica.core
    await core.commit(lambda tx: core.agents.register(tx, "bo"))
    await OwnRecordAnnouncer(announcer).refresh_records()
    await async_wait_until(lambda: "bo" in running.directory.agents)
    assert running.directory.agents["bo"].owner == "ann"
    assert core.delivery.routes.directory == running.directory


async def test_a_member_is_online_while_it_is_connected_and_a_while_after(
    running: ConnectionLinks, replica: RoomReplica, clock: ManualClock
) -> None:
    _admit_bob(replica, clock.now())
    await async_wait_until(lambda: "bob" in running.directory.gateways)
    assert running.directory.is_online("ann")
    assert not running.directory.is_online("bob")
    connection = _Connection()
    with replica.connections.track_connection(connection.as_peer()):
        running.add_dialled(connection.as_peer())
        await async_wait_until(lambda: running.directory.is_online("bob"))
    running.remove_connection(connection.as_peer())
    await async_wait_until(lambda: running.directory.is_online("bob"))
    clock.advance(int(replica.core.settings.delivery.offline_secs * 1000) + 1)
    await async_wait_until(lambda: not running.directory.is_online("bob"))


async def test_a_member_that_was_never_connected_shows_its_status_until_a_heartbeat_is_missing(
    running: ConnectionLinks, replica: RoomReplica, clock: ManualClock
) -> None:
    _admit_bob(replica, clock.now())
    await async_wait_until(lambda: "bob" in running.directory.gateways)
    bob = replica.current_room.effective.nodes["bob"]
    assert running.presence.status_of(bob) == "online", "as far as its last heartbeat tells"
    assert not running.directory.is_online("bob"), "routing waits for the next heartbeat"
    clock.advance(90_001)
    assert running.presence.status_of(bob) == "offline"
    clock.advance(-90_000)
    running.presence.note_contact("bob", 0.0)
    clock.advance(int(replica.core.settings.delivery.offline_secs * 1000) + 1)
    assert running.presence.status_of(bob) == "offline", "its connection ended"


async def test_without_a_room_the_directory_stays_empty(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock, node__id="ann") as operations:
        links = ConnectionLinks(RoomReplica(operations.core))
        await links._refresh_directory()
        assert links.directory == RoutingDirectory()


class _Word:
    """A mesh that says one thing about everybody."""

    def __init__(self, state: PeerState | None) -> None:
        self.state = state

    def peer_state(self, node: str) -> PeerState | None:
        return self.state


async def test_the_word_of_the_mesh_counts_before_that_of_a_silent_socket(
    replica: RoomReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspect_secs = replica.core.settings.mesh.suspect_secs
    now = asyncio.get_running_loop().time()

    def is_online(state: PeerState | None, silent_secs: float | None) -> bool:
        found = [] if silent_secs is None else [SimpleNamespace(node="bob")]
        for each in found:
            each.heard_at = now - (silent_secs or 0)
        monkeypatch.setattr(replica, "connections", found)
        return create_presence(replica, cast(MeshService, _Word(state))).is_online("bob")

    for state in (PeerState.SUSPECT, PeerState.DEAD):
        assert not is_online(state, None)
        assert not is_online(state, suspect_secs + 1)
        assert is_online(state, suspect_secs / 2)
    assert is_online(None, suspect_secs + 1) and not is_online(None, None)


async def test_a_first_heartbeat_counts_for_less_than_the_word_of_the_mesh(
    replica: RoomReplica, clock: ManualClock
) -> None:
    _admit_bob(replica, clock.now())
    for state, counts in ((None, True), (PeerState.SUSPECT, False), (PeerState.DEAD, False)):
        presence = create_presence(replica, cast(MeshService, _Word(state)))
        presence.is_online("bob")
        assert presence.is_first_heartbeat("bob") is counts
