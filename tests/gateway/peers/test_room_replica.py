"""What a gateway says in the room, and what is on disk when it does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.errors import Forbidden, StorageFailed
from gatepost.gateway.peers.room_replica import RoomReplica
from gatepost.gateway.peers.welcome_header import Welcome
from gatepost.room import NodeRecord, RecordAuthor, ReviewRecord, RoomChange, sign_admission
from gatepost.room.signed_record import sign_record
from gatepost.testing import ManualClock
from tests.gateway.tools import dump, opened
from tests.room.cast import GENESIS, author, key, node, update

pytestmark = pytest.mark.anyio
PLACE = ("reviews", "r1@ann")


@pytest.fixture
async def keeper(state: Path, clock: ManualClock) -> AsyncIterator[RoomReplica]:
    async with opened(state, clock, node__id="ann") as operations:
        keeper = RoomReplica(operations.core)
        await keeper.load_room()
        await keeper.found_room(lambda tx: None)
        keeper.may_publish.set()
        yield keeper


def _review(status: Any = "open") -> ReviewRecord:
    return ReviewRecord(
        capability_id="c",
        delegation_skill_version="1",
        executor_skill_version="1",
        failure_class="eta_breach",
        raised_at=1,
        status=status,
    )


def _on_disk(keeper: RoomReplica) -> set[str]:
    return {row[4] for row in dump(keeper.core)["room_record"]}


async def test_an_own_record_is_on_disk_before_anybody_hears_of_it(keeper: RoomReplica) -> None:
    heard: list[bool] = []

    def hear(applied: RoomChange) -> None:
        heard.append({signed.text for signed in applied.changed} <= _on_disk(keeper))

    keeper.current_room.on_change(hear)
    await keeper.publish_records({PLACE: _review()})
    assert heard == [True]


async def test_what_could_not_be_saved_is_said_later(
    keeper: RoomReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(operation: Any) -> None:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(keeper.core, "commit", full)
        with pytest.raises(StorageFailed):
            await keeper.publish_records({PLACE: _review()})
        assert "r1" not in keeper.current_room.effective.reviews
    await keeper.refresh_own_records()
    assert "r1" in keeper.current_room.effective.reviews


async def test_nothing_is_said_if_what_it_depends_on_fails(keeper: RoomReplica) -> None:
    def refuse(_: object) -> None:
        raise Forbidden("no")

    with pytest.raises(Forbidden):
        await keeper.commit_with(*PLACE, _review(), refuse)
    await keeper.refresh_own_records()
    assert "r1" not in keeper.current_room.effective.reviews


async def test_a_sign_of_life_is_given_once_a_minute(
    keeper: RoomReplica, clock: ManualClock
) -> None:
    def beat() -> int:
        record = keeper.current_room.effective.nodes["ann"].record
        assert isinstance(record, NodeRecord)
        return record.last_heartbeat_at

    first = beat()
    clock.advance(59_000)
    await keeper.refresh_own_records()
    assert beat() == first
    clock.advance(2_000)
    await keeper.refresh_own_records()
    assert beat() == first + 61_000


async def test_it_is_the_same_after_it_was_loaded_again(keeper: RoomReplica) -> None:
    await keeper.publish_records({PLACE: _review()})
    again = RoomReplica(keeper.core)
    await again.load_room()
    assert {s.text for s in again.current_room.document} == {
        s.text for s in keeper.current_room.document
    }
    await again.publish_records({PLACE: _review("resolved")})
    assert again.current_room.effective.reviews["r1"].status == "resolved"


async def test_what_others_say_is_saved_soon(keeper: RoomReplica) -> None:
    genesis, own = keeper.current_room.genesis, keeper.author
    link = sign_admission(own.key, "ann", "ben", key("ben").public, "edge", 1)
    ben = RecordAuthor(key("ben"), (link,))
    signed = sign_record(ben, "nodes", "ben", 1, 1, node(ben, genesis))
    keeper.current_room.apply_update(update(signed), "somebody")
    await keeper._save_received()
    assert signed.text in _on_disk(keeper)
    known = keeper.members.by_key(None, key("ben").public)
    assert known is not None and known.node_id == "ben"


async def test_a_welcome_into_a_room_nobody_let_us_into_is_refused(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ben") as operations:
        keeper = RoomReplica(operations.core)
        for said in (Welcome(GENESIS, 1), Welcome(GENESIS, 1, author("ben").chain)):
            with pytest.raises(Forbidden):
                keeper.check_welcome(said, GENESIS.key)


async def test_a_chain_is_believed_only_if_the_host_signed_it(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ben") as operations:
        keeper, host = RoomReplica(operations.core), key("root")
        link = sign_admission(host, "root", "ben", operations.core.node.key.public, "edge", 1)
        keeper.check_welcome(Welcome(GENESIS, 1, (link,)), GENESIS.key)
        forged = replace(link, signature=bytes(64))
        with pytest.raises(Forbidden):
            keeper.check_welcome(Welcome(GENESIS, 1, (forged,)), GENESIS.key)
        with pytest.raises(Forbidden, match="not issued by the peer"):
            keeper.check_welcome(Welcome(GENESIS, 1, (link,)), key("eve").public)


async def test_what_is_said_while_the_room_moves_is_not_left_behind(
    keeper: RoomReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, late = keeper.core.commit, [_review()]

    async def slow(operation: Any) -> Any:
        result = await commit(operation)
        if late:
            keeper.current_room.publish_record(*PLACE, late.pop(), 1)
        return result

    monkeypatch.setattr(keeper.core, "commit", slow)
    await keeper.catch_up_to(2)
    assert (keeper.current_room.epoch, keeper.current_room.id) == (2, "ansible-control.2")
    assert "r1" in keeper.current_room.effective.reviews
    assert {signed.text for signed in keeper.current_room.document} == _on_disk(keeper)
