"""The JSON of all six messages is that of the protocol's examples, byte for byte."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.mesh.messages import (
    BackendUnhealthy,
    Heartbeat,
    IntroPoint,
    IntroPoints,
    KnownPeer,
    LeaseClaim,
    LeaseRelease,
    MeshMessage,
    MeshRole,
    Payload,
    PeerAnnounce,
    Term,
    decode_envelope,
    decode_payload,
    encode_message,
)

PEER = KnownPeer("node-b", "abc123...", "192.168.1.2:51820", "10.200.200.2")
POINTS = (IntroPoint("base64-encoded-intro-point-1"), IntroPoint("base64-encoded-intro-point-2"))
EXAMPLES: list[tuple[Payload, str, str]] = [
    (
        Heartbeat(MeshRole.PUBLISHER, 1700000100, (PEER,), 3),
        "heartbeat",
        '{"role":"publisher","last_publish_ts":1700000100,"known_peers":[{"node_id":"node-b",'
        '"wg_pubkey":"abc123...","wg_endpoint":"192.168.1.2:51820","tunnel_ip":"10.200.200.2"}],'
        '"intro_point_count":3}',
    ),
    (
        PeerAnnounce("secret-token-here", "xyz789...", "192.168.1.3:51820", "10.200.200.3"),
        "peer_announce",
        '{"cluster_token":"secret-token-here","wg_pubkey":"xyz789...",'
        '"wg_endpoint":"192.168.1.3:51820","tunnel_ip":"10.200.200.3"}',
    ),
    (
        IntroPoints(POINTS, 1700000195),
        "intro_points",
        '{"intro_points":[{"data":"base64-encoded-intro-point-1"},'
        '{"data":"base64-encoded-intro-point-2"}],"fetched_at":1700000195}',
    ),
    (LeaseClaim(20), "lease_claim", '{"priority":20}'),
    (LeaseRelease(), "lease_release", "{}"),
    (BackendUnhealthy("backend-2"), "backend_unhealthy", '{"backend":"backend-2"}'),
]


@pytest.mark.parametrize(("payload", "type", "text"), EXAMPLES, ids=[e[1] for e in EXAMPLES])
def test_a_message_has_the_bytes_of_the_protocols_example(
    payload: Payload, type: str, text: str
) -> None:
    expected = f'{{"node_id":"node-a","timestamp":1700000123,"type":"{type}","payload":{text}}}'
    assert encode_message(MeshMessage("node-a", payload), 1700000123) == expected.encode()


@pytest.mark.parametrize(("payload", "type", "text"), EXAMPLES, ids=[e[1] for e in EXAMPLES])
def test_a_message_of_another_implementation_is_read(
    payload: Payload, type: str, text: str
) -> None:
    """Spaces, another order of the fields, and fields that nobody knows do not matter."""
    fields = json.loads(text) | {"from_the_future": {"deep": [1, 2]}}
    whole = {"payload": fields, "later": None, "type": type, "timestamp": 7, "node_id": "node-a"}
    envelope = decode_envelope(json.dumps(whole, indent=2).encode())
    assert envelope is not None and decode_payload(envelope) == payload


def test_a_standby_that_never_published_says_null() -> None:
    text = encode_message(MeshMessage("a", Heartbeat(MeshRole.STANDBY, None, (), 0)), 1)
    assert b'"last_publish_ts":null' in text


def test_extensions_are_written_after_the_fields_of_the_protocol() -> None:
    payload = LeaseClaim(20, Term(7, "node-b"))
    text = encode_message(MeshMessage("node-b", payload, "node-a", "11", "22"), 1)
    assert text.endswith(
        b'"payload":{"priority":20,"term":[7,"node-b"]},"to":"node-a","cookie":"11","echo":"22"}'
    )


@pytest.mark.parametrize(
    "payload",
    [
        {"role": "emperor", "last_publish_ts": None, "known_peers": [], "intro_point_count": 0},
        {"role": "standby", "known_peers": [], "intro_point_count": 0},
        {"role": "standby", "last_publish_ts": -1, "known_peers": [], "intro_point_count": 0},
        {"role": "standby", "last_publish_ts": 2**60, "known_peers": [], "intro_point_count": 0},
        {
            "role": "standby",
            "last_publish_ts": None,
            "intro_point_count": 0,
            "known_peers": [msgspec.to_builtins(PEER)] * 17,
        },
        [],
    ],
)
def test_a_payload_that_does_not_fit_its_type_is_none(payload: object) -> None:
    whole = {"node_id": "a", "timestamp": 1, "type": "heartbeat", "payload": payload}
    envelope = decode_envelope(json.dumps(whole).encode())
    assert envelope is not None and decode_payload(envelope) is None


@given(st.binary(max_size=1300))
def test_any_bytes_are_a_message_or_none(datagram: bytes) -> None:
    envelope = decode_envelope(datagram)
    assert envelope is None or decode_payload(envelope) is None or envelope.node_id
