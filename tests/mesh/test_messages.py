"""The JSON of all six messages is that of the protocol's examples, byte for byte."""

import json
from pathlib import Path
from typing import Any

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
    decode_envelope,
    decode_payload,
    encode_message,
)
from gatepost.mesh.transport import MAX_DATAGRAM_BYTES
from gatepost.wire.mesh_views import Term

PEER = KnownPeer("node-b", "abc123...", "192.168.1.2:51820", "10.200.200.2")
POINTS = (IntroPoint("base64-encoded-intro-point-1"), IntroPoint("base64-encoded-intro-point-2"))
EXAMPLES: list[tuple[Payload, str, str]] = [
    (
        Heartbeat(
            role=MeshRole.PUBLISHER,
            last_publish_ts=1700000100,
            known_peers=(PEER,),
            intro_point_count=3,
        ),
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


@pytest.mark.parametrize(
    ("at_the_bound", "beyond"),
    [
        ({"known_peers": 16}, {"known_peers": 17}),
        ({"intro_points": 8}, {"intro_points": 9}),
        ({"data": 512}, {"data": 513}),
        ({"backend": "b" * 128}, {"backend": "b" * 129}),
        ({"backend": "backend-2"}, {"backend": "http://10.0.0.5:8080"}),
    ],
)
def test_a_message_beyond_the_bounds_that_the_documents_name_is_refused(
    at_the_bound: dict[str, Any], beyond: dict[str, Any]
) -> None:
    assert read_bounded(**at_the_bound) is not None and read_bounded(**beyond) is None
    page = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| messages have no bounds"))
    bounds = (f"{MAX_DATAGRAM_BYTES:,} bytes", "16 `known_peers`", "8 `intro_points`", "512 char")
    assert all(bound in row for bound in (*bounds, "1 to 128 letters"))


def read_bounded(
    known_peers: int = 0, intro_points: int = 0, data: int = 0, backend: str = ""
) -> Payload | None:
    """A message of another implementation with so many entries, characters or this backend."""
    known = {"node_id": "n", "wg_pubkey": "", "wg_endpoint": "", "tunnel_ip": ""}
    points = [{"data": "x" * data}] * (intro_points or 1)
    type, payload = "intro_points", {"intro_points": points, "fetched_at": 7}
    if known_peers:
        type = "heartbeat"
        payload = {"role": "standby", "known_peers": [known] * known_peers, "intro_point_count": 0}
    elif backend:
        type, payload = "backend_unhealthy", {"backend": backend}
    whole = {"node_id": "node-a", "timestamp": 7, "type": type, "payload": payload}
    envelope = decode_envelope(json.dumps(whole).encode())
    assert envelope is not None
    return decode_payload(envelope)


def test_a_standby_that_never_published_says_null() -> None:
    beat = Heartbeat(
        role=MeshRole.STANDBY, last_publish_ts=None, known_peers=(), intro_point_count=0
    )
    assert b'"last_publish_ts":null' in encode_message(MeshMessage("a", beat), 1)


def test_the_time_of_the_last_publication_may_be_missing() -> None:
    whole = {"node_id": "a", "timestamp": 1, "type": "heartbeat"}
    payload = {"role": "standby", "known_peers": [], "intro_point_count": 0}
    envelope = decode_envelope(json.dumps(whole | {"payload": payload}).encode())
    assert envelope is not None and isinstance(decode_payload(envelope), Heartbeat)


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
        {"role": "standby", "intro_point_count": 0},
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
