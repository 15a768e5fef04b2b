"""A capability stays with the owner that this gateway saw first."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.room import (
    CapabilityRecord,
    EligibilityRecord,
    RecordAuthor,
    RevocationRecord,
    SkillRef,
    sign_admission,
)
from gatepost.room.records import ReviewRecord
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import SignedRecord, sign_record
from gatepost.tasks.service.capability_service import CapabilityService
from gatepost.testing import ManualClock
from tests.gateway.tools import opened
from tests.room.sample_records import agent, claim, key, node, update

pytestmark = pytest.mark.anyio

SKILL = SkillRef(ref="skills/job", version="1")
CAPABILITY = CapabilityRecord(
    name="Job",
    version="1",
    owner_agent_id="worker",
    delegation_skill_ref=SKILL,
    executor_skill_ref=SKILL,
    default_eta_seconds=60,
    contract_schema_ref="schemas/job",
    status="active",
)


@pytest.fixture
async def replica(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RoomReplica]:
    async with opened(tmp_path / "g", clock, node__id="ann") as operations:
        replica = RoomReplica(operations.core)
        await replica.load_room()
        await replica.found_room(lambda tx: None)
        yield replica


def admit(replica: RoomReplica, name: str, tier: str = "edge") -> RecordAuthor:
    """A node that joins after all others."""
    room = replica.current_room
    at = replica.core.clock.now() + len(room.effective.nodes)
    link = sign_admission(replica.author.key, "ann", name, key(name).public, tier, at)  # type: ignore[arg-type]
    author = RecordAuthor(key(name), (link,))
    show(replica, sign_record(author, "nodes", name, 1, 1, node(author, room.genesis)))
    return author


def show(replica: RoomReplica, *records: SignedRecord) -> None:
    for record in records:
        replica.current_room.apply_update(update(record), "peer")


def publish(
    replica: RoomReplica, who: RecordAuthor, owner: str, version: int = 1, epoch: int = 1
) -> None:
    record = replace(CAPABILITY, owner_agent_id=owner, epoch=epoch)
    index = EligibilityRecord(
        eligible_agent_ids=(owner,), updated_at=1, policy_version=1, epoch=epoch
    )
    show(
        replica,
        claim(who, "agents", owner, agent(who.node)),
        claim(who, "capabilities.catalog", "job", record, version),
        claim(who, "capabilities.index", "job", index, version),
    )


async def start_service(replica: RoomReplica) -> CapabilityService:
    service = CapabilityService(RecordAnnouncer(replica))
    await service.load_own()
    return service


def routed(replica: RoomReplica, service: CapabilityService) -> str | None:
    """The owner that gets the tasks; the agents that offer the capability are its own."""
    service.refresh()
    entry = replica.core.tasks.parts.router.capabilities.get("job")
    assert entry is None or entry.eligible == (entry.owner_agent,)
    return None if entry is None else entry.owner_agent


async def test_the_health_of_a_capability_counts_the_reviews_of_its_requesters(
    replica: RoomReplica,
) -> None:
    ben = admit(replica, "ben")
    service = await start_service(replica)
    publish(replica, ben, "worker")
    review = ReviewRecord(
        capability_id="job",
        delegation_skill_version="1",
        executor_skill_version="1",
        failure_class="eta_breach",
        raised_at=1,
    )
    for id, found in (
        ("a1", review),
        ("a2", replace(review, status="resolved", settled_at=2)),
        ("a3", replace(review, capability_id="other")),
    ):
        show(replica, claim(ben, "reviews", id * 16, found))
    assert (await service.describe_health("job")).open_reviews == 1


async def test_a_senior_edge_node_takes_no_capability_of_a_later_one(replica: RoomReplica) -> None:
    """Tasks for the capability went to it, with their inputs."""
    eve, ben = admit(replica, "eve"), admit(replica, "ben")
    service = await start_service(replica)
    publish(replica, ben, "worker")
    assert routed(replica, service) == "worker"
    publish(replica, eve, "spy", epoch=2**31 - 1)
    assert replica.current_room.effective.capability_catalog["job"].owner_agent_id == "spy"
    assert routed(replica, service) == "worker"
    assert replica.core.abuse.counts() == {("eve", "foreign_capability"): 1}
    await replica.core.commit(lambda tx: None)
    restarted = await start_service(replica)
    assert routed(replica, restarted) == "worker", "also after a restart"
    publish(replica, ben, "worker", version=2, epoch=2)
    assert routed(replica, service) == "worker", "its own next version counts"


async def test_a_capability_goes_on_once_its_owner_withdrew_it(replica: RoomReplica) -> None:
    eve, ben = admit(replica, "eve"), admit(replica, "ben")
    service = await start_service(replica)
    publish(replica, ben, "worker")
    assert routed(replica, service) == "worker"
    publish(replica, eve, "other")
    show(replica, claim(ben, "capabilities.catalog", "job", None, 2))
    assert routed(replica, service) == "other"
    publish(replica, ben, "worker", version=3)
    assert routed(replica, service) == "other", "now that one was first"
    revoked = RevocationRecord(key=eve.key.fingerprint, revoked_at=1)
    show(replica, sign_record(replica.author, "nodes", "eve@ann", 1, 1, revoked))
    assert routed(replica, service) == "worker"


async def test_a_backbone_node_overrides_the_first_owner(replica: RoomReplica) -> None:
    ben, vps = admit(replica, "ben"), admit(replica, "vps", "backbone")
    service = await start_service(replica)
    publish(replica, ben, "worker")
    assert routed(replica, service) == "worker"
    publish(replica, vps, "better")
    assert routed(replica, service) == "better"


async def test_very_many_capabilities_of_one_node_do_not_slow_down_every_change(
    replica: RoomReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8,000 of them, each change took 65 ms, and a list of them nine minutes."""
    eve, service, looked = admit(replica, "eve"), await start_service(replica), list[str]()
    publish(replica, eve, "spy")
    record = replace(CAPABILITY, owner_agent_id="spy")
    show(replica, *(claim(eve, "capabilities.catalog", f"c{n}", record) for n in range(50)))
    choose_claim = service._owners.choose_claim

    def count_choices(id: str, *given: Any) -> CapabilityRecord:
        looked.append(id)
        return choose_claim(id, *given)

    monkeypatch.setattr(service._owners, "choose_claim", count_choices)
    show(replica, claim(eve, "capabilities.catalog", "c7", replace(record, version="2"), 2))
    assert looked == ["c7"]
    router = replica.core.tasks.parts.router
    assert (len(router.capabilities), router.capabilities["c7"].version) == (51, "2")
    looked.clear()
    assert len(service.list_capabilities()) == 51
    assert len(looked) == 2 * 51
