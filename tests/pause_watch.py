"""Whether one thread of this process keeps the others from running, for example by the GIL."""

import asyncio
import threading
import time
from pathlib import Path

from gatepost.core.gateway_core import Core
from gatepost.journal.transaction import Tx


class PauseWatch:
    """The longest time for which this process kept a waiting thread of its own from running.

    Processor time of this process counts, and the wait for a processor does not, so that other
    work on the machine has no part in it.
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
        schedule = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        while not self._stopped.is_set():
            at, used, queued = time.monotonic(), time.process_time(), _read_queued_secs(schedule)
            time.sleep(0.002)
            waited = time.monotonic() - at - 0.002 - (_read_queued_secs(schedule) - queued)
            self.worst = max(self.worst, min(waited, time.process_time() - used))


def _read_queued_secs(schedule: Path) -> float:
    """How long a thread could run and got no processor; 0 where the kernel does not say."""
    try:
        return int(schedule.read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


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
