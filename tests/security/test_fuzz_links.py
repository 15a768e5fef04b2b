"""Fuzzing links: any frame is taken, or ends the link with a code, and the core goes on."""

from random import Random
from typing import Any

import msgspec
import pytest

from gatepost.config.hub_settings import HubSettings
from gatepost.delivery.frames import (
    BlobPiece,
    BlobRequest,
    FollowFrame,
    LinkFrame,
    LogAnswer,
    LogRequest,
    ReachAnswer,
    ReachRequest,
    RelayFrame,
    SkipFrame,
    TakenFrame,
    TraceAnswer,
    TraceRequest,
    encode_frame,
)
from gatepost.errors import GatepostError
from gatepost.events import Receipt, Signal, TaskInfo
from gatepost.tasks.capabilities.contract import keep_contract
from simulation.hostile import HostileOutbox
from tests.delivery.mesh import Mesh
from tests.security.mutations import (
    TIMEOUT_SECS,
    mutate_bytes,
    mutate_json,
    mutate_value,
    run_cases,
)
from tests.tasks.task_mesh import TaskGate
from tests.tasks.test_task_contracts import TEXT, capability

pytestmark = pytest.mark.timeout(TIMEOUT_SECS)

_SIGNALS = ("pair_closed", "status_request", "expire", "withdraw", "confirm", "held", "restored")
_FRAMES_A_LINK = 12
_LINKS_A_MESH = 25
# A gateway stops to answer when this much is unread, and never has much more queued.
_CONGESTED_BYTES = 256 * 1024
_MOST_UNREAD_BYTES = 8 << 20


class _Attack:
    """An honest core `b` with a link to a hostile node `a`, whose key the room knows."""

    def __init__(self) -> None:
        self.mesh = Mesh("a", "b", "c", relays=["b"])
        self.core = self.mesh["b"]
        self.core.backbone |= {"a"}
        self.mesh.link("b", "c")
        self.mesh.flow()
        self.sent = self.core.send(self.mesh["a"]).event_id
        self.hub = TaskGate(self.core, HubSettings())
        digest = self.core.do(lambda tx: keep_contract(tx, TEXT))
        self.hub.engine.parts.router.capabilities = {"double": capability(digest)}
        self.task = self.hub.create(TaskGate(self.mesh["a"], HubSettings()))

    def open_link(self) -> None:
        """A new link that has been greeted, and the hostile outbox behind it."""
        self.errors: list[GatepostError] = []
        self.unread = 0
        self.link = self.core.peers.add_link(self, "a")
        key = self.mesh["a"].key
        self.outbox = HostileOutbox("a", key, self.mesh.clock, f"i{self.mesh.clock.now()}")
        self.mesh.clock.advance(1)
        self.say(self.outbox.hello_frame())

    def close_link(self) -> None:
        self.core.peers.remove_link(self.link)

    def say(self, frame: LinkFrame | bytes) -> None:
        self.link.receive(frame if isinstance(frame, bytes) else encode_frame(frame))
        self.mesh.flow()

    # -- the connection of the link

    @property
    def is_congested(self) -> bool:
        return self.unread > _CONGESTED_BYTES

    def send_frame(self, data: bytes) -> None:
        """Nobody reads it."""
        self.unread += len(data)

    def end(self, error: GatepostError) -> None:
        self.errors.append(error)


def _valid_frames(attack: _Attack, random: Random) -> list[LinkFrame]:
    outbox, ref = attack.outbox, attack.sent
    key = attack.core.key.public
    outbox.add_message("b", key, "B", source_agent_id="A", pair_seq=random.choice((0, 1, 2, 9)))
    outbox.add_receipt("b", ref, Receipt(status="processed", outcome="ok"))
    _add_task_events(attack, random)
    said = Signal(
        signal=random.choice(_SIGNALS), from_agent="A", to_agent="B", through=random.choice((0, 5))
    )
    outbox.add_signal("b", ref, said)
    digest = f"sha256:{random.randrange(16):064x}"
    events = outbox.events_frame()
    inc = outbox.incarnation
    return [
        events,
        events,
        events,
        outbox.relay_frame(),
        outbox.incarnations_frame(),
        FollowFrame([("b", "b-1", 0)], 1 << 20),
        RelayFrame([("c", "c-1", 0)], ["c"], 1 << 20),
        TakenFrame("b", "b-1", 1, 100),
        SkipFrame("a", inc, 1, 3, "gone"),
        BlobRequest("b", digest, 0, 1000),
        BlobPiece("a", digest, 0, 1000, b"x" * 100),
        TraceRequest(1, [ref]),
        TraceRequest(2, [ref], "c", "a", b"x" * 64),
        TraceAnswer(1, 5, []),
        LogRequest(1, ref, 0),
        LogAnswer(1, 0, b"x" * 100),
        ReachRequest(1),
        ReachAnswer(1, 5, "0.1.0", True, "refused"),
        outbox.hello_frame(),
    ]


_REQUESTS = tuple(
    msgspec.json.encode({"description": "x", "requiredCapabilities": ["double"], "input": given})
    for given in (1, "x", [[1]], {"a": {"b": [None]}})
)
_NESTED = b"[" * 3000 + b"]" * 3000
_REPORTS = tuple(map(msgspec.json.encode, (1, {"note": "x"}, {"code": "failed", "error": "x"})))
_REPORT_KINDS = ("task_accept", "task_update", "task_complete", "task_failed")


def _add_task_events(attack: _Attack, random: Random) -> None:
    """A request under a contract and a report: mutated before it is encrypted."""
    outbox, key = attack.outbox, attack.core.key.public
    info = TaskInfo(capability_id="double", capability_version="1", progress=0.5)
    request, report = random.choice(_REQUESTS), random.choice(_REPORTS)
    if random.random() < 0.2:
        request, report = b'{"description": "x", "input": %s}' % _NESTED, _NESTED
    else:
        request, report = mutate_json(request, random, _REQUESTS), mutate_json(report, random)
    outbox.add_message("b", key, "B", request, kind="task_create", source_agent_id="A", task=info)
    kind = random.choice(_REPORT_KINDS)
    outbox.add_message(
        "b", key, "B", report, kind=kind, source_agent_id="A", task=info, ref_event_id=attack.task
    )


def _mutate_frame(frame: LinkFrame, random: Random) -> bytes:
    data = encode_frame(frame)
    match random.randrange(4):
        case 0:
            return mutate_bytes(data, random)
        case 1 if getattr(frame, "events", None):
            return encode_frame(_with_mutated_event(frame, random))
        case 2:
            return data
        case _:
            value = mutate_value(msgspec.msgpack.decode(data), random)
            try:
                return msgspec.msgpack.encode(value)
            except (OverflowError, UnicodeEncodeError):
                return mutate_bytes(data, random)


def _with_mutated_event(frame: Any, random: Random) -> LinkFrame:
    at = random.randrange(len(frame.events))
    body = mutate_json(frame.events[at], random, frame.events)
    events = [*frame.events[:at], body, *frame.events[at + 1 :]]
    changed: LinkFrame = msgspec.structs.replace(frame, events=events)
    return changed


def test_mutated_frames_are_taken_or_end_the_link(caplog: pytest.LogCaptureFixture) -> None:
    attack = _Attack()

    def try_case(number: int, random: Random) -> None:
        nonlocal attack
        if number % _LINKS_A_MESH == 0:
            attack = _Attack()
        attack.open_link()
        for _ in range(_FRAMES_A_LINK):
            frame = random.choice(_valid_frames(attack, random))
            attack.say(_mutate_frame(frame, random))
            if attack.errors:
                break
        attack.close_link()
        attack.mesh.flow()
        assert attack.unread < _MOST_UNREAD_BYTES
        assert all(error.code != "internal" for error in attack.errors), caplog.text
        assert not [each for each in caplog.records if each.exc_info], caplog.text
        _check_honest_mail(attack.mesh)

    run_cases("links", try_case, least=10)


def _check_honest_mail(mesh: Mesh) -> None:
    """C still reaches B."""
    sent = mesh["c"].send(mesh["b"], order="none").event_id
    mesh.flow()
    assert sent in mesh["b"].mail()
