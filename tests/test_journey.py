"""The journey in docs/architecture.md is the one a message really takes."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gatepost.client import Agent, Client, Message
from gatepost.delivery.sent_messages import SentMessages
from gatepost.errors import GatepostError
from scripts.journey import AGENT, ANN, ANN_WRITER, CLIENT, JOURNEY, function_name
from scripts.journey import JourneyLeg as Leg
from scripts.journey import JourneyStep as Step
from tests.journey_tracer import LOOP_THREAD, WRITER_THREAD, TracedCall, read_trace, trace_calls
from tests.live_mesh.tools import Gateway
from tests.waiting import async_wait_until, wait_until

ROOT = Path(__file__).parent.parent


def find_missing_step(legs: tuple[Leg, ...], calls: list[TracedCall], began: int) -> str:
    """The first step that was not entered after the one before it; empty if there is none."""
    ends = {"": began}
    for leg in legs:
        at, previous = ends[leg.after], f"the leg {leg.after!r}"
        for step in leg.steps:
            where = (step.place, step.name)
            later = [call.at for call in calls if call.at > at and call[1:] == where]
            if not later:
                return f"{leg.name}: {step.name} is not entered in {step.place} after {previous}"
            at, previous = min(later), step.name
        ends[leg.name] = at
    return ""


class TracedGateway(Gateway):
    """A gateway in a process of its own that writes down which functions it enters."""

    @property
    def trace_file(self) -> Path:
        return self.state_dir.with_suffix(".trace")

    def spawn(self) -> None:
        command = [sys.executable, "-m", "tests.journey_tracer"]
        with self._open_log() as log:
            self._process = subprocess.Popen(
                [*command, str(self.trace_file), str(self.state_dir), "--until-stdin-closes"],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def read_trace(self) -> list[TracedCall]:
        places = {LOOP_THREAD: self.name, WRITER_THREAD: f"{self.name} writer"}
        return read_trace(self.trace_file, places)


class TracedMessage:
    """A message that `al` sends through ann to `bo` behind bob, and all calls it makes."""

    def __init__(self, folder: Path) -> None:
        self.ann, self.bob = TracedGateway(folder, "ann"), TracedGateway(folder, "bob")
        self._own_trace = folder / "own.trace"
        self.began = 0

    def send_and_trace(self) -> None:
        with self.ann, self.bob:
            self.bob.join(self.ann)
            with trace_calls(self._own_trace), self._agent_thread():
                asyncio.run(self._send_messages())
                with suppress(AssertionError):
                    wait_until(lambda: not self.missing_step())

    def missing_step(self) -> str:
        return find_missing_step(JOURNEY, self.read_calls(), self.began)

    def read_calls(self) -> list[TracedCall]:
        own = read_trace(self._own_trace, {LOOP_THREAD: CLIENT, AGENT: AGENT})
        return [*own, *self.ann.read_trace(), *self.bob.read_trace()]

    async def _send_messages(self) -> None:
        async with Client("al", state_dir=self.ann.state_dir) as al:
            await al.register("al")

            async def routing_knows_bo() -> bool:
                with suppress(GatepostError):
                    return (await al.send("bo", "first", wait="processed")).outcome == "ok"
                return False

            await async_wait_until(routing_knows_bo)
            self.began = time.monotonic_ns()
            sent = await al.send("bo", "second", wait="processed")
            assert (sent.state, sent.node, sent.outcome) == ("replied", "bob", "ok")

    @contextmanager
    def _agent_thread(self) -> Iterator[None]:
        agent, loop = Agent("bo", state_dir=self.bob.state_dir), asyncio.new_event_loop()
        agent.on_message(self._answer_message)
        thread = threading.Thread(target=loop.run_until_complete, args=(agent.serve(),), name=AGENT)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(agent.end)
            thread.join()
            loop.close()

    async def _answer_message(self, message: Message) -> str:
        if message.payload == "second":
            await async_wait_until(self._sender_waits)
        return "answered"

    def _sender_waits(self) -> bool:
        """The turn has to last until then: a caller that comes later is not parked."""
        calls, name = self.ann.read_trace(), function_name(SentMessages.wait)
        return any(call.at > self.began and call.name == name for call in calls)


def test_a_message_takes_the_journey_of_the_document(tmp_path: Path) -> None:
    message = TracedMessage(tmp_path)
    message.send_and_trace()
    assert message.missing_step() == ""


@pytest.mark.parametrize(
    ("places", "missing"),
    [
        ([CLIENT, ANN, ANN_WRITER, CLIENT], ""),
        ([CLIENT, ANN, CLIENT, ANN_WRITER], ""),
        ([CLIENT, CLIENT, ANN_WRITER], "first: tests.test_journey._step is not entered in ann"),
        ([ANN, CLIENT, ANN_WRITER], "first: tests.test_journey._step is not entered in ann"),
        ([CLIENT, ANN, CLIENT], "beside: tests.test_journey._step is not entered in ann writer"),
    ],
)
def test_steps_of_a_leg_are_in_order_and_legs_beside_each_other_in_any(
    places: list[str], missing: str
) -> None:
    steps = {place: Step(place, _step, "") for place in (CLIENT, ANN, ANN_WRITER)}
    legs = (
        Leg("first", "", "", "", (steps[CLIENT], steps[ANN])),
        Leg("beside", "first", "", "", (steps[ANN_WRITER],)),
        Leg("return", "first", "", "", (steps[CLIENT],)),
    )
    calls = [TracedCall(at, place, function_name(_step)) for at, place in enumerate(places, 1)]
    found = find_missing_step(legs, calls, 0)
    assert found.startswith(missing) and bool(found) == bool(missing)


def _step() -> None:
    """Stands for any function."""
