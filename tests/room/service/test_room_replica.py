"""The replica: founding, loading, entering and moving, and which welcomes it believes."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.access.welcome_header import Welcome
from gatepost.errors import Conflict, Forbidden, JournalCorrupt
from gatepost.room import RecordAuthor, RoomChange, SharedRoom, sign_admission
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.testing import ManualClock
from tests.gateway.tools import opened
from tests.room.sample_records import GENESIS, author, key, node, proof_of, publish, update
from tests.room.service.replicas import REVIEW_SLOT, records_on_disk, review

pytestmark = pytest.mark.anyio


async def test_without_a_room_an_operator_is_told_what_to_do(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ann") as operations:
        replica = RoomReplica(operations.core)
        await replica.load_room()
        with pytest.raises(Conflict, match="gatepost join"):
            _ = replica.current_room


async def test_a_room_is_founded_with_its_transaction_or_not_at_all(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ann") as operations:
        replica = RoomReplica(operations.core)

        def refuse(_: object) -> None:
            raise Forbidden("no")

        with pytest.raises(Forbidden):
            await replica.found_room(refuse)
        assert replica.room is None
        assert records_on_disk(replica) == set()
        assert await replica.found_room(lambda tx: "first") == "first"
        room = replica.room
        assert await replica.found_room(lambda tx: "second") == "second"
        assert replica.room is room
        assert list(replica.current_room.effective.nodes) == ["ann"]


async def test_a_loaded_room_has_the_same_records(announcer: RecordAnnouncer) -> None:
    await announcer.publish_records({REVIEW_SLOT: review()})
    again = RoomReplica(announcer.replica.core)
    await again.load_room()
    assert {s.text for s in again.current_room.document} == {
        s.text for s in announcer.replica.current_room.document
    }
    await RecordAnnouncer(again).publish_records({REVIEW_SLOT: review("resolved")})
    assert again.current_room.effective.reviews["r1"][0].record.status == "resolved"


async def test_a_journal_without_our_own_record_is_corrupt(replica: RoomReplica) -> None:
    await replica.core.commit(lambda tx: tx.execute("DELETE FROM room_record"))
    with pytest.raises(JournalCorrupt):
        await RoomReplica(replica.core).load_room()


async def test_a_gateway_alone_in_its_room_may_enter_another(replica: RoomReplica) -> None:
    welcome = _welcome(replica)
    await replica.check_may_join()
    await replica.enter_room(SharedRoom(GENESIS), welcome, lambda tx: None)
    assert replica.current_room.genesis == GENESIS
    assert {signed.text for signed in replica.current_room.document} == records_on_disk(replica)
    with pytest.raises(Conflict, match="cannot change"):
        await replica.check_may_join()


async def test_a_newer_admission_is_adopted_and_an_older_one_is_not(replica: RoomReplica) -> None:
    await replica.enter_room(SharedRoom(GENESIS), _welcome(replica), lambda tx: None)
    assert replica.create_issuer().tier == "edge"
    replica.adopt_chain(_welcome(replica, "backbone", issued_at=1))
    assert replica.create_issuer().tier == "edge"
    replica.adopt_chain(_welcome(replica, "backbone", issued_at=2))
    assert replica.create_issuer().tier == "backbone"


async def test_a_change_is_signalled_and_new_members_are_known(replica: RoomReplica) -> None:
    genesis, own = replica.current_room.genesis, replica.author
    link = sign_admission(own.key, "ann", "ben", key("ben").public, "edge", 1)
    ben = RecordAuthor(key("ben"), (link,))
    count = replica.changes.count
    signed = sign_record(ben, "nodes", "ben", 1, 1, node(ben, genesis))
    replica.current_room.apply_update(update(signed), "peer")
    await replica.changes.wait_for_change(count, 5)
    assert replica.changes.count > count
    known = replica.members.by_key(None, key("ben").public)
    assert known is not None and known.node_id == "ben"
    await replica.changes.wait_for_change(replica.changes.count, 0.01)


async def test_a_welcome_without_an_admission_for_this_node_is_refused(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ben") as operations:
        replica = RoomReplica(operations.core)
        for welcome in (Welcome(GENESIS, 1), Welcome(GENESIS, 1, author("ben").chain)):
            with pytest.raises(Forbidden):
                replica.check_welcome(welcome, GENESIS.key)


async def test_a_chain_is_believed_only_if_the_peer_signed_it(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ben") as operations:
        replica = RoomReplica(operations.core)
        welcome = _welcome(replica)
        replica.check_welcome(welcome, GENESIS.key)
        forged = replace(welcome.chain[0], signature=bytes(64))
        with pytest.raises(Forbidden):
            replica.check_welcome(Welcome(GENESIS, 1, (forged,)), GENESIS.key)
        with pytest.raises(Forbidden, match="not issued by the peer"):
            replica.check_welcome(welcome, key("eve").public)


async def test_a_record_published_while_the_room_moves_is_moved_too(
    replica: RoomReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, late = replica.core.commit, [review()]

    async def slow(operation: Any) -> Any:
        result = await commit(operation)
        if late:
            publish(replica.current_room, *REVIEW_SLOT, late.pop(), 1)
        return result

    monkeypatch.setattr(replica.core, "commit", slow)
    await replica.catch_up_to(proof_of(2, replica.author))
    assert (replica.current_room.epoch, replica.current_room.id) == (2, "ansible-control.2")
    assert "r1" in replica.current_room.effective.reviews
    assert {signed.text for signed in replica.current_room.document} == records_on_disk(replica)


async def test_only_records_of_other_nodes_are_saved_after_they_were_heard(
    replica: RoomReplica,
) -> None:
    heard: list[RoomChange] = []
    replica.current_room.on_change(heard.append)
    publish(replica.current_room, *REVIEW_SLOT, review(), 1)
    assert len(heard) == 1
    assert not replica.received._unsaved


def _welcome(replica: RoomReplica, tier: Any = "edge", issued_at: int = 1) -> Welcome:
    """Return the welcome of the room's genesis node for the replica's node."""
    node = replica.core.node
    link = sign_admission(key("root"), "root", node.id, node.key.public, tier, issued_at)
    return Welcome(GENESIS, 1, (link,))
