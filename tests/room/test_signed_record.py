"""A record is believed only as the very text its writer signed, of the type its key holds."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import RoomViolation
from gatepost.room import (
    ChainVerifier,
    CoordinatorTerm,
    RecordAuthor,
    RoomRecord,
    claim_key,
    records,
)
from gatepost.room.records import (
    CapabilityRecord,
    CoordinationRecord,
    DeliveryRecord,
    DescriptorPoint,
    DescriptorRecord,
    EligibilityRecord,
    EtaAdviceRecord,
    IncidentRecord,
    InviteRecord,
    MeshSecretRecord,
    ReviewRecord,
    RevocationRecord,
    RoutingRecord,
    SkillRef,
    StandingRecord,
    TransportRecord,
)
from gatepost.room.signed_record import SignedRecord, open_signed_record, sign_record
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    agent,
    author,
    claim,
    coordination,
    entry,
    node,
)

VPS = author("vps", "backbone")
EDGE = author("laptop", "edge", VPS)
SKILL = SkillRef(ref="skills/review@main", version="1.2.0")

EVERY_KIND: list[tuple[RecordAuthor, str, str, RoomRecord]] = [
    (EDGE, "nodes", "laptop", node(EDGE)),
    (VPS, "nodes", "laptop@vps", RevocationRecord(key="0" * 32, revoked_at=NOW)),
    (VPS, "standing", f"{'0' * 32}.0@vps", StandingRecord(standing=("1" * 32,))),
    (EDGE, "agents", "builder@laptop", agent("laptop")),
    (
        EDGE,
        "routing",
        "builder@laptop",
        RoutingRecord(owner_node_id="laptop", fallback_node_ids=("vps",)),
    ),
    (
        EDGE,
        "capabilities.catalog",
        "code.review@laptop",
        CapabilityRecord(
            name="Code review",
            version="2",
            owner_agent_id="builder",
            delegation_skill_ref=SKILL,
            executor_skill_ref=SKILL,
            default_eta_seconds=600,
            contract_schema_ref="sha256:abc",
            status="active",
        ),
    ),
    (
        EDGE,
        "capabilities.index",
        "code.review@laptop",
        EligibilityRecord(eligible_agent_ids=("builder",), updated_at=NOW, policy_version=3),
    ),
    (VPS, "invites", "abc@vps", InviteRecord(tier="edge", expires_at=NOW, created_by="vps")),
    (EDGE, "delivery", "laptop", DeliveryRecord(inbox_cursor_acked=5)),
    (
        ROOT,
        "coordination",
        "coordinator@root",
        CoordinationRecord(
            coordinator="root", term=CoordinatorTerm(counter=3, node="root"), sweep_every_seconds=60
        ),
    ),
    (
        EDGE,
        "reviews",
        "r1@laptop",
        ReviewRecord(
            capability_id="code.review",
            delegation_skill_version="1",
            executor_skill_version="1",
            failure_class="eta_breach",
            corr_ids=("c1",),
            raised_at=NOW,
        ),
    ),
    (
        EDGE,
        "incidents",
        "0f@laptop",
        IncidentRecord(id="pipeline:silent_node:bob", incident_class="silent_node", raised_at=NOW),
    ),
    (
        EDGE,
        "eta",
        "code.review@laptop",
        EtaAdviceRecord(p50_ms=1, p95_ms=2, recommended_eta_seconds=60, samples=9, at=NOW),
    ),
    (
        ROOT,
        "secrets",
        f"{'0f' * 16}@root",
        MeshSecretRecord(version=2, rotated_by="root", revoked=("ab" * 16,), encrypted=b"x"),
    ),
    (EDGE, "transports", "laptop", TransportRecord(udp="127.0.0.1:7", tunnel_ip="10.1.2.3")),
    (
        ROOT,
        "rendezvous",
        "descriptor@root",
        DescriptorRecord(
            issued_at=NOW,
            expires_at=NOW + 1,
            points=(DescriptorPoint(node="root", key="ab" * 16, tier="backbone"),),
        ),
    ),
]


def opened(signed: SignedRecord, **changes: str) -> SignedRecord:
    text, signature = changes.get("text", signed.text), changes.get("signature", signed.signature)
    return open_signed_record(text, signature, ChainVerifier(GENESIS))


def broken_rule(signed: SignedRecord, **changes: str) -> str:
    with pytest.raises(RoomViolation) as caught:
        opened(signed, **changes)
    return caught.value.rule


@pytest.mark.parametrize(("who", "map", "key", "data"), EVERY_KIND, ids=lambda v: str(v)[:24])
def test_every_kind_of_record_is_read_as_it_was_signed(
    who: RecordAuthor, map: str, key: str, data: RoomRecord
) -> None:
    signed = sign_record(who, map, key, 3, NOW, data)
    assert opened(signed) == signed
    assert opened(signed).data == data
    assert json.loads(signed.text)["data"] == json.loads(msgspec.json.encode(data))


def test_every_map_is_covered_above() -> None:
    assert {map for _, map, _, _ in EVERY_KIND} == records.MAPS.keys()


def test_a_tombstone_is_signed_like_any_record() -> None:
    tombstone = claim(EDGE, "agents", "builder", None, 2)
    assert opened(tombstone).data is None
    assert json.loads(tombstone.text)["tombstone"] is True


def test_a_signature_by_another_key_is_refused() -> None:
    mine, other = entry(EDGE), entry(VPS)
    assert broken_rule(mine, signature=other.signature) == "signature"
    assert broken_rule(mine, signature="") == "signature"
    assert broken_rule(mine, signature="A" * 88) == "signature"
    # The same 64 bytes, spelled differently.
    assert broken_rule(mine, signature=mine.signature[:-3] + "B==") == "signature"


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ('"map":"nodes"', '"map":"delivery"', "type"),
        ('"map":"nodes"', '"map":"payloads"', "unknown_map"),
        ('"key":"laptop"', '"key":"vps"', "not_writer"),
        ('"key":"laptop"', '"key":"laptop@vps"', "not_writer"),
        ('"key":"laptop"', '"key":"vps@laptop"', "role"),
        ('"key":"laptop"', '"key":"a b"', "unknown_key"),
        ('"writer":"laptop"', '"writer":"vps"', "not_writer"),
        ('"version":1', '"version":2', "signature"),
        ('"version":1', '"version":0', "record"),
        ('"version":1', '"version":1.0', "record"),
        ('"status":"online"', '"status":"offline"', "signature"),
        ('"status":"online"', '"status":"lost"', "type"),
        ('"status":"online"', '"status":"online","payload":"x"', "type"),
        ('"status":"online"', '"status": "online"', "type"),
        ('"status":"online"', '"status":"online","status":"online"', "type"),
        ('"tier":"edge"', '"tier":"backbone"', "inconsistent"),
        ('"addedBy":"vps"', '"addedBy":"root"', "inconsistent"),
        ('{"map"', ' {"map"', "record"),
        ('{"map"', '{"payload":1,"map"', "record"),
        ('"at":', '"tombstone":true,"at":', "record"),
    ],
)
def test_an_altered_text_breaks_the_rule_that_covers_it(before: str, after: str, rule: str) -> None:
    signed = entry(EDGE)
    assert before in signed.text
    assert broken_rule(signed, text=signed.text.replace(before, after, 1)) == rule


def test_a_record_of_one_map_is_not_taken_for_another() -> None:
    assert broken_rule(sign_record(EDGE, "delivery", "laptop", 1, NOW, node(EDGE))) == "type"
    assert (
        broken_rule(sign_record(EDGE, "agents", "laptop", 1, NOW, agent("laptop"))) == "unknown_key"
    )


@pytest.mark.parametrize("map", ["nodes", "agents", "capabilities.index"])
def test_a_record_over_its_limit_is_refused(map: str) -> None:
    ids = tuple(f"{i:04}" + "x" * 120 for i in range(150))
    index = EligibilityRecord(eligible_agent_ids=ids, updated_at=NOW, policy_version=1)
    assert broken_rule(sign_record(EDGE, map, "a@laptop", 1, NOW, index)) == "too_large"


def test_an_index_may_be_larger_than_other_records() -> None:
    ids = tuple(f"{i:04}" + "x" * 120 for i in range(100))
    index = EligibilityRecord(eligible_agent_ids=ids, updated_at=NOW, policy_version=1)
    signed = claim(EDGE, "capabilities.index", "c", index)
    assert 12_000 < len(signed.text) < 16_384
    assert opened(signed).data == index


@pytest.mark.parametrize(
    "data",
    [
        InviteRecord(tier="edge", expires_at=NOW, created_by="root"),
        CoordinationRecord(
            coordinator="vps", term=CoordinatorTerm(counter=1, node="vps"), sweep_every_seconds=1
        ),
        CoordinationRecord(
            coordinator="root", term=CoordinatorTerm(counter=1, node="vps"), sweep_every_seconds=1
        ),
    ],
)
def test_nobody_speaks_in_anothers_name_inside_a_record(data: RoomRecord) -> None:
    map = "invites" if isinstance(data, InviteRecord) else "coordination"
    writer = VPS if isinstance(data, InviteRecord) else ROOT
    assert broken_rule(claim(writer, map, "coordinator", data)) == "inconsistent"


def test_an_edge_node_neither_invites_nor_revokes() -> None:
    invite = InviteRecord(tier="edge", expires_at=NOW, created_by="laptop")
    assert broken_rule(claim(EDGE, "invites", "i", invite)) == "role"
    revoked = RevocationRecord(key="0" * 32, revoked_at=NOW)
    assert broken_rule(claim(EDGE, "nodes", "vps", revoked)) == "role"


def test_only_the_genesis_names_an_epoch() -> None:
    for other in (EDGE, VPS):
        assert broken_rule(coordination(2**31 - 1, by=other)) == "role"
    assert opened(coordination(2)).data == coordination(2).data


def test_nobody_revokes_itself_or_the_genesis() -> None:
    data = RevocationRecord(key="0" * 32, revoked_at=NOW)
    assert broken_rule(claim(VPS, "nodes", "root", data)) == "inconsistent"
    assert broken_rule(claim(VPS, "nodes", "vps", data)) == "inconsistent"


def test_a_node_that_was_never_admitted_is_refused() -> None:
    forger = RecordAuthor(
        author("m").key, (msgspec.structs.replace(author("m").chain[0], node="laptop"),)
    )
    assert broken_rule(
        sign_record(forger, "delivery", "laptop", 1, NOW, DeliveryRecord(inbox_cursor_acked=1))
    )


@pytest.mark.parametrize(
    "smuggled", ["x" * 300, "two words", "line\nbreak", "{}", "é", "", "a@b@c"]
)
def test_no_name_in_a_record_can_carry_a_payload(smuggled: str) -> None:
    for data in (agent(smuggled), RoutingRecord(owner_node_id=smuggled)):
        map = "agents" if smuggled == getattr(data, "gateway", None) else "routing"
        assert broken_rule(claim(EDGE, map, "builder", data)) in ("type", "too_large")
    assert broken_rule(claim(EDGE, "agents", smuggled, agent("laptop"))) in (
        "unknown_key",
        "record",
        "not_writer",
    )


@given(st.text(max_size=300), st.text(max_size=100))
def test_random_texts_raise_nothing_but_violations(text: str, signature: str) -> None:
    with pytest.raises(RoomViolation):
        open_signed_record(text, signature, ChainVerifier(GENESIS))


def test_a_key_names_its_subject_and_its_writer() -> None:
    assert claim_key("a", "n") == "a@n"
    assert (records.key_subject("a@n"), records.key_writer("a@n")) == ("a", "n")
    assert (records.key_subject("n"), records.key_writer("n")) == ("n", "n")
