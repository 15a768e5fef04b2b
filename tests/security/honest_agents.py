"""Honest agents in a process of their own: their turns are timed without the attacker's work.

An attacker in the same process would keep the interpreter from the agents.
"""

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from gatepost.client import SyncClient
from gatepost.testing import GatewayProcess

_CONTEXT = multiprocessing.get_context("forkserver")
# Between two messages of an honest agent, so that watching costs little.
_PAUSE_SECS = 0.03
_LONGEST_TURN_SECS = 60.0


class Turn(NamedTuple):
    """The seconds that `al` waited, and the seconds of CPU that its gateway took meanwhile."""

    waited: float
    worked: float

    @property
    def delay(self) -> float:
        """The part of the wait that the gateway can be blamed for.

        An attacker takes a processor from the machine, and so do other tests. While they keep the
        agents or the gateway from running, `al` waits and its gateway does nothing.
        """
        return min(self)


class HonestAgents:
    """`al` at the first gateway sends, and `bo` at the second one processes at once."""

    def __init__(self, ann: GatewayProcess, bob: GatewayProcess) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        agents = _Agents(ann.state_dir, bob.state_dir, ann.pid)
        # A daemon does not outlive the tests.
        self._process = _CONTEXT.Process(target=_run_agents, args=(agents, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(_LONGEST_TURN_SECS)

    def take_turns(self, count: int) -> list[Turn]:
        """The seconds of this many turns, one after the other."""
        self._pipe.send(count)
        return self._receive_turns(count)

    @contextlib.contextmanager
    def watching(self) -> Iterator[list[Turn]]:
        """Take turns all the time. The list is filled when this ends, and has one turn at least."""
        turns: list[Turn] = []
        self._pipe.send(None)
        try:
            yield turns
        finally:
            self._pipe.send(0)
            turns += self._receive_turns(1)

    def _receive_turns(self, count: int) -> list[Turn]:
        assert self._pipe.poll((count + 1) * _LONGEST_TURN_SECS), "an honest agent waits for ever"
        turns: list[Turn] = self._pipe.recv()
        return turns


class _Agents(NamedTuple):
    """The state directories of both gateways, and the process of `al`'s gateway."""

    al_folder: Path
    bo_folder: Path
    pid: int


def _run_agents(agents: _Agents, orders: Connection) -> None:
    threading.Thread(target=_process_mail, args=(agents.bo_folder,), daemon=True).start()
    with SyncClient("al", state_dir=agents.al_folder) as al, contextlib.suppress(EOFError):
        while True:
            count = orders.recv()
            if count is None:
                orders.send(_take_turns_until_told(al, agents.pid, orders))
            else:
                orders.send([_take_turn(al, agents.pid) for _ in range(count)])


def _take_turns_until_told(al: SyncClient, pid: int, orders: Connection) -> list[Turn]:
    turns = [_take_turn(al, pid)]
    while not orders.poll(_PAUSE_SECS):
        turns.append(_take_turn(al, pid))
    orders.recv()
    return turns


def _take_turn(al: SyncClient, pid: int) -> Turn:
    """`al` waits until `bo` has processed a message."""
    began, worked = time.monotonic(), _cpu_secs(pid)
    sent = al.send("bo", "work", wait="processed", timeout=_LONGEST_TURN_SECS)
    assert sent.state in ("processed", "replied"), sent
    return Turn(time.monotonic() - began, _cpu_secs(pid) - worked)


def _cpu_secs(pid: int) -> float:
    """The seconds for which threads of a process have run."""
    return sum(_thread_nanos(task) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def _thread_nanos(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except OSError:
        # The thread has ended.
        return 0


def _process_mail(folder: Path) -> None:
    with SyncClient("bo", state_dir=folder) as bo:
        while True:
            for mail in bo.dequeue("bo", limit=100, wait_secs=5):
                bo.ack("bo", mail.receipt)
