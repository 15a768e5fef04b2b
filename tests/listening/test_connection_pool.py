"""Places of connections: strangers crowd out strangers only, and the operator always finds one."""

import pytest

from gatepost.config import LimitsSettings
from gatepost.errors import Unavailable
from gatepost.listening.connection_pool import (
    MAX_PER_HOLDER,
    OPERATOR,
    ConnectionPool,
    ConnectionSlot,
    name_offender,
    process_source,
    session_source,
)


class Door:
    """A pool with its closed connections and the addresses it reported."""

    def __init__(self, held: int = 64, anonymous: int = 16) -> None:
        self.closed: list[str] = []
        self.reported: list[str] = []
        limits = LimitsSettings(max_connections=held, max_unauthenticated=anonymous)
        self.pool = ConnectionPool(limits, self.reported.append)

    def connect(self, name: str, source: str = "192.0.2.1") -> ConnectionSlot:
        return self.pool.admit(source, lambda: self.closed.append(name))


def test_an_address_holds_half_of_the_places_and_its_oldest_gives_way() -> None:
    door = Door()
    for n in range(10):
        door.connect(f"c{n}")
    assert door.closed == ["c0", "c1"]
    assert door.reported == ["192.0.2.1"] * 2
    assert door.pool.anonymous_count == 8


def test_this_machine_may_have_all_of_them() -> None:
    door = Door()
    for n in range(17):
        door.connect(f"c{n}", "127.0.0.1")
    assert door.closed == ["c0"]


def test_an_address_with_many_gives_way_to_one_with_few() -> None:
    door = Door()
    for n in range(8):
        door.connect(f"a{n}", "192.0.2.1")
        door.connect(f"b{n}", f"198.51.100.{n}")
    assert not door.closed
    door.connect("new", "203.0.113.1")
    assert door.closed == ["a0"], "not the oldest of all, but of the busiest"


def test_a_connection_with_a_token_never_gives_way() -> None:
    door = Door()
    door.connect("known").identify("session:1")
    for n in range(100):
        door.connect(f"c{n}")
    assert "known" not in door.closed
    assert (door.pool.held_count, door.pool.anonymous_count) == (1, 8)


def test_the_last_places_are_the_operators() -> None:
    door = Door(held=32)
    for n in range(30):
        door.connect("c").identify(f"session:{n}")
    with pytest.raises(Unavailable):
        door.connect("c").identify("session:31")
    door.connect("c").identify(OPERATOR)
    door.connect("c").identify(OPERATOR)
    with pytest.raises(Unavailable):
        door.connect("c").identify(OPERATOR)


def test_one_session_has_only_so_many_connections() -> None:
    door = Door(held=1024)
    for _ in range(MAX_PER_HOLDER):
        door.connect("c").identify("session:1")
    with pytest.raises(Unavailable):
        door.connect("c").identify("session:1")
    door.connect("c").identify("session:2")


def test_a_place_is_given_back_once() -> None:
    door = Door()
    slot, other = door.connect("a"), door.connect("b")
    slot.identify("session:1")
    slot.identify("session:1")
    slot.identify("session:2")
    assert (door.pool.held_count, door.pool.anonymous_count) == (1, 1)
    for each in (slot, slot, other, other):
        each.release()
    assert (door.pool.held_count, door.pool.anonymous_count) == (0, 0)


def test_however_many_identities_take_all_they_can_a_newcomer_finds_a_place() -> None:
    door = Door(held=256)
    for greedy in range(8):
        with pytest.raises(Unavailable):
            for _ in range(256):
                door.connect("c").identify(f"greedy:{greedy}")
    door.connect("c").identify("newcomer")


def test_offenders_are_named_as_what_they_are() -> None:
    assert name_offender("192.0.2.1") == "address:192.0.2.1"
    assert name_offender(session_source("s1")) == "session:s1"
    assert name_offender(process_source(7)) == "process:7"
