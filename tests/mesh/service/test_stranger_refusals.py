from gatepost.delivery.abuse import AbuseLog
from gatepost.delivery.incidents import IncidentLog
from gatepost.mesh.refusals import Refusal
from gatepost.mesh.service.stranger_refusals import StrangerRefusals
from gatepost.testing import ManualClock


def test_a_few_refused_datagrams_are_usual_and_many_are_reported() -> None:
    clock = ManualClock()
    abuse = AbuseLog(IncidentLog("me"), clock)
    refusals = StrangerRefusals(abuse, clock)
    for _ in range(600):
        refusals.note_refusal("192.0.2.1:7946", Refusal.UNKNOWN_SENDER)
        clock.advance(200)
    assert abuse.counts() == {}, "a node that was revoked goes on for long"
    for number in range(1_000):
        refusals.note_refusal(f"192.0.2.{number % 4}:7946", Refusal.MALFORMED)
    counts = abuse.counts()
    assert {kind for _, kind in counts} == {"datagram_flood"}
    assert {source for source, _ in counts} == {f"address:192.0.2.{n}" for n in range(4)}
    assert sum(counts.values()) <= 200
