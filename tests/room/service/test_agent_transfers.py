"""What a gateway says of its agents, and how it answers who asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gatepost.delivery.transfers import TransferRequest
from gatepost.errors import Forbidden
from gatepost.gateway.admin.agent_claims import AgentClaims
from gatepost.gateway.api.operations import Operations
from gatepost.journal import Tx
from gatepost.mailbox import Waiter
from gatepost.room import (
    AgentRecord,
    RecordAuthor,
    SharedRoom,
    SignedRecord,
    append_admission,
    claim_key,
    sign_admission,
    transfer_claim,
)
from gatepost.room import sign_transfer as signed_transfer
from gatepost.room.service import own_records
from gatepost.room.service.agent_transfers import AgentOwnership
from gatepost.room.service.own_record_announcer import OwnRecordAnnouncer
from gatepost.room.service.owner_changes import OwnerChanges
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.routing import build_directory
from gatepost.testing import ManualClock
from gatepost.wire.gateway_views import AgentInfo as LocalAgent
from gatepost.wire.operations import Register
from gatepost.wire.room_views import ClaimRequest
from tests.gateway.tools import dump, opened
from tests.room.sample_records import NOW, ROOT, agent, author, claim, entry, key, node, room

pytestmark = pytest.mark.anyio

ANN = author("ann", at=NOW + 2)
BEN = author("ben", at=NOW + 3)
JOB = LocalAgent("job", "internal", NOW, NOW)
PLACE = ("agents", "job@ben")


def said(
    *claims: SignedRecord, local: list[LocalAgent]
) -> dict[tuple[str, str], AgentRecord | None]:
    """What ben says, knowing all this."""
    found = room(entry(ROOT), entry(ANN), entry(BEN), *claims, of=BEN)
    return own_records.agent_claims(found, local, "ben")


def given(agent: AgentRecord, giver: RecordAuthor, taker: RecordAuthor) -> AgentRecord:
    step = signed_transfer(giver.key, giver.node, taker.node, "job", agent.epoch + 1)
    return transfer_claim(agent, step)


BENS, ANNS = agent("ben"), agent("ann")


def test_an_agent_nobody_claims_is_ours() -> None:
    claim = said(local=[JOB])[PLACE]
    assert claim == AgentRecord(gateway="ben", type="internal", last_seen_at=NOW)


def test_an_agent_of_another_is_not_claimed() -> None:
    assert said(claim(ANN, "agents", "job", ANNS), local=[JOB]) == {}


def test_who_lost_a_race_stays_visible_as_a_rival() -> None:
    claims = [claim(ANN, "agents", "job", ANNS), claim(BEN, "agents", "job", BENS)]
    assert said(*claims, local=[JOB]) == {PLACE: BENS}


def test_a_standby_says_so_and_claims_nothing() -> None:
    found = said(claim(ANN, "agents", "job", ANNS), local=[replace(JOB, standby=True)])[PLACE]
    assert found is not None
    assert (found.standby, found.epoch) == (True, 1)


def test_who_is_given_an_agent_says_what_the_giver_said() -> None:
    bens = given(ANNS, ANN, BEN)
    found = said(claim(ANN, "agents", "job", bens), local=[replace(JOB, seen_at=NOW + 9)])
    assert found == {PLACE: replace(bens, last_seen_at=NOW + 9)}


def test_the_giver_repeats_it_until_the_taker_has_said_it() -> None:
    anns = given(BENS, BEN, ANN)
    ours, theirs = claim(BEN, "agents", "job", anns), claim(ANN, "agents", "job", anns)
    assert said(ours, local=[]) == {PLACE: anns}
    assert said(ours, theirs, local=[]) == {PLACE: None}


def test_an_agent_that_was_removed_is_taken_back() -> None:
    assert said(claim(BEN, "agents", "job", BENS), local=[]) == {PLACE: None}


def test_agents_of_a_large_room_beat_less_often_because_every_gateway_verifies_it() -> None:
    others = [claim(ANN, "agents", f"agent-{number}", ANNS) for number in range(1999)]
    claims = [*others, claim(BEN, "agents", "job", BENS)]

    def told(after_ms: int) -> int:
        found = said(*claims, local=[replace(JOB, seen_at=NOW + after_ms)])[PLACE]
        assert found is not None
        return found.last_seen_at - NOW

    assert told(99_999) == 0
    assert told(100_000) == 100_000


# -- answering


class Scene:
    """A gateway that founded its room, into which it let ben, who is only a key."""

    def __init__(self, operations: Operations, clock: ManualClock) -> None:
        self.operations = operations
        self.core = operations.core
        self.clock = clock
        self.replica = RoomReplica(operations.core)
        self.announcer = RecordAnnouncer(self.replica)
        self.ownership = AgentOwnership(self.announcer)
        self.claims = AgentClaims(self.ownership)
        self.changes = OwnerChanges(self.ownership)
        self.me = self.core.node.id

    async def begin(self) -> None:
        await self.replica.found_room(lambda tx: None)
        self.announcer.may_publish.set()
        room, ben = self.room, key("ben")
        link = sign_admission(
            self.core.node.key, self.me, "ben", ben.public, "edge", self.clock.now()
        )
        self.ben = RecordAuthor(
            ben, append_admission(room.genesis, self.replica.author.chain, link)
        )
        self.hear("nodes", "ben", replace(node(self.ben, room.genesis), endpoint_ws=None))
        await self.operations.perform(Register(agent="job"))
        await self.refresh()

    @property
    def room(self) -> SharedRoom:
        return self.replica.current_room

    def hear(self, map: str, key: str, data: object, version: int = 1) -> None:
        """Ben says something in the room."""
        self.room.accept_drafts([sign_record(self.ben, map, key, version, self.clock.now(), data)])  # type: ignore[arg-type]

    async def refresh(self) -> None:
        await OwnRecordAnnouncer(self.announcer).refresh_records()
        directory = build_directory(self.room.effective, lambda id: True)
        await self.core.commit(lambda tx: self.core.coordinator.room_changed(tx, directory))

    async def asked_for(self, node: str = "ben") -> None:
        """Ben, or another node, asks for the agent."""
        insert = "INSERT INTO transfer_request VALUES ('job', ?, ?)"
        await self.core.commit(lambda tx: tx.execute(insert, (node, tx.now)))

    async def requests(self) -> list[TransferRequest]:
        return await self.core.read(self.core.delivery.transfers.requests)

    async def serve(self) -> Waiter:
        """Somebody listens to the agent's mailbox."""
        box = await self.core.commit(lambda tx: self.core.dispatcher.mailbox_ref(tx, "job"))
        waiter = Waiter(box, "consumer", 1, lambda messages: None)
        await self.core.commit(lambda tx: self.core.dispatcher.add_waiter(tx, waiter))
        return waiter

    async def look(self, secs: float = 0.0) -> str | None:
        """Let time pass and look; returns whose the agent is then."""
        self.clock.advance(int(secs * 1000))
        await self.changes.follow_owners()
        await self.ownership.check_ownership()
        await self.refresh()
        return self.owner()

    def owner(self) -> str | None:
        return self.room.effective.agents["job"].gateway

    async def hosts_it(self) -> bool:
        return await self.core.read(lambda tx: self.core.agents.is_registered(tx, "job"))

    async def incidents(self, kind: str) -> list[str]:
        await self.core.commit(lambda tx: None)
        return [row[3] for row in dump(self.core)["incident"] if row[1] == kind]

    async def signals(self) -> list[str]:
        query = "SELECT CAST(body AS TEXT) ->> '$.payload.signal' FROM outbox WHERE kind = 'signal'"
        return [row[0] for row in await self.core.read(lambda tx: tx.fetch_all(query))]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock = ManualClock()
    values = {"ownership__takers": "ben", "ownership__dead_after_secs": 60}
    async with opened(tmp_path / "state", clock, node__id="me", **values) as operations:
        scene = Scene(operations, clock)
        await scene.begin()
        assert scene.owner() == "me"
        yield scene


async def test_an_agent_nobody_serves_goes_to_who_asks_after_a_moment(scene: Scene) -> None:
    await scene.asked_for()
    assert await scene.look() == "me"
    assert await scene.look(1.9) == "me"
    assert await scene.look(0.1) == "ben"
    assert not await scene.hosts_it()
    record = scene.room.effective.agents["job"].record
    assert (record.epoch, len(record.transfers)) == (2, 1)
    await scene.look()
    assert await scene.requests() == []


async def test_who_listens_again_in_time_keeps_the_agent(scene: Scene) -> None:
    await scene.asked_for()
    await scene.look()
    waiter = await scene.serve()
    await scene.look(1.0)
    await scene.core.commit(lambda tx: scene.core.dispatcher.remove_waiter(tx, waiter))
    assert await scene.look(1.5) == "me", "the moment starts anew"
    assert await scene.look(2.0) == "ben"


async def test_an_idle_gateway_reads_no_requests_until_something_is_committed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.ownership.check_ownership()
    transfers, reads = scene.core.delivery.transfers, 0
    read_requests = transfers.requests

    def count_read(tx: Tx) -> list[TransferRequest]:
        nonlocal reads
        reads += 1
        return read_requests(tx)

    monkeypatch.setattr(transfers, "requests", count_read)
    for _ in range(5):
        await scene.ownership.check_ownership()
    assert reads == 0
    await scene.core.commit(lambda tx: None)
    await scene.ownership.check_ownership()
    assert reads == 1


async def test_an_agent_that_is_served_is_refused(scene: Scene) -> None:
    await scene.serve()
    await scene.asked_for()
    assert await scene.look(1.0) == "me"
    assert len(await scene.requests()) == 1, "it may be about to leave"
    assert await scene.look(1.0) == "me"
    assert await scene.requests() == []
    assert await scene.signals() == ["transfer_refused"]


async def test_a_node_that_the_settings_do_not_name_gets_nothing_and_the_operator_is_told(
    scene: Scene,
) -> None:
    scene.ownership._takers = frozenset({"cat"})
    await scene.asked_for()
    assert await scene.look(99.0) == "me"
    assert await scene.requests() == []
    assert await scene.signals() == ["transfer_refused"]
    (told,) = await scene.incidents("agent_wanted")
    assert "gatepost agent give job ben" in told


async def test_the_operator_gives_an_agent_although_it_is_served(scene: Scene) -> None:
    await scene.serve()
    assert (await scene.claims.give_agent("job", "ben")).owner == "ben"
    await scene.look()
    assert not await scene.hosts_it()
    (told,) = await scene.incidents("agent_moved")
    assert told == "agent job moved from me to ben"
    assert "agent.moved" in {row[3] for row in dump(scene.core)["audit"]}
    with pytest.raises(Forbidden, match="lives behind ben"):
        await scene.claims.give_agent("job", "me")


async def test_an_owner_that_is_alive_is_not_overridden(scene: Scene) -> None:
    await scene.ownership.give_agent("job", "ben")
    await scene.look(59.0)
    with pytest.raises(Forbidden, match="dead_after_secs"):
        await scene.claims.claim_agent("job", ClaimRequest(override=True))
    assert scene.owner() == "ben"


async def test_who_claims_an_agent_of_another_is_named_and_the_race_is_settled(
    scene: Scene,
) -> None:
    scene.hear("agents", claim_key("job", "ben"), agent("ben"), 500)
    assert await scene.look() == "me"
    await scene.look()
    owned = scene.room.effective.agents["job"]
    assert (owned.gateway, owned.claimants) == ("me", ("ben",))
    assert [step.giver for step in owned.record.transfers] == ["me"], "for those who join later"
    (told,) = await scene.incidents("abuse")
    assert told.startswith("ben was refused (foreign_agent)")
    assert "job" in told


async def test_owners_are_remembered(scene: Scene) -> None:
    await scene.look()
    again = RoomReplica(scene.core)
    await again.load_room()
    assert again.current_room.owners.known["job"].gateway == "me"


async def test_a_crash_between_the_word_and_the_deed_is_made_good(scene: Scene) -> None:
    await scene.ownership.give_agent("job", "ben")
    assert await scene.hosts_it()
    await scene.look()
    assert not await scene.hosts_it()


async def test_who_registers_it_again_asks_for_it_back_and_is_not_removed(scene: Scene) -> None:
    await scene.ownership.give_agent("job", "ben")
    await scene.look()
    scene.clock.advance(10)
    await scene.operations.perform(Register(agent="job"))
    await scene.look(1.0)
    assert await scene.hosts_it()
    assert await scene.signals() == ["transfer_request"]


async def test_a_stranger_gets_nothing(scene: Scene) -> None:
    await scene.asked_for("mallory")
    assert await scene.look() == "me"
    assert await scene.requests() == []


async def test_what_is_served_here_and_owned_elsewhere_is_asked_for_now_and_then(
    scene: Scene,
) -> None:
    await scene.ownership.give_agent("job", "ben")
    await scene.look()
    scene.clock.advance(10)
    await scene.operations.perform(Register(agent="job"))
    await scene.serve()
    await scene.look(1.0)
    await scene.look(13.0)
    assert await scene.signals() == ["transfer_request"]
    await scene.look(1.0)
    assert await scene.signals() == ["transfer_request"] * 2


async def test_who_was_overridden_lets_go(scene: Scene) -> None:
    owned = scene.room.effective.agents["job"]
    step = signed_transfer(scene.core.node.key, "me", "ben", "job", 2)
    bens = transfer_claim(owned.record, step, by_backbone=True)
    scene.hear("agents", claim_key("job", "ben"), bens)
    assert await scene.look() == "ben"
    assert not await scene.hosts_it()
    assert scene.room.effective.agents["job"].rivals == ()


async def test_an_override_is_a_backbone_nodes_word(scene: Scene) -> None:
    await scene.ownership.give_agent("job", "ben")
    await scene.look()
    with pytest.raises(Forbidden, match="heard of 0 s ago"):
        await scene.claims.claim_agent("job", ClaimRequest(override=True))
    await scene.look(61.0)
    shown = await scene.claims.claim_agent("job", ClaimRequest(override=True))
    assert (shown.owner, shown.epoch, shown.rivals) == ("me", 3, ())
    assert await scene.hosts_it()
    assert await scene.look(5.0) == "me"
