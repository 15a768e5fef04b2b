"""Pieces of logs between two gateways, and how much of them one gateway gets."""

from typing import Any

from gatepost.delivery.frames import AnyFrame, LogAnswer, LogRequest, decode_frame, encode_frame
from gatepost.links.log_part import LogAnswered, LogPart, TaskLogs
from gatepost.testing import ManualClock


class Port:
    """The end of a link: what is sent is kept."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_congested = False

    def send(self, frame: AnyFrame) -> None:
        self.sent.append(decode_frame(encode_frame(frame)))


class Logs:
    """The logs of a gateway, which answer when they are told to."""

    def __init__(self, clock: ManualClock) -> None:
        self.shared = TaskLogs(clock)
        self.shared.read_log = self.read
        self.asked: list[tuple[str, LogRequest, LogAnswered]] = []

    def read(self, asker: str, request: LogRequest, answered: LogAnswered) -> None:
        self.asked.append((asker, request, answered))

    def answer_all(self) -> int:
        asked, self.asked = self.asked, []
        for _, request, answered in asked:
            answered(LogAnswer(request.id, request.offset, b"piece", state="running"))
        return len(asked)


def make_part(port: Any, peer: str, logs: TaskLogs) -> LogPart:
    return LogPart(port, peer, logs)


def test_a_piece_is_asked_for_and_answered() -> None:
    clock, asker_port, port = ManualClock(1_700_000_000_000), Port(), Port()
    logs = Logs(clock)
    asker = make_part(asker_port, "bob", TaskLogs(clock))
    answers: list[LogAnswer] = []
    asker.request_log("task", 7, answers.append)
    assert make_part(port, "ann", logs.shared).receive_frame(asker_port.sent[0])
    assert [(name, request.offset) for name, request, _ in logs.asked] == [("ann", 7)]
    logs.answer_all()
    assert asker.receive_frame(port.sent[0]) and asker.receive_frame(port.sent[0])
    assert [(each.offset, each.data) for each in answers] == [(7, b"piece")], "once"
    forgotten = asker.request_log("task", 0, answers.append)
    asker.forget_request(forgotten)
    assert asker.receive_frame(LogAnswer(forgotten)) and len(answers) == 1


def test_one_gateway_gets_a_bounded_share_over_all_its_links() -> None:
    clock, port = ManualClock(1_700_000_000_000), Port()
    logs = Logs(clock)
    parts = [make_part(port, "ann", logs.shared) for _ in range(2)]
    for number in range(1, 7):
        parts[number % 2].receive_frame(LogRequest(number, "task", 0))
    assert len(logs.asked) == 4, "at once"
    assert [each.is_busy for each in port.sent] == [True, True]
    total = logs.answer_all()
    for number in range(100):
        parts[0].receive_frame(LogRequest(number, "task", 0))
        total += logs.answer_all()
    assert total == 32, "pieces at once"
    make_part(port, "eve", logs.shared).receive_frame(LogRequest(1, "task", 0))
    assert logs.answer_all() == 1, "others have their own share"
    clock.advance(1000)
    for number in range(100):
        parts[0].receive_frame(LogRequest(number, "task", 0))
        total += logs.answer_all()
    assert total == 40, "pieces a second"


def test_a_congested_link_and_a_gateway_without_a_hub_answer_without_a_piece() -> None:
    clock, port = ManualClock(1_700_000_000_000), Port()
    logs = Logs(clock)
    port.is_congested = True
    make_part(port, "ann", logs.shared).receive_frame(LogRequest(1, "task", 0))
    port.is_congested = False
    make_part(port, "ann", TaskLogs(clock)).receive_frame(LogRequest(2, "task", 0))
    assert [(each.is_busy, each.problem) for each in port.sent] == [
        (True, ""), (False, "it has no logs")
    ]  # fmt: skip
