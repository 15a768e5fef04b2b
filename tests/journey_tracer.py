"""Records when the functions of scripts/journey.py are entered, in this process.

`python -m tests.journey_tracer TRACE_FILE STATE_DIR` runs a gateway that does so. A line is written
for each call, with the time of the machine's monotonic clock: all processes share that clock.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from scripts.journey import JOURNEY

# The thread names of a gateway's process.
LOOP_THREAD, WRITER_THREAD = "MainThread", "journal-writer"


class TracedCall(NamedTuple):
    at: int
    place: str
    name: str


@contextmanager
def trace_calls(trace_file: Path) -> Iterator[None]:
    """Trace this thread, and the threads that are started while this lasts."""
    names = {step.call.__code__: step.name for leg in JOURNEY for step in leg.steps}
    with trace_file.open("a", buffering=1) as lines:

        def note_call(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and (name := names.get(frame.f_code)) is not None:
                thread = threading.current_thread().name
                lines.write(f"{time.monotonic_ns()} {thread} {name}\n")

        threading.setprofile(note_call)
        sys.setprofile(note_call)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def read_trace(trace_file: Path, places: dict[str, str]) -> list[TracedCall]:
    """The calls in a trace; `places` are the names of its threads in the journey."""
    calls = []
    for line in trace_file.read_text().splitlines():
        at, thread, name = line.split(" ")
        if thread in places:
            calls.append(TracedCall(int(at), places[thread], name))
    return calls


if __name__ == "__main__":
    from gatepost.gateway.__main__ import main

    with trace_calls(Path(sys.argv[1])):
        main(sys.argv[2:])
