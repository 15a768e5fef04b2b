from gatepost.events import NodeKey
from gatepost.mesh.datagram_signature import (
    NodeKeySigner,
    append_signature,
    compute_hmac,
    is_hmac_valid,
    split_signature,
)
from gatepost.mesh.messages import PeerAnnounce
from gatepost.testing import ManualClock

TEXT = b'{"node_id":"a","timestamp":1,"type":"lease_release","payload":{}}'
KEY = NodeKey.generate(ManualClock())


def test_a_signature_is_one_more_field_of_the_json() -> None:
    signer = NodeKeySigner(KEY, b"room")
    datagram = append_signature(TEXT, signer)
    assert datagram.startswith(TEXT[:-1] + b',"signature":"') and datagram.endswith(b'"}')
    text, signature = split_signature(datagram)
    assert text == TEXT and signature is not None
    assert signer.verify(KEY.public, text, signature)


def test_no_byte_counts_that_is_not_signed() -> None:
    signer = NodeKeySigner(KEY, b"room")
    datagram = append_signature(TEXT, signer)
    for position in range(len(TEXT) - 1):
        changed = bytearray(datagram)
        changed[position] ^= 1
        text, signature = split_signature(bytes(changed))
        assert signature is not None and not signer.verify(KEY.public, text, signature)
    assert split_signature(datagram + b" ")[1] is None
    assert split_signature(TEXT) == (TEXT, None)


def test_a_signature_counts_in_its_own_room_only() -> None:
    text, signature = split_signature(append_signature(TEXT, NodeKeySigner(KEY, b"room")))
    assert signature is not None
    assert not NodeKeySigner(KEY, b"another").verify(KEY.public, text, signature)


def test_the_hmac_of_an_announcement_needs_a_valid_token() -> None:
    announce = PeerAnnounce("", "key", "address", "ip")
    shown = PeerAnnounce("", "key", "address", "ip", hmac=compute_hmac("new", "a", "b", announce))
    assert is_hmac_valid(("new", "old"), "a", "b", shown)
    assert is_hmac_valid(("newer", "new"), "a", "b", shown)
    assert not is_hmac_valid(("newer",), "a", "b", shown)
    assert not is_hmac_valid(("new",), "a", "c", shown)
    assert not is_hmac_valid(("new",), "a", "b", announce)
