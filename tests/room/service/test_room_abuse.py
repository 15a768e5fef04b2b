"""People learn who did what an honest gateway never does, and the evidence is kept."""

from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.room import RecordAuthor, append_admission, sign_admission, store
from gatepost.room.evidence import prove_signed_twice
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.wire.operations import Tier
from tests.gateway.tools import dump
from tests.room.sample_records import key, node, update

pytestmark = pytest.mark.anyio


class Member:
    """A node that the gateway, or another member, admitted. It is only a key."""

    def __init__(
        self,
        replica: RoomReplica,
        name: str,
        tier: Tier = "edge",
        by: RecordAuthor | None = None,
        secret: str | None = None,
    ) -> None:
        issuer, self._room = by or replica.author, replica.current_room
        public = key(secret or name).public
        link = sign_admission(issuer.key, issuer.node, name, public, tier, 1)
        chain = append_admission(self._room.genesis, issuer.chain, link)
        self.author = RecordAuthor(key(secret or name), chain)

    def say(self, version: int, **changes: Any) -> None:
        data = node(self.author, self._room.genesis)
        data = replace(data, **changes)
        signed = sign_record(self.author, "nodes", self.author.node, version, 1, data)
        self._room.apply_update(update(signed), "peer")


async def incidents(replica: RoomReplica) -> list[str]:
    """The details of all incidents; the writer has written them by now."""
    await replica.core.commit(lambda tx: None)
    return [row[3] for row in dump(replica.core)["incident"]]


async def test_a_version_signed_twice_names_its_writer_and_both_records_are_kept(
    replica: RoomReplica,
) -> None:
    liar = Member(replica, "liar")
    liar.say(3)
    for _ in range(2):
        liar.say(3, status="offline")
        liar.say(3, status="degraded")
    (told,) = await incidents(replica)
    assert told.startswith("liar was refused (signed_twice)")
    genesis = replica.current_room.genesis
    (found,) = await replica.core.read(lambda tx: store.load_evidence(tx, genesis))
    assert (found.writer, found.place) == ("liar", ("nodes", "liar", 3))
    assert [found] == list(replica.current_room.evidence)


async def test_evidence_against_one_writer_is_bounded(replica: RoomReplica) -> None:
    liar = Member(replica, "liar")
    for version in range(1, 30):
        liar.say(version)
        liar.say(version, status="offline")
    await replica.core.commit(lambda tx: None)
    assert len(dump(replica.core)["room_evidence"]) == 1


async def test_a_proof_that_a_peer_shows_names_the_writer_here_too(replica: RoomReplica) -> None:
    liar, room = Member(replica, "liar"), replica.current_room
    liar.say(9)
    data = node(liar.author, room.genesis)
    twice = [
        sign_record(liar.author, "nodes", "liar", 3, 1, replace(data, status=status))
        for status in ("online", "offline")
    ]
    room.accept_evidence(prove_signed_twice(*twice), "peer")
    (told,) = await incidents(replica)
    assert told.startswith("liar was refused (signed_twice): it signed version 3 of nodes liar")
    assert len(dump(replica.core)["room_evidence"]) == 1


async def test_a_second_key_names_the_node_that_admitted_it(replica: RoomReplica) -> None:
    hub = Member(replica, "hub", "backbone")
    hub.say(1)
    Member(replica, "victim").say(1)
    twin = Member(replica, "victim", "backbone", hub.author, "twin")
    twin.say(1)
    twin.say(2)
    (told,) = await incidents(replica)
    assert told.startswith("hub was refused (second_key)")
    assert "as victim" in told
    lines = [row for row in dump(replica.core)["audit"] if "room.second_key" in row]
    assert len(lines) == 1


async def test_keys_of_nodes_are_known_after_a_restart(replica: RoomReplica) -> None:
    victim = Member(replica, "victim")
    victim.say(1)
    await replica.received.save_records()
    again = RoomReplica(replica.core)
    await again.load_room()
    Member(again, "victim", "backbone", None, "twin").say(9)
    found = again.current_room.effective.nodes["victim"].public_key
    assert found == victim.author.key.public


async def test_a_node_that_keeps_us_busy_is_named(replica: RoomReplica) -> None:
    assert replica.current_room.costs.charge("mallory", 60.0, 0.0) > 0
    (told,) = await incidents(replica)
    assert told.startswith("mallory was refused (room_cost)")
