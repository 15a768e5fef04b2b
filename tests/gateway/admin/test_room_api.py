"""The operator revokes a node, however many nodes it has admitted."""

from pathlib import Path
from typing import Any, cast

import pytest

from gatepost.gateway.admin.room_api import RoomApi
from gatepost.room import RecordAuthor, append_admission, sign_admission
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_coordinator import RoomCoordinator
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.testing import ManualClock
from gatepost.wire.operations import Tier
from gatepost.wire.room_views import RevokeRequest
from tests.gateway.tools import opened
from tests.room.sample_records import key, node, update

pytestmark = pytest.mark.anyio


def admit(replica: RoomReplica, name: str, tier: Tier, by: RecordAuthor) -> RecordAuthor:
    room = replica.current_room
    link = sign_admission(by.key, by.node, name, key(name).public, tier, 1)
    author = RecordAuthor(key(name), append_admission(room.genesis, by.chain, link))
    signed = sign_record(author, "nodes", name, 1, 1, node(author, room.genesis))
    room.apply_update(update(signed), "peer")
    return author


@pytest.mark.parametrize(("standing", "left"), [(None, 102), ((), 1), (("member7", "member80"), 3)])
async def test_a_node_with_101_invented_admissions_is_revoked(
    state: Path, clock: ManualClock, standing: tuple[str, ...] | None, left: int
) -> None:
    async with opened(state, clock, node__id="ann") as operations:
        replica = RoomReplica(operations.core)
        await replica.found_room(lambda tx: None)
        announcer = RecordAnnouncer(replica)
        announcer.may_publish.set()
        unused = cast(Any, None)
        api = RoomApi(announcer, unused, unused, RoomCoordinator(announcer), unused, unused)
        hub = admit(replica, "hub", "backbone", replica.author)
        for n in range(101):
            admit(replica, f"member{n}", "edge", hub)
        await api.revoke_node("hub", RevokeRequest(standing=standing))
        view = replica.current_room.effective
        assert [name for name, _ in view.membership.revoked] == ["hub"]
        assert len(view.nodes) == left
        assert (await api.verify_records()).problems == []
