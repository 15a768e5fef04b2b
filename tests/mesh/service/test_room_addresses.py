import pytest

from gatepost.mesh.service.room_addresses import RoomAddresses, is_own_address, is_usable
from gatepost.room import SharedRoom, TransportRecord
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import NOW, ROOT, author, entry, room


@pytest.mark.parametrize(
    ("address", "usable"),
    [
        ("192.0.2.7:7433", True),
        ("[2001:db8::7]:7433", True),
        ("127.0.0.1:53", False),
        ("[::ffff:127.0.0.1]:53", False),
        ("169.254.169.254:80", False),
        ("224.0.0.1:5353", False),
        ("0.0.0.0:7", False),
        ("192.0.2.7:0", False),
        ("192.0.2.7:70000", False),
        ("host.example:7", False),
        ("", False),
    ],
)
def test_datagrams_go_to_addresses_that_another_machine_can_have(
    address: str, usable: bool
) -> None:
    assert is_usable(address, allow_loopback=False) == usable


def test_loopback_is_for_gateways_on_loopback() -> None:
    assert is_usable("127.0.0.1:53", allow_loopback=True)
    assert is_own_address("127.0.0.1:53")
    assert not is_own_address("0.0.0.0:7") and not is_own_address("[::]:7")


def room_with(udp: str) -> SharedRoom:
    bob = author("bob")
    record = TransportRecord(udp=udp)
    return room(entry(ROOT), entry(bob), sign_record(bob, "transports", "bob", 1, NOW, record))


def test_an_address_without_an_answer_is_tried_again_after_a_pause_even_if_it_changes() -> None:
    addresses = RoomAddresses(pause_ms=1000)
    first, second = room_with("192.0.2.7:7"), room_with("192.0.2.8:7")
    assert list(addresses.due_addresses(first, 0)) == [("bob", "192.0.2.7:7")]
    addresses.note_try("bob", 0)
    assert not list(addresses.due_addresses(first, 999))
    assert not list(addresses.due_addresses(second, 999))
    assert list(addresses.due_addresses(second, 1000)) == [("bob", "192.0.2.8:7")]
