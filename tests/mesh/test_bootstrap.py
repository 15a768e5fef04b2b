import msgspec
import pytest

from gatepost.access import MeshSecrets
from gatepost.mesh.bootstrap import (
    MAX_BODY_BYTES,
    BootstrapRequest,
    decode_request,
    describe_peer,
    is_granted,
    list_known_peers,
)
from gatepost.room import SharedRoom, TransportRecord
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import GENESIS, NOW, ROOT, author, entry, key

SECRETS = MeshSecrets(1, "root", "c" * 43, "j" * 43)
REQUEST = BootstrapRequest("c" * 43, NOW // 1000, "lea", key("lea").public)


@pytest.mark.parametrize(
    ("changes", "path_secret", "granted"),
    [
        ({}, "j" * 43, True),
        ({"request_time": NOW // 1000 - 300}, "j" * 43, True),
        ({"request_time": NOW // 1000 - 301}, "j" * 43, False),
        ({"request_time": NOW // 1000 + 5}, "j" * 43, True),
        ({"request_time": NOW // 1000 + 6}, "j" * 43, False),
        ({"cluster_token": "d" * 43}, "j" * 43, False),
        ({}, "k" * 43, False),
        ({}, "", False),
        ({}, "é" * 43, False),
    ],
)
def test_both_secrets_and_a_recent_request_are_needed(
    changes: dict[str, object], path_secret: str, granted: bool
) -> None:
    request = msgspec.structs.replace(REQUEST, **changes)
    assert is_granted(SECRETS, path_secret, request, NOW) is granted


def test_without_secrets_or_without_a_request_nothing_is_granted() -> None:
    assert not is_granted(None, "no join secret", REQUEST, NOW)
    assert not is_granted(SECRETS, "j" * 43, None, NOW)


def test_a_request_is_read_with_fields_it_does_not_know() -> None:
    body = msgspec.json.encode(REQUEST)
    assert decode_request(body) == REQUEST
    assert decode_request(body[:-1] + b',"more":1}') == REQUEST
    assert REQUEST.cluster_token not in repr(REQUEST)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{" * 3000,
        b"[" * 8000,
        b'{"cluster_token":"x"}',
        msgspec.json.encode(REQUEST).replace(b"lea", b"../lea"),
        msgspec.json.encode(REQUEST) + b" " * MAX_BODY_BYTES,
        b"\xff" * 100,
    ],
)
def test_anything_else_is_no_request(body: bytes) -> None:
    assert decode_request(body) is None


def test_known_peers_are_the_members_with_their_addresses() -> None:
    lea = author("lea")
    addresses = TransportRecord(
        wg_public_key="A" * 43 + "=", wg_endpoint="192.0.2.1:51820", tunnel_ip="10.200.1.2"
    )
    udp = sign_record(ROOT, "transports", "root", 1, NOW, TransportRecord(udp="192.0.2.9:7434"))
    wireguard = sign_record(lea, "transports", "lea", 1, NOW, addresses)
    records = [entry(ROOT), entry(lea), udp, wireguard]
    room = SharedRoom(GENESIS, author=ROOT, records=records)
    assert [peer.node_id for peer in list_known_peers(room)] == ["root", "lea"]
    (peer,) = list_known_peers(room, "root")
    assert (peer.wg_pubkey, peer.tunnel_ip) == ("A" * 43 + "=", "10.200.1.2")
    assert describe_peer(room, "root").wg_endpoint == "192.0.2.9:7434"
    assert describe_peer(room, "unknown").wg_endpoint == ""
