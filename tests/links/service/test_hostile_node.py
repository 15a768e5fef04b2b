"""A hostile node with a valid ticket: nothing changes anywhere, it is cut off and counted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from pycrdt import Doc, Map
from websockets.exceptions import ConnectionClosed

from gatepost.room import Genesis, RecordAuthor, lib0
from gatepost.room.document import RoomDocument
from gatepost.room.room import room_id
from gatepost.room.signed_record import sign_record
from tests.gateway.tools import client
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import BareNode, Gateway, close_code, converge, expect_changes_by
from tests.room.sample_records import agent, coordination, node, placed, update
from tests.waiting import wait_until

AWARENESS = 1
# Their gateways run, and may write records of their own at any moment.
HONEST = {"ann", "bob"}


class Scene(NamedTuple):
    """Ann and bob share a room, into which mallory was let by ann."""

    ann: Gateway
    bob: Gateway
    mallory: BareNode
    author: RecordAuthor
    genesis: Genesis

    def entry(self, version: int, **changes: object) -> Any:
        said = replace(node(self.author, self.genesis), endpoint_ws=None)
        return self.sign("nodes", self.mallory.name, version, replace(said, **changes))

    def sign(self, map: str, key: str, version: int, data: Any) -> Any:
        at = self.author.chain[-1].issued_at
        return sign_record(self.author, map, key, version, at, data)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with running(tmp_path_factory.mktemp("hostile"), "ann", "bob") as (ann, bob):
        bob.join(ann)
        yield _let_in(ann, bob, "mallory")


def _let_in(ann: Gateway, bob: Gateway, name: str) -> Scene:
    """The scene with a mallory of this name, whom both gateways know."""
    mallory = BareNode(ann, name)
    genesis, author = mallory.enter(ann.invite(name))
    scene = Scene(ann, bob, mallory, author, genesis)
    with mallory.open(mallory.ticket()) as socket:
        socket.send(message(update(scene.entry(3))))
        wait_until(lambda: f"nodes {name}" in bob.records())
    converge(ann, bob)
    return scene


def message(update: bytes) -> bytes:
    return b"\x00\x02" + lib0.encode_bytes(update)


def awareness(client: int, state: str) -> bytes:
    entry = (
        lib0.encode_uint(1)
        + lib0.encode_uint(client)
        + lib0.encode_uint(1)
        + lib0.encode_text(state)
    )
    return bytes((AWARENESS,)) + lib0.encode_bytes(entry)


def by_yjs(map: str, key: str, value: object) -> bytes:
    """What an ordinary Yjs client sends that writes as it likes."""
    doc: Doc[Any] = Doc()
    doc.get(map, type=Map)[key] = value
    return message(doc.get_update())


def _client(signed: Any) -> int:
    return RoomDocument(room_id(1)).yjs_client(signed.slot_key)


def _delete(signed: Any) -> bytes:
    return b"\x00\x01" + lib0.encode_uint(_client(signed)) + b"\x01\x00\x7f"


ATTACKS: dict[str, tuple[str, Callable[[Scene], bytes]]] = {
    "an unsigned record": (
        "signature",
        lambda s: message(placed(replace(s.entry(4), signature=""))),
    ),
    "a plain value": ("unsigned", lambda s: by_yjs("nodes", "mallory", {"status": "online"})),
    "another node's record": (
        "not_writer",
        lambda s: message(update(s.sign("nodes", "ann", 99, node(s.author, s.genesis)))),
    ),
    "another node's agent": (
        "not_writer",
        lambda s: message(update(s.sign("agents", "builder@bob", 9, agent("mallory")))),
    ),
    "a rollback": ("rollback", lambda s: message(placed(s.entry(2), version=4))),
    "a delete": ("deleted", lambda s: message(_delete(s.entry(3)))),
    "an extra root map": ("unknown_map", lambda s: by_yjs("payloads", "x", {"record": "{}"})),
    "a value of 1 MB": (
        "too_large",
        lambda s: by_yjs("nodes", "mallory", {"record": "x" * 10**6, "signature": "s"}),
    ),
    "a payload in a field": (
        "type",
        lambda s: message(update(s.entry(4, protocol_version="aGVsbG8gd29ybGQ=" * 9))),
    ),
    "malformed bytes": ("malformed", lambda s: message(b"\x01\x02\x03")),
    "a message of no type": ("message", lambda s: b"\x63\x00"),
    "awareness in another's name": ("awareness", lambda s: awareness(77, '{"nodeId":"bob"}')),
    "a payload in awareness": ("awareness", lambda s: awareness(78, '{"text":"hello"}')),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_changes_no_replica_ends_the_connection_and_is_counted(
    scene: Scene, name: str
) -> None:
    rule, attack = ATTACKS[name]
    before = scene.ann.records()
    counted = scene.ann.incidents().get(rule, 0)
    with scene.mallory.open(scene.mallory.ticket()) as socket:
        socket.send(attack(scene))
        assert close_code(socket) == 4403
    wait_until(lambda: scene.ann.incidents().get(rule, 0) > counted)
    expect_changes_by(HONEST, before, scene.ann.records())
    converge(scene.ann, scene.bob)


def test_a_message_beyond_all_bounds_is_an_incident_too(scene: Scene) -> None:
    counted = sum(scene.ann.incidents().values())
    with scene.mallory.open(scene.mallory.ticket()) as socket, pytest.raises(ConnectionClosed):
        socket.send(message(b"x" * (5 << 20)))
        socket.recv(timeout=5)
        socket.recv(timeout=5)
        socket.recv(timeout=5)
    wait_until(lambda: sum(scene.ann.incidents().values()) > counted)


def test_incidents_are_audited_and_measured(scene: Scene) -> None:
    with scene.mallory.open(scene.mallory.ticket()) as socket:
        socket.send(message(b"\x01\x02\x03"))
        close_code(socket)
    wait_until(lambda: _audited(scene))
    with client(scene.ann) as http:
        assert 'gatepost_room_incidents_total{rule="malformed"}' in http.get("/metrics").text


def _audited(scene: Scene) -> bool:
    found = scene.ann.call("GET", "/audit")
    return any((e["action"], e["actor"]) == ("room.violation", "mallory") for e in found)


def test_text_is_not_what_the_room_speaks(scene: Scene) -> None:
    with scene.mallory.open(scene.mallory.ticket()) as socket:
        socket.send("hello")
        assert close_code(socket) == 4403


def test_honest_words_are_taken_after_an_attack(scene: Scene) -> None:
    own = _let_in(scene.ann, scene.bob, "penitent")
    with own.mallory.open(own.mallory.ticket()) as socket:
        socket.send(message(b"\x01\x02\x03"))
        assert close_code(socket) == 4403
    with own.mallory.open(own.mallory.ticket()) as socket:
        socket.send(message(update(own.entry(9, status="degraded"))))
        wait_until(lambda: own.bob.records()["nodes penitent"]["data"]["status"] == "degraded")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Gateway]]:
    """Two gateways in a room of their own, which the test changes for good."""
    with running(tmp_path, "ann", "bob") as gateways:
        gateways[1].join(gateways[0])
        yield gateways


def test_a_node_that_was_away_follows_the_coordinator_and_nobody_else(
    pair: list[Gateway],
) -> None:
    ann, bob = pair
    eve = BareNode(ann, "eve")
    genesis, author = eve.enter(ann.invite("eve", "backbone"))
    at = author.chain[-1].issued_at
    own = sign_record(author, "nodes", "eve", 1, at, node(author, genesis))
    bob.kill9()
    with eve.open(eve.ticket()) as socket:
        socket.send(message(update(own, coordination(2, by=author))))
        assert close_code(socket) == 4403
    assert ann.call("GET", "/room")["epoch"] == 1
    wait_until(lambda: ann.incidents().get("role") == 1)
    assert ann.call("POST", "/room/rotate", {})["epoch"] == 2
    assert ann.call("POST", "/room/rotate", {})["epoch"] == 3
    bob.start()
    wait_until(lambda: bob.call("GET", "/room")["epoch"] == 3)
    converge(ann, bob)
    for gateway in pair:
        gateway.restart()
        assert gateway.call("GET", "/room")["epoch"] == 3
    assert ann.call("GET", "/room/verify")["problems"] == []


def test_a_revocation_ends_a_live_socket_at_once(scene: Scene) -> None:
    own = _let_in(scene.ann, scene.bob, "trudy")
    with own.mallory.open(own.mallory.ticket()) as socket:
        own.ann.call("POST", "/room/nodes/trudy/revoke", {})
        assert close_code(socket) == 4403
    assert "trudy" not in own.ann.nodes()
