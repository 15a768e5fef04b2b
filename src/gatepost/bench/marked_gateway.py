"""`python -m gatepost.bench.marked_gateway`: a gateway that notes the time of each step of a turn.

The marks are put around its functions from outside, so that the gateway itself carries none. When
it ends, it writes them beside its state directory.
"""

import sys
import time
from collections.abc import Callable
from functools import wraps
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from gatepost.gateway.__main__ import main
from gatepost.gateway.api.frame_channel import FrameChannel
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import Writer

MarkName = Literal[
    "received", "submitted", "group", "commit", "committed", "outcomes", "woken", "encoded"
]
# (Name, time in ns by the clock that all processes of a machine share).
Mark = tuple[MarkName, int]

# The function that a mark belongs to, and whether the mark is made before or after it.
_PLACES: tuple[tuple[MarkName, type[Any], str, Literal["before", "after"]], ...] = (
    ("received", FrameChannel, "receive_frame", "before"),
    ("submitted", Writer, "submit", "before"),
    ("group", Writer, "run_group", "before"),
    ("commit", Tx, "commit", "before"),
    ("committed", Tx, "commit", "after"),
    ("outcomes", Writer, "run_group", "after"),
    ("woken", FrameChannel, "take_output", "before"),
    ("encoded", FrameChannel, "take_output", "after"),
)


def marks_path(state_dir: Path) -> Path:
    return state_dir.with_name(f"{state_dir.name}.marks")


def read_marks(state_dir: Path) -> list[Mark]:
    """The marks of a gateway that has ended, in the order of time: two threads made them."""
    marks = msgspec.json.decode(marks_path(state_dir).read_bytes(), type=list[Mark])
    return sorted(marks, key=itemgetter(1))


def _place_marks(marks: list[Mark]) -> None:
    for name, owner, function, place in _PLACES:
        marked = _mark_before if place == "before" else _mark_after
        setattr(owner, function, marked(getattr(owner, function), name, marks))


def _mark_before(call: Callable[..., Any], name: MarkName, marks: list[Mark]) -> Any:
    @wraps(call)
    def marked(*arguments: Any) -> Any:
        marks.append((name, time.perf_counter_ns()))
        return call(*arguments)

    return marked


def _mark_after(call: Callable[..., Any], name: MarkName, marks: list[Mark]) -> Any:
    @wraps(call)
    def marked(*arguments: Any) -> Any:
        result = call(*arguments)
        marks.append((name, time.perf_counter_ns()))
        return result

    return marked


if __name__ == "__main__":
    made: list[Mark] = []
    _place_marks(made)
    main(sys.argv[1:])
    marks_path(Path(sys.argv[1])).write_bytes(msgspec.json.encode(made))
