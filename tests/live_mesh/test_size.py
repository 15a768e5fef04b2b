"""A large room reaches a newcomer soon, through real processes."""

import time
from collections.abc import Callable
from typing import Any

from gatepost.events import NodeKey
from gatepost.room import Genesis, RecordAuthor, lib0, sign_admission
from gatepost.room.document import RoomDocument
from gatepost.room.room import room_id
from gatepost.room.signed_record import sign_record
from tests.conftest import choose
from tests.live_mesh.tools import BareNode, Gateway
from tests.room.sample_records import agent, node
from tests.waiting import wait_until

NODES, AGENTS = choose(300, 1000), 5
# The full run is for a machine that does nothing else.
MOST_SECS = choose(20, 2)


def _crowd(genesis: Genesis, key: NodeKey, now: int) -> list[Any]:
    """Nodes which the genesis admitted, each with its agents."""
    records = []
    for number in range(NODES):
        own, name = NodeKey(number.to_bytes(32, "big")), f"node-{number}"
        who = RecordAuthor(own, (sign_admission(key, genesis.node, name, own.public, "edge", now),))
        records.append(sign_record(who, "nodes", name, 1, now, node(who, genesis)))
        for each in range(AGENTS):
            claim = f"agent-{number}-{each}@{name}"
            records.append(sign_record(who, "agents", claim, 1, now, agent(name)))
    return records


def test_a_newcomer_has_a_room_of_many_nodes_quickly(
    start: Callable[..., list[Gateway]],
) -> None:
    ann, newcomer = start("ann", "newcomer")
    loader = BareNode(ann, "loader")
    genesis, _ = loader.enter(ann.invite())
    key = NodeKey((ann.state_dir / "node.key").read_bytes())
    records = _crowd(genesis, key, int(time.time() * 1000))
    with loader.open(loader.ticket()) as socket:
        for update in RoomDocument(room_id(1)).encode_updates(records):
            socket.send(b"\x00\x02" + lib0.encode_bytes(update))
        wait_until(lambda: len(ann.nodes()) > NODES, 30)
    token = ann.invite()
    began = time.monotonic()
    newcomer.call("POST", "/room/join", {"seed": ann.url, "token": token})
    took = time.monotonic() - began
    assert len(newcomer.nodes()) == NODES + 2
    assert took < MOST_SECS, f"joining took {took:.2f} s"
    assert ann.incidents() == newcomer.incidents() == {}
