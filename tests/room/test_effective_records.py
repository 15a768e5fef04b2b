"""What counts in each map, and that looking early does not change what is seen late."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.room import (
    CapabilityRecord,
    EligibilityRecord,
    EtaAdviceRecord,
    InviteRecord,
    RecordAuthor,
    ReviewRecord,
    RoutingRecord,
    SignedRecord,
    SkillRef,
    sign_admission,
)
from gatepost.room.findings import MAX_AHEAD_MS, choose_advice, choose_report
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import (
    NOW,
    ROOT,
    agent,
    author,
    claim,
    coordination,
    delivery,
    entry,
    key,
    node,
    revocation,
    room,
    shown,
)

VPS = author("vps", "backbone", at=NOW + 1)
ANN = author("ann", at=NOW + 2)
BEN = author("ben", at=NOW + 3)
EVERYONE = [entry(who) for who in (ROOT, VPS, ANN, BEN)]
BENS = claim(BEN, "agents", "job", agent("ben"))
SKILL = SkillRef(ref="skills/job", version="1")
CAPABILITY = CapabilityRecord(
    name="Job",
    version="1",
    owner_agent_id="job",
    delegation_skill_ref=SKILL,
    executor_skill_ref=SKILL,
    default_eta_seconds=60,
    contract_schema_ref="schemas/job",
    status="active",
)
ELIGIBLE = EligibilityRecord(eligible_agent_ids=("job",), updated_at=NOW, policy_version=1)


def route(owner: str, epoch: int = 1) -> RoutingRecord:
    return RoutingRecord(owner_node_id=owner, epoch=epoch)


def routed(*claims: SignedRecord) -> str | None:
    found = room(*EVERYONE, BENS, *claims).effective.routing.get("job")
    return found.owner_node_id if found else None


def test_the_owner_of_an_agent_and_backbone_nodes_route_it() -> None:
    assert routed(claim(BEN, "routing", "job", route("ben"))) == "ben"
    assert routed(claim(VPS, "routing", "job", route("vps"))) == "vps"
    assert routed(claim(ANN, "routing", "job", route("ann"))) is None


def test_the_later_epoch_routes_and_of_one_epoch_the_senior() -> None:
    bens, vps = (
        claim(BEN, "routing", "job", route("ben", 2)),
        claim(VPS, "routing", "job", route("vps")),
    )
    assert routed(bens, vps) == "ben"
    assert routed(bens, claim(VPS, "routing", "job", route("vps", 2))) == "vps"


def test_routing_follows_when_the_agent_moves() -> None:
    seen = room(*EVERYONE, BENS, claim(BEN, "routing", "job", route("ben")))
    assert "job" in seen.effective.routing
    seen.accept_drafts([claim(BEN, "agents", "job", None, 2)])
    assert "job" not in seen.effective.routing


def test_a_node_routes_itself() -> None:
    seen = room(*EVERYONE, claim(ANN, "routing", "ann", route("ann")))
    assert seen.effective.routing["ann"].owner_node_id == "ann"


def catalogued(*claims: SignedRecord) -> tuple[bool, bool]:
    view = room(*EVERYONE, BENS, *claims).effective
    return "job" in view.capability_catalog, "job" in view.capability_index


PUBLISHED = claim(BEN, "capabilities.catalog", "job", CAPABILITY)
INDEXED = claim(BEN, "capabilities.index", "job", ELIGIBLE)


def test_a_capability_is_published_by_its_owners_gateway() -> None:
    assert catalogued(PUBLISHED, INDEXED) == (True, True)
    foreign = [claim(ANN, s.map, "job", s.data) for s in (PUBLISHED, INDEXED)]
    assert catalogued(*foreign) == (False, False)


def test_who_takes_back_a_capability_takes_back_who_may_be_asked_for_it() -> None:
    back = claim(BEN, "capabilities.catalog", "job", None, 2)
    off = claim(BEN, "capabilities.catalog", "job", replace(CAPABILITY, status="disabled"), 2)
    assert catalogued(PUBLISHED, INDEXED, back) == (False, False)
    assert catalogued(PUBLISHED, INDEXED, off) == (True, False)


def test_a_capability_taken_back_is_not_asked_for_by_who_looked_before() -> None:
    seen = room(*EVERYONE, BENS, PUBLISHED, INDEXED)
    assert list(seen.effective.capability_index) == ["job"]
    seen.accept_drafts([claim(BEN, "capabilities.catalog", "job", None, 2)])
    assert list(seen.effective.capability_index) == []


def test_a_capability_goes_when_its_agent_goes_also_after_it_was_looked_at() -> None:
    seen = room(*EVERYONE, BENS, PUBLISHED, INDEXED)
    assert list(seen.effective.capability_index) == ["job"]
    seen.accept_drafts([claim(BEN, "agents", "job", None, 2)])
    assert (list(seen.effective.capability_catalog), list(seen.effective.capability_index)) == (
        [],
        [],
    )


def test_an_edge_node_takes_no_capability_of_another_by_a_later_epoch() -> None:
    """Tasks for a capability go to its owner, with their inputs."""
    eve = author("eve", at=NOW + 4)
    spy = claim(eve, "agents", "spy", agent("eve"))
    mine = replace(CAPABILITY, owner_agent_id="spy", epoch=2**31 - 1)
    taken = claim(eve, "capabilities.catalog", "job", mine)
    for publisher in (BEN, VPS):
        published = claim(publisher, "capabilities.catalog", "job", CAPABILITY)
        view = room(*EVERYONE, BENS, entry(eve), spy, published, taken).effective
        assert view.capability_catalog["job"].owner_agent_id == "job"
    view = room(*EVERYONE, BENS, entry(eve), spy, taken).effective
    assert view.capability_catalog["job"].owner_agent_id == "spy"


def test_a_capability_follows_its_owner_to_another_gateway_and_backbone_nodes_replace_it() -> None:
    stale = claim(VPS, "capabilities.catalog", "job", CAPABILITY)
    later = claim(BEN, "capabilities.catalog", "job", replace(CAPABILITY, version="2", epoch=2))
    assert room(*EVERYONE, BENS, stale, later).effective.capability_catalog["job"].version == "2"
    other = replace(CAPABILITY, owner_agent_id="other", epoch=2)
    replaced = claim(VPS, "capabilities.catalog", "job", other)
    view = room(*EVERYONE, BENS, PUBLISHED, replaced).effective
    assert view.capability_catalog["job"].owner_agent_id == "other"


def test_the_index_follows_the_agent_also_where_the_catalog_stays() -> None:
    published = claim(VPS, "capabilities.catalog", "job", CAPABILITY)
    seen = room(*EVERYONE, BENS, published, INDEXED)
    assert list(seen.effective.capability_index) == ["job"]
    seen.accept_drafts([claim(BEN, "agents", "job", agent(None), 2)])
    assert (list(seen.effective.capability_catalog), list(seen.effective.capability_index)) == (
        ["job"],
        [],
    )


def test_invites_count_from_backbone_nodes() -> None:
    invite = InviteRecord(tier="edge", expires_at=NOW, created_by="vps")
    seen = room(*EVERYONE, claim(VPS, "invites", "i1", invite))
    assert dict(seen.effective.invites) == {"i1": invite}


def test_the_coordinator_names_the_epoch() -> None:
    found = room(*EVERYONE, coordination(1), coordination(2, 2)).effective.coordination
    assert found is not None
    assert (found.coordinator, found.room_epoch) == ("root", 2)
    assert room(*EVERYONE).effective.coordination is None


def test_deliveries_and_reviews_are_shown() -> None:
    review = ReviewRecord(
        capability_id="job",
        delegation_skill_version="1",
        executor_skill_version="1",
        failure_class="routing_miss",
        raised_at=NOW,
    )
    moved = sign_record(ANN, "delivery", "ann", 1, NOW, delivery(7))
    view = room(*EVERYONE, moved, claim(ANN, "reviews", "r", review)).effective
    assert (view.delivery["ann"].inbox_cursor_acked, view.reviews["r"][0].record) == (
        7,
        review,
    )


def test_a_sign_of_life_is_seen() -> None:
    seen = room(*EVERYONE)
    assert seen.effective.nodes["ann"].record == node(ANN)
    seen.accept_drafts([entry(ANN, 2, status="degraded")])
    assert seen.effective.nodes["ann"].record == replace(node(ANN), status="degraded")


def test_nothing_of_a_node_counts_before_its_record_came_or_after_it_was_revoked() -> None:
    seen = room(entry(ROOT), BENS)
    assert dict(seen.effective.agents) == {}
    seen.accept_drafts([entry(BEN)])
    assert list(seen.effective.agents) == ["job"]
    seen.accept_drafts([revocation(ROOT, BEN)])
    assert dict(seen.effective.agents) == {}


def test_nothing_of_a_second_key_for_a_nodes_name_counts() -> None:
    link = sign_admission(VPS.key, "vps", "ben", key("thief").public, "edge", NOW + 9)
    thief = RecordAuthor(key("thief"), (*VPS.chain, link))
    stolen = claim(thief, "agents", "loot", agent("ben"))
    seen = room(*EVERYONE, BENS, sign_record(thief, "nodes", "ben", 9, NOW, node(thief)), stolen)
    assert list(seen.effective.agents) == ["job"]


RECORDS = [
    *EVERYONE,
    BENS,
    claim(ANN, "agents", "job", replace(agent("ann"), standby=True)),
    claim(BEN, "routing", "job", route("ben", 2)),
    claim(VPS, "routing", "job", route("vps")),
    PUBLISHED,
    INDEXED,
    claim(BEN, "capabilities.catalog", "job", None, 2),
    claim(VPS, "capabilities.catalog", "job", CAPABILITY),
    coordination(1),
    coordination(2, 2),
    revocation(VPS, BEN),
    claim(VPS, "nodes", "ben", None, 2),
    entry(ANN, 2, status="offline"),
    sign_record(BEN, "nodes", "ben", 2, NOW, None),
    sign_record(ANN, "delivery", "ann", 1, NOW, delivery(3)),
]


@given(st.sets(st.sampled_from(range(len(RECORDS)))), st.randoms(use_true_random=False))
def test_the_view_depends_on_the_records_not_on_when_they_came(
    chosen: set[int], random: Random
) -> None:
    """Looked at after every record, or only once all are there."""
    records = [RECORDS[i] for i in sorted(chosen)]
    at_once = room(*records)
    random.shuffle(records)
    one_by_one = room()
    for record in records + records[:3]:
        one_by_one.accept_drafts([record])
        shown(one_by_one)
    assert shown(one_by_one) == shown(at_once)


def test_a_review_is_settled_by_a_backbone_node_or_by_the_only_node_that_raised_it() -> None:
    open_ = ReviewRecord(
        capability_id="job",
        delegation_skill_version="1",
        executor_skill_version="1",
        failure_class="sla_breach",
        raised_at=NOW,
    )
    later = replace(open_, status="dismissed", settled_at=NOW + 2, settled_by="vps")
    first = replace(open_, status="resolved", settled_at=NOW + 1, settled_by="ben")
    for claims, status in (
        ([claim(VPS, "reviews", "r", open_), claim(ANN, "reviews", "r", open_)], "open"),
        ([claim(VPS, "reviews", "r", open_), claim(ROOT, "reviews", "r", first)], "resolved"),
        ([claim(VPS, "reviews", "r", later), claim(ROOT, "reviews", "r", first)], "resolved"),
        ([claim(BEN, "reviews", "r", first)], "resolved"),
        ([claim(VPS, "reviews", "r", open_), claim(BEN, "reviews", "r", first)], "open"),
        ([claim(ANN, "reviews", "r", open_), claim(BEN, "reviews", "r", first)], "open"),
    ):
        found = choose_report(room(*EVERYONE, *claims).effective.reviews["r"], NOW + 9)
        assert found is not None and found.record.status == status


def advice(eta: int, at: int) -> EtaAdviceRecord:
    return EtaAdviceRecord(p50_ms=1, p95_ms=2, recommended_eta_seconds=eta, samples=3, at=NOW + at)


def advised(*claims: SignedRecord) -> int | None:
    found = room(*EVERYONE, BENS, *claims).effective.eta_advice.get("job", ())
    chosen = choose_advice(found, NOW)
    return None if chosen is None else chosen.recommended_eta_seconds


def test_the_latest_advice_counts_of_the_owner_and_of_backbone_nodes() -> None:
    """`ben` is the gateway of the agent that owns the capability."""
    of_owner = (PUBLISHED, claim(BEN, "eta", "job", advice(60, 1)))
    of_edge = claim(ANN, "eta", "job", advice(90, 3))
    of_backbone = claim(VPS, "eta", "job", advice(75, 2))
    assert advised(*of_owner) == 60
    assert advised(*of_owner, of_edge) == 60
    assert advised(*of_owner, of_edge, of_backbone) == 75
    assert advised(of_owner[1], of_edge) is None, "nobody published it"


def test_the_owner_advises_from_where_it_lives_now() -> None:
    given = (claim(BEN, "eta", "job", advice(60, 1)), claim(ANN, "eta", "job", advice(90, 2)))
    seen = room(*EVERYONE, BENS, PUBLISHED, *given)
    assert [each.writer for each in seen.effective.eta_advice["job"]] == ["ben"]
    seen.accept_drafts([revocation(ROOT, BEN)])
    assert "job" not in seen.effective.eta_advice


def test_advice_of_the_future_waits_until_then() -> None:
    ahead = claim(VPS, "eta", "job", advice(90, MAX_AHEAD_MS + 1))
    assert advised(claim(ROOT, "eta", "job", advice(60, 1)), ahead) == 60
