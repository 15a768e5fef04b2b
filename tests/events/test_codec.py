"""Every event reads back as it was written, and no input breaks the reader."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.errors import MalformedEvent
from gatepost.events.codec import decode_event, decode_payload, encode_event, encode_payload
from gatepost.events.envelope import MAX_JSON_INT, Envelope, PayloadRef, Receipt, Trace
from gatepost.events.ids import new_event_id
from gatepost.events.kinds import EventKind
from tests.events.fakes import StillClock

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
REQUIRED: dict[str, Any] = {
    "eventId": ID,
    "seq": 1,
    "sourceNodeId": "vps-jane",
    "sourceAgentId": "architect",
    "kind": "message",
    "createdAt": 0,
}
FULL: dict[str, Any] = {
    "eventId": ID,
    "seq": 9,
    "pairSeq": 3,
    "prevSeqTo": 7,
    "sourceNodeId": "vps-jane",
    "sourceAgentId": "architect",
    "toNodeId": "mbp-jane",
    "toAgentId": "helper",
    "kind": "message",
    "corrId": "conversation:1",
    "refEventId": ID,
    "causationId": ID,
    "createdAt": 1,
    "expiresAt": 2,
    "attempt": 2,
    "payload": {"b": 1, "a": [1.5, None, "é"]},
    "trace": {"attempt": 2, "routeDecision": "owner", "policyVersion": 3, "traceparent": "00-a"},
}

names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
counts = st.integers(0, MAX_JSON_INT)
seqs = st.integers(1, MAX_JSON_INT)
event_ids = st.builds(
    lambda now, seed: new_event_id(StillClock(now, seed)), st.integers(0, 2**48 - 1), st.integers()
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip
texts = st.text(max_size=20)
traces = st.builds(
    Trace,
    attempt=counts,
    route_decision=st.none() | texts,
    policy_version=st.none() | texts | counts,
    traceparent=st.none() | texts,
)
refs = st.builds(
    PayloadRef,
    digest=st.binary(min_size=32, max_size=32).map(lambda b: "sha256:" + b.hex()),
    size=counts,
    keys=st.dictionaries(texts, st.binary(max_size=80), max_size=3),
)
bodies: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"payload": json_values.map(encode_payload)}),
    st.fixed_dictionaries({"payload_ref": refs}),
)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    return Envelope(
        event_id=draw(event_ids),
        seq=draw(seqs),
        pair_seq=draw(counts),
        prev_seq_to=draw(counts),
        source_node_id=draw(names),
        source_agent_id=draw(names),
        to_node_id=draw(st.none() | names),
        to_agent_id=draw(st.none() | names),
        kind=draw(st.sampled_from(EventKind).map(str) | st.just("invented_later")),
        corr_id=draw(st.none() | names),
        ref_event_id=draw(st.none() | event_ids),
        causation_id=draw(st.none() | event_ids),
        created_at=draw(counts),
        expires_at=draw(st.none() | counts),
        attempt=draw(counts),
        trace=draw(st.none() | traces),
        **draw(bodies),
    )


def wire(**changes: Any) -> bytes:
    fields = REQUIRED | changes
    return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()


@given(envelopes())
def test_events_round_trip(envelope: Envelope) -> None:
    assert decode_event(encode_event(envelope)) == envelope


@given(envelopes())
def test_encoding_is_canonical(envelope: Envelope) -> None:
    encoded = encode_event(envelope)
    assert encode_event(decode_event(encoded)) == encoded


def test_the_wire_form_is_frozen() -> None:
    envelope = decode_event(wire(**FULL, payload_x=1))
    trace = '{"attempt":2,"routeDecision":"owner","policyVersion":3,"traceparent":"00-a"}'
    payload = json.dumps(FULL["payload"])
    assert encode_event(envelope).decode() == (
        f'{{"eventId":"{ID}","seq":9,"pairSeq":3,"prevSeqTo":7,"sourceNodeId":"vps-jane",'
        '"sourceAgentId":"architect","toNodeId":"mbp-jane","toAgentId":"helper","kind":"message",'
        f'"corrId":"conversation:1","refEventId":"{ID}","causationId":"{ID}","createdAt":1,'
        f'"expiresAt":2,"attempt":2,"payload":{payload},"trace":{trace}}}'
    )


def test_defaults_take_no_room() -> None:
    assert encode_event(decode_event(wire(attempt=1, pairSeq=0, toAgentId=None))) == encode_event(
        decode_event(wire())
    )


def test_a_clear_payload_is_encoded_with_sorted_keys() -> None:
    assert bytes(encode_payload({"b": 1, "a": {"d": 2, "c": 3}})) == b'{"a":{"c":3,"d":2},"b":1}'


@pytest.mark.parametrize("older", ["fromNodeId", "from_node_id", "source_node_id"])
def test_older_names_of_the_source_node(older: str) -> None:
    assert decode_event(wire(sourceNodeId=..., **{older: "n"})).source_node_id == "n"


@pytest.mark.parametrize("older", ["fromAgentId", "from_agent_id", "source_agent_id"])
def test_older_names_of_the_source_agent(older: str) -> None:
    assert decode_event(wire(sourceAgentId=..., **{older: "a"})).source_agent_id == "a"


def test_a_wholly_snake_case_event_means_the_same() -> None:
    snake = {f.encode_name: f.name for f in msgspec.structs.fields(Envelope)}
    trace = {f.encode_name: f.name for f in msgspec.structs.fields(Trace)}
    event = {snake[k]: v for k, v in FULL.items()}
    event["trace"] = {trace[k]: v for k, v in FULL["trace"].items()}
    assert decode_event(json.dumps(event).encode()) == decode_event(json.dumps(FULL).encode())


def test_one_snake_case_field_in_a_canonical_event_is_not_lost() -> None:
    assert decode_event(wire(to_agent_id="helper")).to_agent_id == "helper"
    trace = decode_event(wire(trace={"route_decision": "owner"})).trace
    assert trace == Trace(route_decision="owner")


def test_the_canonical_name_wins_over_older_ones_in_any_order() -> None:
    both = {"fromNodeId": "old", "sourceNodeId": "new", "source_node_id": "older"}
    for order in (both, dict(reversed(both.items()))):
        rest = {k: v for k, v in REQUIRED.items() if k != "sourceNodeId"}
        assert decode_event(json.dumps(order | rest).encode()).source_node_id == "new"


@pytest.mark.parametrize(
    ("older", "kind"), [("task", "task_create"), ("task_result", "task_complete")]
)
def test_older_kinds_read_as_todays(older: str, kind: str) -> None:
    assert decode_event(wire(kind=older)).kind == kind


def test_unknown_kinds_are_kept() -> None:
    assert decode_event(wire(kind="hologram")).kind == "hologram"


def test_unknown_fields_are_ignored() -> None:
    event = wire(colour="red", trace={"hops": [1]}, payloadRef=None)
    assert decode_event(event) == decode_event(wire(trace={}))


def test_a_payload_ref_of_a_later_version_still_reads() -> None:
    ref = {"digest": "sha256:" + "0" * 64, "size": 3, "keys": {"f": "AAAA"}, "codec": "zstd"}
    assert decode_event(wire(payloadRef=ref)).payload_ref == PayloadRef(
        "sha256:" + "0" * 64, 3, {"f": b"\0\0\0"}
    )


@pytest.mark.parametrize(
    "changes",
    [
        *({name: ...} for name in REQUIRED),
        {"createdAt": "2026-02-25T00:00:00Z"},
        {"createdAt": 1.5},
        {"createdAt": None},
        {"createdAt": -1},
        {"createdAt": True},
        {"createdAt": 2**53},
        {"createdAt": 10**400},
        {"expiresAt": "tomorrow"},
        {"expiresAt": 1e300},
        {"seq": 0},
        {"seq": 10**30},
        {"seq": float("nan")},
        {"seq": float("inf")},
        {"attempt": -1},
        {"eventId": "e1"},
        {"eventId": ID.upper()},
        {"sourceNodeId": "../etc"},
        {"toAgentId": "a\n"},
        {"kind": ""},
        {"kind": 7},
        {"kind": "x" * 65},
        {"trace": []},
        {"trace": {"policyVersion": 10**30}},
        {"payloadRef": {"digest": "sha256:../x", "size": 1, "keys": {}}},
        {"payloadRef": {"digest": "sha256:" + "0" * 64, "size": 1, "keys": {"f": "*"}}},
        {
            "payload": 1,
            "payloadRef": {"digest": "sha256:" + "0" * 64, "size": 1, "keys": {}},
        },
    ],
)
def test_malformed_fields_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent):
        decode_event(wire(**changes))


def spliced(payload: bytes) -> bytes:
    return wire()[:-1] + b', "payload": ' + payload + b"}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe",
        wire() + b"x",
        wire()[:-1],
        wire().replace(b"architect", b"archi\xfftect"),
        wire().replace(b"createdAt", b"creat\xffdAt"),
        spliced(b'"\xff"'),
        spliced(b'{"\xc3\x28": 1}'),
        spliced(b"NaN"),
        spliced(b"01"),
        spliced(b"[" * 100_000 + b"]" * 100_000),
        b"[" * 100_000,
        b'{"trace":' * 50_000,
    ],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode_event(data)


def test_of_a_repeated_field_the_last_counts_on_both_paths() -> None:
    twice = wire().replace(b'"seq": 1', b'"seq": 1, "seq": 2')
    assert decode_event(twice).seq == 2
    assert decode_event(twice.replace(b"sourceNodeId", b"fromNodeId")).seq == 2


def read_or_refuse(data: bytes) -> None:
    try:
        envelope = decode_event(data)
    except MalformedEvent:
        return
    assert decode_event(encode_event(envelope)) == envelope


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    read_or_refuse(data)


@given(json_values)
def test_no_json_breaks_the_reader(value: Any) -> None:
    read_or_refuse(json.dumps(value).encode())


odd: st.SearchStrategy[Any] = st.sampled_from(
    [10**400, -1, 2**63, float("nan"), float("inf"), "\ud800", {}, [], None, True]
)


@given(st.dictionaries(st.sampled_from([*FULL, "payloadRef", "from_node_id"]), odd | json_values))
def test_no_field_value_breaks_the_reader(changes: dict[str, Any]) -> None:
    read_or_refuse(json.dumps(FULL | changes).encode())


@given(st.data())
def test_no_damage_breaks_the_reader(data: st.DataObject) -> None:
    event = bytearray(json.dumps(FULL).encode())
    start = data.draw(st.integers(0, len(event)))
    end = data.draw(st.integers(start, min(len(event), start + 20)))
    event[start:end] = data.draw(st.binary(max_size=20))
    read_or_refuse(bytes(event))


def test_payloads_decode_to_their_type() -> None:
    receipt = Receipt(status="processed", outcome="ok")
    envelope = decode_event(wire(kind="ack"))
    envelope = msgspec.structs.replace(envelope, payload=encode_payload(receipt))
    assert decode_payload(decode_event(encode_event(envelope)), Receipt) == receipt


@pytest.mark.parametrize(
    "event",
    [
        wire(kind="ack"),
        wire(kind="ack", payload={"status": "seen"}),
        wire(kind="ack", payload={"status": "processed"}),
        wire(kind="ack", payload="\ud800"),
        spliced(b"9" * 5000),
        spliced(b'{"status":' * 400 + b"1" + b"}" * 400),
    ],
)
def test_a_payload_of_another_type_is_malformed(event: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode_payload(decode_event(event), Receipt)
