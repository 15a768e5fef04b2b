"""A member that floods the links of a real gateway: nobody else notices, and it is named."""

from collections.abc import Iterable
from contextlib import ExitStack, suppress

from websockets.exceptions import ConnectionClosed

from gatepost.client import SyncClient
from gatepost.delivery.frames import (
    PIECE_BYTES,
    BlobPiece,
    BlobRequest,
    EventsFrame,
    FollowFrame,
    LinkFrame,
    RelayFrame,
    TakenFrame,
)
from gatepost.events import decode_event
from simulation.hostile import HostileConnection, HostileNode
from tests.security.siege import Siege, spy_of
from tests.waiting import wait_until

GROW_MIB = 96


def flood(connection: HostileConnection, frames: Iterable[LinkFrame]) -> None:
    """Send all frames and read nothing, until the gateway hangs up."""
    try:
        for frame in frames:
            connection.send_frame(frame)
    except (ConnectionClosed, OSError):
        pass


def send_blob(siege: Siege, node: HostileNode, connection: HostileConnection) -> str:
    """Al sends the node's agent a large payload; returns the digest of its blob."""
    with SyncClient("al", state_dir=siege.ann.state_dir) as al:
        al.send(spy_of(node), "x" * (8 * PIECE_BYTES))
    while True:
        for event in map(decode_event, connection.receive_frame(EventsFrame).events):
            if event.payload_ref is not None:
                return event.payload_ref.digest


def test_follows_without_end(siege: Siege) -> None:
    node = siege.admit("follower", "backbone")
    with siege.expect_no_harm(node, grow_mib=GROW_MIB), siege.linked(node) as connection:
        flood(connection, [FollowFrame([], 2**50)] * 2000)
    siege.expect_named(node.name)


def test_blob_requests_without_end(siege: Siege, mallory: HostileNode) -> None:
    with siege.linked(mallory) as connection:
        connection.subscribe()
        digest = send_blob(siege, mallory, connection)
        connection.send_frame(BlobRequest("ann", digest, 0, 10))
        assert len(connection.receive_frame(BlobPiece).data) == 10
        with siege.expect_no_harm(mallory, grow_mib=GROW_MIB):
            flood(connection, [BlobRequest("ann", digest, 0, PIECE_BYTES)] * 3000)
    siege.expect_named(mallory.name)


def test_a_blob_for_another_reader(siege: Siege, mallory: HostileNode) -> None:
    thief = siege.admit(f"{mallory.name}-thief", "backbone")
    with siege.linked(mallory) as connection:
        connection.subscribe()
        digest = send_blob(siege, mallory, connection)
    with siege.linked(thief) as connection:
        connection.send_frame(BlobRequest("ann", digest, 0, 10, mallory.name, bytes(64)))
        assert connection.receive_frame(BlobPiece).total == 0
        connection.send_frame(BlobRequest("ann", digest, 0, 10))
        assert connection.receive_frame(BlobPiece).total == 0
    siege.expect_named(thief.name)


def test_questions_for_the_room_without_end(siege: Siege, mallory: HostileNode) -> None:
    # It is named if it costs more than its share, which depends on the machine.
    with (
        siege.expect_no_harm(mallory, grow_mib=GROW_MIB, named=False),
        mallory.connect(close_timeout=0.5) as connection,
    ):
        try:
            for _ in range(1000):
                connection.send_message(mallory.step_1_message())
        except (ConnectionClosed, OSError):
            pass


def test_small_frames_without_end(siege: Siege, mallory: HostileNode) -> None:
    # Frames without a use are slow work for the link, and break no rule.
    quiet = siege.expect_no_harm(mallory, grow_mib=GROW_MIB, named=False)
    with quiet, siege.linked(mallory) as connection:
        relay = RelayFrame([], ["bob"], 1 << 20)
        taken = TakenFrame("bob", "x", 0, 1, "relay")
        flood(connection, [relay, taken] * 10_000)


def test_connections_without_end(siege: Siege, mallory: HostileNode) -> None:
    with siege.expect_no_harm(mallory, grow_mib=GROW_MIB), ExitStack() as stack:
        opened = [stack.enter_context(mallory.connect(close_timeout=0.5)) for _ in range(20)]
        assert opened[0].wait_for_close()[0] == 4503
        wait_until(lambda: siege.ann.connected_to(mallory.name))
    siege.expect_named(mallory.name)


# Frames of WebSocket as they are sent: masked with zeros, and without content.
PING = b"\x89\x80" + bytes(4)
FIRST_PIECE, NEXT_PIECE = b"\x02\x80" + bytes(4), b"\x00\x80" + bytes(4)


def flood_socket(connection: HostileConnection, data: bytes, times: int) -> None:
    """Send bytes past the client's own WebSocket, until the gateway hangs up."""
    with suppress(OSError):
        for _ in range(times):
            connection.socket.socket.sendall(data)


def test_pings_without_end(siege: Siege, mallory: HostileNode) -> None:
    # Each is answered, and breaks no rule.
    quiet = siege.expect_no_harm(mallory, grow_mib=GROW_MIB, named=False)
    with quiet, mallory.connect(close_timeout=0.5) as connection:
        flood_socket(connection, PING * 10_000, 20)


def test_a_message_of_empty_pieces_without_end(siege: Siege, mallory: HostileNode) -> None:
    quiet = siege.expect_no_harm(mallory, grow_mib=GROW_MIB)
    with quiet, mallory.connect(close_timeout=0.5) as connection:
        flood_socket(connection, FIRST_PIECE, 1)
        flood_socket(connection, NEXT_PIECE * 10_000, 5)
        assert connection.wait_for_close()[0] == 1009
