"""The observer of a simulated mesh: its record of everything that the checker cannot read later.

It also writes the trace, one line for each thing that happens.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from gatepost.delivery.frames import EventsFrame, decode_frame
from gatepost.errors import GatepostError
from gatepost.events import decode_event
from gatepost.tasks.sessions import session_name
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task
from simulation.gateways.blob_files import SimulatedBlobFiles
from simulation.gateways.gateway import SimulatedGateway
from simulation.gateways.network import Direction, SimulatedNetwork
from simulation.gateways.virtual_time import START
from simulation.history import Observations, ObservedTaskEnd, ObservedTurn, ObservedWait

TraceLine = Callable[[str], None]
# Errors logged here are surprises; without a handler, warnings would go to the terminal.
_WATCHED_LOGS = ("gatepost.journal.writer", "gatepost.delivery", "gatepost.tasks")


class MeshObserver:
    """Notes observations in `seen`, and the links that ended with an error in `link_errors`."""

    def __init__(self, network: SimulatedNetwork, write_line: TraceLine | None) -> None:
        self._loop = network.loop
        self._network = network
        network.on_link_error = self._note_link_error
        network.on_frame = self._note_frame
        self._undecoded: defaultdict[str, list[bytes]] = defaultdict(list)
        self._arrived: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        self._write_line = write_line
        self.seen = Observations()
        self.link_errors: list[tuple[str, str, str]] = []
        self._surprises = _SurpriseHandler(self)

    def watch_logs(self) -> None:
        for name in _WATCHED_LOGS:
            logging.getLogger(name).addHandler(self._surprises)

    def unwatch_logs(self) -> None:
        for name in _WATCHED_LOGS:
            logging.getLogger(name).removeHandler(self._surprises)

    def watch_gateway(self, gateway: SimulatedGateway, files: SimulatedBlobFiles) -> None:
        files.on_stored = partial(self._note_blob, gateway.id)
        gateway.on_appended = partial(self._note_append, gateway.id)
        gateway.hub.listeners.append(partial(self._note_task, gateway.id))
        gateway.on_up.append(partial(self.trace, gateway.id, "starts"))
        gateway.on_down.append(partial(self.trace, gateway.id, "goes down"))

    def trace(self, who: str, what: str) -> None:
        if self._write_line is not None:
            self._write_line(f"{self._loop.now - START:>8} {who:<8} {what}")

    def trace_frame(self, direction: Direction, data: bytes) -> bytes:
        """Trace a frame, and return it as it is."""
        self.trace(f"{direction[0]}>{direction[1]}", describe_frame(data))
        return data

    def note_turn(self, turn: ObservedTurn) -> None:
        self.seen.turns.append(turn)
        self.trace(turn.node, f"{turn.agent} begins {turn.event_id} of {turn.sender}")

    def _note_task(self, node: str, task: Task) -> None:
        """A gateway tells that a task changed. Its end is what its creator is told."""
        self.trace(node, f"task {task.id} is {task.state} {task.error_code or ''}")
        if task.has_ended:
            end = ObservedTaskEnd(node, task.id, task.state, task.error_code, self._loop.now)
            self.seen.task_ends.append(end)
        elif task.executor == "session" and task.state is TaskState.PENDING:
            wait = ObservedWait(task.source, self._loop.now)
            self.seen.waits[node, session_name(task.id, task.attempt)] = wait

    def note_surprise(self, what: str) -> None:
        self.seen.surprises.append(("", what))
        self.trace("", what)

    def expect_link_error(self, node: str, peer: str, forgery: str) -> None:
        """The frame that `node` gets now is forged: note whether it ends its link with `peer`."""
        before = len(self.link_errors)

        def check() -> None:
            errors = [(each[0], each[1]) for each in self.link_errors[before:]]
            self.seen.forged.append((node, forgery, (node, peer) in errors))

        self._loop.call_after(0, check)

    def expect_event(self, reader: str, source: str, seq: int) -> None:
        """A relay leaves out this event now; `reader` has it already, or gets it after all."""
        self.seen.left_out[reader, source, seq] = False

    def find_unread_events(self) -> list[tuple[str, str, int]]:
        """The events left out by a relay that have not reached their reader in any way."""
        for key in self.seen.left_out:
            self.seen.left_out[key] = key[1:] in self._decode_arrived(key[0])
        return [key for key, read in self.seen.left_out.items() if not read]

    def _decode_arrived(self, reader: str) -> set[tuple[str, int]]:
        """Source and number of all events that reached this gateway. Most runs never ask."""
        for data in self._undecoded.pop(reader, ()):
            frame = decode_frame(data)
            if isinstance(frame, EventsFrame):
                seqs = (decode_event(body).seq for body in frame.events)
                self._arrived[reader].update((frame.source, seq) for seq in seqs)
        return self._arrived[reader]

    def _note_frame(self, reader: str, data: bytes) -> None:
        self._undecoded[reader].append(data)

    def _note_link_error(self, node: str, peer: str, error: GatepostError) -> None:
        self.link_errors.append((node, peer, error.message))
        self.trace(node, f"link to {peer} ends: {error.message}")

    def _note_blob(self, node: str, digest: str) -> None:
        self.seen.note_blob(node, digest, self._loop.now)

    def _note_append(self, node: str, incarnation: str, last: int) -> None:
        moments = self.seen.appended.setdefault((node, incarnation), [])
        moments.append((last, self._loop.now))


class _SurpriseHandler(logging.Handler):
    """An error that the core logs with a traceback is a bug, even if the gateway survives it."""

    def __init__(self, observer: MeshObserver) -> None:
        super().__init__(logging.ERROR)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._observer.note_surprise(f"{record.getMessage()}: {record.exc_info[1]!r}")


def describe_frame(data: bytes) -> str:
    """A frame in one line."""
    frame = decode_frame(data)
    if not isinstance(frame, EventsFrame):
        return repr(frame)
    events = ", ".join(_describe_event(decode_event(body)) for body in frame.events)
    return f"events up to {frame.upto}: {events}"


def _describe_event(event: Any) -> str:
    payload = (
        bytes(event.payload).decode() if event.kind in ("ack", "signal", "dead_letter") else ""
    )
    about = event.ref_event_id or event.event_id
    return f"#{event.seq} {event.kind}({event.pair_seq}) {about} {payload}"
