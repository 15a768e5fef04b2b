"""Questions of one gateway to another: do you reach me?"""

from gatepost.delivery.frames import ReachAnswer, ReachRequest
from gatepost.links.reach_part import ReachAnswered, ReachDesk, ReachPart
from gatepost.testing import ManualClock
from tests.links.test_log_part import Port

_NOW = 1_700_000_000_000


class Visits:
    """A gateway that reaches all others at once."""

    def __init__(self, clock: ManualClock) -> None:
        self.desk = ReachDesk(clock)
        self.desk.reach_back = self.visit
        self.askers: list[str] = []

    def visit(self, asker: str, request: ReachRequest, answered: ReachAnswered) -> None:
        self.askers.append(asker)
        answered(ReachAnswer(request.id, _NOW, "1.2.3", has_address=True))


def test_a_question_is_answered_once() -> None:
    clock, asker_port, port = ManualClock(_NOW), Port(), Port()
    visits = Visits(clock)
    asker = ReachPart(asker_port, "bob", ReachDesk(clock))  # type: ignore[arg-type]
    answers: list[ReachAnswer] = []
    asker.request_reach(answers.append)
    part = ReachPart(port, "ann", visits.desk)  # type: ignore[arg-type]
    assert part.receive_frame(asker_port.sent[0])
    assert visits.askers == ["ann"]
    assert asker.receive_frame(port.sent[0]) and asker.receive_frame(port.sent[0])
    assert [(each.version, each.has_address) for each in answers] == [("1.2.3", True)]
    forgotten = asker.request_reach(answers.append)
    asker.forget_request(forgotten)
    assert asker.receive_frame(ReachAnswer(forgotten, _NOW)) and len(answers) == 1


def test_one_gateway_has_a_bounded_number_of_visits_over_all_its_links() -> None:
    clock, port = ManualClock(_NOW), Port()
    visits = Visits(clock)
    parts = [ReachPart(port, "ann", visits.desk) for _ in range(2)]  # type: ignore[arg-type]
    for number in range(20):
        parts[number % 2].receive_frame(ReachRequest(number))
    assert len(visits.askers) == 10
    assert [each.is_busy for each in port.sent] == [False] * 10 + [True] * 10
    ReachPart(port, "eve", visits.desk).receive_frame(ReachRequest(1))  # type: ignore[arg-type]
    assert visits.askers[-1] == "eve", "others have their own share"
    clock.advance(5000)
    parts[0].receive_frame(ReachRequest(21))
    parts[0].receive_frame(ReachRequest(22))
    assert visits.askers.count("ann") == 11


def test_a_gateway_that_dials_nobody_is_busy() -> None:
    clock, port = ManualClock(_NOW), Port()
    ReachPart(port, "ann", ReachDesk(clock)).receive_frame(ReachRequest(1))  # type: ignore[arg-type]
    assert [each.is_busy for each in port.sent] == [True]
