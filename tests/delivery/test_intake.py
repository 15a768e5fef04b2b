"""One batch of events of one source: an event that comes again on other terms."""

import pytest
from msgspec.structs import replace

from gatepost.delivery.intake import Intake
from gatepost.events import Envelope, EventKind, Receipt, decode_payload, encode_event
from gatepost.journal import Tx
from tests.delivery.mesh import Gate, Mesh


class Arrivals:
    """Gateway b reads events of a, on terms that the test chooses."""

    def __init__(self) -> None:
        mesh = Mesh("a", "b")
        wire = mesh.link("a", "b")
        mesh.flow()
        wire.cut()
        self.b: Gate = mesh["b"]
        mesh["a"].send_many(self.b, 2)
        sent = [each for each in mesh["a"].events() if each.kind == EventKind.MESSAGE]
        self.first, self.second = sent

    def read(self, envelope: Envelope, offer: int) -> None:
        said = replace(envelope, offer=offer)

        def operation(tx: Tx) -> None:
            intake = Intake(self.b.core.parts, "a", "a-1", tx.now)
            intake.take_event(tx, said, encode_event(said))
            intake.finish(tx)

        self.b.do(operation)

    def states(self) -> list[str]:
        return [row[0] for row in self.b.rows("SELECT state FROM inbox ORDER BY pair_seq")]

    def accepted_offers(self) -> list[int]:
        events = [each for each in self.b.events() if each.kind == EventKind.ACK]
        return [decode_payload(each, Receipt).offer for each in events]


@pytest.fixture
def arrivals() -> Arrivals:
    return Arrivals()


def test_an_offer_that_comes_again_for_good_is_accepted(arrivals: Arrivals) -> None:
    arrivals.read(arrivals.first, offer=1)
    assert arrivals.states() == ["offered"]
    arrivals.read(arrivals.first, offer=0)
    assert arrivals.states() == ["accepted"]
    assert arrivals.accepted_offers() == [1, 0]


def test_a_held_offer_that_comes_again_for_good_is_accepted_in_its_turn(arrivals: Arrivals) -> None:
    arrivals.read(arrivals.second, offer=1)
    arrivals.read(arrivals.second, offer=0)
    assert arrivals.states() == ["held"]
    arrivals.read(arrivals.first, offer=0)
    assert arrivals.states() == ["accepted", "accepted"]


def test_a_held_event_that_becomes_an_offer_waits_for_its_sender(arrivals: Arrivals) -> None:
    arrivals.read(arrivals.second, offer=0)
    arrivals.read(arrivals.second, offer=2)
    arrivals.read(arrivals.first, offer=0)
    assert arrivals.states() == ["accepted", "offered"]
    assert 2 in arrivals.accepted_offers()
