"""One gateway coordinates the room: it sweeps, and rotates when that is worth it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.access.welcome_header import Welcome
from gatepost.errors import Forbidden, RoomViolation
from gatepost.room import (
    CoordinationRecord,
    CoordinatorMandate,
    CoordinatorTerm,
    InviteRecord,
    KnownOwner,
    SharedRoom,
    SignedRecord,
    sign_admission,
)
from gatepost.room.epoch_proof import MAX_ELECTED_LEAD, make_epoch_proof
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_coordinator import RoomCoordinator
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.testing import ManualClock
from gatepost.wire.mesh_views import Term
from gatepost.wire.operations import Tier
from tests.gateway.tools import opened
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    author,
    coordination,
    entry,
    key,
    proof_of,
    update,
)
from tests.room.service.replicas import REVIEW_SLOT, admit_member, review

pytestmark = pytest.mark.anyio
_DAY_MS = 86_400_000


class Coordinated:
    """A coordinator, and its room."""

    def __init__(self, announcer: RecordAnnouncer) -> None:
        self.announcer = announcer
        self.replica = announcer.replica
        self.coordinator = RoomCoordinator(announcer)


@pytest.fixture
def coordinated(announcer: RecordAnnouncer) -> Coordinated:
    return Coordinated(announcer)


class ElectedNode:
    """Bob, whom an election made coordinator, with the mandate of the genesis ann."""

    def __init__(self, replica: RoomReplica) -> None:
        self.author = admit_member(replica, "bob")
        genesis_claim = replica.current_room.genesis_claim()
        assert genesis_claim is not None
        self.mandate = CoordinatorMandate(genesis_claim.text, genesis_claim.signature)
        self.claim = CoordinationRecord(
            coordinator="bob",
            term=CoordinatorTerm(counter=5, node="bob"),
            sweep_every_seconds=60,
            mandate=self.mandate,
        )

    def sign_claim(self, version: int = 1, **changes: Any) -> SignedRecord:
        claim = replace(self.claim, **changes)
        return sign_record(self.author, "coordination", "coordinator@bob", version, 1, claim)


@pytest.fixture
async def bob(replica: RoomReplica, announcer: RecordAnnouncer) -> ElectedNode:
    """The genesis is not elected, and permits elections all the same."""
    genesis = RoomCoordinator(announcer, lambda: None)
    await genesis.sweep_when_due()
    assert not genesis.is_coordinator()
    return ElectedNode(replica)


@pytest.fixture
async def edge(state: Path, clock: ManualClock) -> AsyncIterator[RoomReplica]:
    """The replica of an edge node in the room of root."""
    async with opened(state, clock, node__id="ann") as operations:
        yield await _enter_room_of_root(RoomReplica(operations.core), "edge")


async def _enter_room_of_root(replica: RoomReplica, tier: Tier) -> RoomReplica:
    """Join a room in which two backbone nodes are senior to this node."""
    link = sign_admission(key("root"), "root", "ann", replica.core.node.key.public, tier, NOW + 2)
    others = [entry(ROOT), entry(author("senior", "backbone", at=NOW + 1))]
    welcome = Welcome(GENESIS, 1, (link,))
    await replica.enter_room(SharedRoom(GENESIS, records=others), welcome, lambda tx: None)
    return replica


async def _fill_with_invites(announcer: RecordAnnouncer, clock: ManualClock, count: int) -> None:
    ended = InviteRecord(tier="edge", expires_at=clock.now(), created_by="ann")
    await announcer.publish_records({("invites", f"i{n}@ann"): ended for n in range(count)})


async def test_ended_records_are_removed_after_their_time(
    coordinated: Coordinated, clock: ManualClock
) -> None:
    resolved = replace(review("resolved"), settled_at=clock.now())
    await coordinated.announcer.publish_records({REVIEW_SLOT: resolved})
    await coordinated.coordinator.sweep()
    assert "r1" in coordinated.replica.current_room.effective.reviews
    clock.advance(365 * _DAY_MS)
    await coordinated.coordinator.sweep()
    assert "r1" not in coordinated.replica.current_room.effective.reviews


async def test_the_room_is_swept_as_often_as_it_says_and_rotates_when_most_of_it_is_obsolete(
    coordinated: Coordinated, clock: ManualClock
) -> None:
    await _fill_with_invites(coordinated.announcer, clock, 400)
    replica, coordinator = coordinated.replica, coordinated.coordinator
    await coordinator.sweep_when_due()
    clock.advance(8 * _DAY_MS)
    await coordinator.sweep_when_due()
    assert len(replica.current_room.effective.invites) == 0, "they are tombstones now"
    assert replica.current_room.epoch == 1
    clock.advance(31 * _DAY_MS)
    await coordinator.sweep_when_due()
    assert replica.current_room.epoch == 2
    assert len(replica.current_room.document) == 2, "the node, and the claim of its coordinator"
    clock.advance(599_000)
    await _fill_with_invites(coordinated.announcer, clock, 1)
    await coordinator.sweep_when_due()
    assert replica.current_room.epoch == 2


@pytest.mark.parametrize("tier", ["backbone", "edge"])
async def test_only_the_genesis_coordinates(state: Path, clock: ManualClock, tier: Tier) -> None:
    async with opened(state, clock, node__id="ann") as operations:
        replica = await _enter_room_of_root(RoomReplica(operations.core), tier)
        coordinator = RoomCoordinator(RecordAnnouncer(replica))
        assert not coordinator.is_coordinator()
        with pytest.raises(Forbidden, match="run this on root"):
            await coordinator.rotate()


async def test_settings_of_the_coordinator_are_published_for_all(
    state: Path, clock: ManualClock
) -> None:
    values = {"room__sweep_every_secs": 5, "room__keep_invites_secs": 60}
    async with opened(state, clock, node__id="ann", **values) as operations:
        replica = RoomReplica(operations.core)
        await replica.load_room()
        await replica.found_room(lambda tx: None)
        announcer = RecordAnnouncer(replica)
        announcer.may_publish.set()
        coordinator = RoomCoordinator(announcer)
        await coordinator.sweep()
        claim = replica.current_room.effective.coordination
        assert claim is not None
        assert (claim.sweep_every_seconds, claim.retention.invite_ms) == (5, 60_000)
        assert claim.room_epoch == 1
        count = replica.changes.count
        await coordinator.sweep()
        assert replica.changes.count == count, "they are published once"


async def test_nobody_follows_a_claim_beyond_the_next_epoch(edge: RoomReplica) -> None:
    for version, epoch in ((1, 2**31 - 1), (2, 2)):
        edge.current_room.apply_update(update(coordination(epoch, version)), "peer")
        await edge.follow_epoch()
    assert edge.current_room.epoch == 2


@pytest.mark.parametrize("liar", ["mallory", "senior"])
async def test_a_welcome_moves_nobody_to_an_epoch_that_the_coordinator_did_not_sign(
    edge: RoomReplica, liar: str
) -> None:
    tier: Tier = "edge" if liar == "mallory" else "backbone"
    by, far = author(liar, tier, at=NOW + 1), 2**31 - 1
    for proof in (None, proof_of(2), proof_of(far, by)):
        with pytest.raises(Forbidden):
            edge.check_welcome(Welcome(GENESIS, far, (), proof), by.key.public)
    with pytest.raises(RoomViolation):
        edge.current_room.note_epoch_proof(proof_of(far, by))
    await edge.follow_epoch()
    assert edge.current_room.epoch == 1
    edge.check_welcome(Welcome(GENESIS, 3, (), proof_of(3)), by.key.public)


@pytest.mark.parametrize(("days", "known"), [(29, True), (31, False)])
async def test_owners_are_forgotten_by_a_gateway_that_was_away_for_longer_than_tombstones_last(
    edge: RoomReplica, clock: ManualClock, days: int, known: bool
) -> None:
    clock.advance(days * _DAY_MS)
    again = RoomReplica(edge.core)
    await again.load_room()
    again.current_room.owners.keep_owner("job", KnownOwner("senior", 1))
    await again.catch_up_to(proof_of(2))
    assert ("job" in again.current_room.owners.known) == known


async def test_a_proven_epoch_is_followed_and_its_proof_kept(edge: RoomReplica) -> None:
    edge.current_room.note_epoch_proof(proof_of(7))
    await edge.follow_epoch()
    assert edge.current_room.epoch == 7
    again = RoomReplica(edge.core)
    await again.load_room()
    assert (again.current_room.epoch, again.current_room.epoch_proof) == (7, proof_of(7))


async def test_an_elected_node_coordinates_with_the_mandate_of_the_genesis_only(
    replica: RoomReplica, announcer: RecordAnnouncer, bob: ElectedNode
) -> None:
    room, office = replica.current_room, None
    coordinator = RoomCoordinator(announcer, lambda: office)
    without = bob.sign_claim(mandate=None)
    with pytest.raises(RoomViolation, match="mandate"):
        room.apply_update(update(without), "peer")
    forged = replace(bob.mandate, signature=without.signature)
    with pytest.raises(RoomViolation, match="signed"):
        room.apply_update(update(bob.sign_claim(mandate=forged)), "")
    room.apply_update(update(bob.sign_claim()), "peer")
    assert coordinator.current_claim() == bob.claim
    # A later term replaces it. A claim of an earlier one changes nothing.
    office = Term(6, "ann")
    await coordinator.sweep_when_due()
    assert coordinator.is_coordinator() and coordinator.current_claim().coordinator == "ann"
    room.apply_update(update(bob.sign_claim(2, room_epoch=2)), "peer")
    await replica.follow_epoch()
    assert (coordinator.current_claim().coordinator, replica.current_room.epoch) == ("ann", 1)


async def test_claims_of_elected_nodes_end_when_the_genesis_leaves_the_mesh(
    replica: RoomReplica, announcer: RecordAnnouncer, bob: ElectedNode
) -> None:
    replica.current_room.apply_update(update(bob.sign_claim()), "peer")
    alone = RoomCoordinator(announcer)
    assert alone.current_claim().coordinator == "bob"
    await alone.sweep()
    assert alone.current_claim().coordinator == "ann"
    assert (await alone.rotate()).epoch == 2


@pytest.mark.parametrize("epoch", [2 + MAX_ELECTED_LEAD, 2**31 - 1])
async def test_an_elected_coordinator_proves_no_epoch_far_ahead(
    replica: RoomReplica, bob: ElectedNode, epoch: int
) -> None:
    with pytest.raises(RoomViolation, match="too far"):
        replica.current_room.note_epoch_proof(make_epoch_proof(bob.sign_claim(room_epoch=epoch)))
