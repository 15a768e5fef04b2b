"""Whether one thread of this process keeps the others from running, for example by the GIL."""

import asyncio
import contextlib
import threading
import time
from pathlib import Path

from gatepost.core.gateway_core import Core
from gatepost.journal.transaction import Tx


class PauseWatch:
    """The longest time for which this process kept a waiting thread of its own from running.

    Processor time of this process counts. The time in which a thread could run and got no processor
    does not, so that other work on the machine has no part in it.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PauseWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            at, used, queued = time.monotonic(), time.process_time(), _read_queued_secs()
            time.sleep(0.002)
            waited = time.monotonic() - at - 0.002
            if min(waited, time.process_time() - used) > self.worst:
                used = time.process_time() - used
                # The thread that kept this one waiting may itself have waited for a processor.
                now = _read_queued_secs()
                waited -= max(secs - queued.get(id, secs) for id, secs in now.items())
                self.worst = max(self.worst, min(waited, used))


def _read_queued_secs() -> dict[str, float]:
    """Thread → how long it could run and got no processor."""
    found = {"": 0.0}
    for each in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found[each.parent.name] = int(each.read_text().split()[1]) / 1e9
    return found


class WriterWatch:
    """The longest time of the processor that the writer of a journal spent between two commits."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._last = 0.0
        self.worst = 0.0

    async def run(self) -> None:
        while True:
            await self._core.commit(self._look)
            await asyncio.sleep(0.002)

    def _look(self, tx: Tx) -> None:
        now = time.thread_time()
        self.worst = max(self.worst, now - self._last if self._last else 0.0)
        self._last = now
