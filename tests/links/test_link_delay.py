"""The delay of frames, as their reader measures it."""

from gatepost.links.link_delay import LinkDelay
from tests.delivery.mesh import Mesh
from tests.delivery.tools import letters

START = 1_800_000_000_000


def test_a_frame_that_is_as_fast_as_the_fastest_has_not_waited() -> None:
    delay = LinkDelay()
    assert delay.emitter_time(START, 50) == START
    assert delay.emitter_time(START + 1_000, 1_020) == START + 1_000, "faster than the first"
    assert delay.emitter_time(START + 2_000, 2_020) == START + 2_000


def test_what_a_frame_took_longer_it_waited() -> None:
    delay = LinkDelay()
    delay.emitter_time(START, 50)
    assert delay.emitter_time(START + 1_000, 15_050) == START + 15_000


def test_a_clock_that_was_set_back_begins_anew() -> None:
    delay = LinkDelay()
    delay.emitter_time(START, 50)
    assert delay.emitter_time(START - 60_000, 1_050) == START - 60_000


def test_an_event_that_expired_in_a_socket_is_not_engaged() -> None:
    """Its sender may have given it up: it asked for it back, and that question waits as well."""
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()
    sent = a.send(b, ttl_secs=10).event_id
    a.work()
    assert len(wire.end_of(a).out) == 1, "it is in the socket"
    mesh.clock.advance(80_000)
    a.do(lambda tx: None)
    mesh.flow()
    assert b.mail() == []
    a.do(lambda tx: None)
    mesh.clock.advance(80_000)
    a.do(lambda tx: None)
    mesh.flow()
    assert [letter.reason for letter in letters(a)] == ["expired"]
    assert a.rows("SELECT verdict FROM undelivered") == [("refused: expired",)]
    assert a.state(sent) == "dead_letter"


def test_an_event_that_expired_in_the_socket_of_a_relay_is_not_engaged() -> None:
    """The frames of the relay are measured like those of the source itself."""
    mesh = Mesh("a", "b", "s", relays=["s"])
    a, b, relay = mesh["a"], mesh["b"], mesh["s"]
    to_relay, to_reader = mesh.link("a", "s"), mesh.link("s", "b")
    mesh.flow()
    mesh.refresh()
    first = a.send(b).event_id
    mesh.flow()
    assert b.mail() == [first]
    a.send(b, ttl_secs=10)
    for _ in range(5):
        a.work()
        relay.work()
        to_relay.step()
    assert to_reader.end_of(relay).out, "it is in the socket of the relay"
    mesh.clock.advance(80_000)
    mesh.flow()
    assert b.mail() == [first]
