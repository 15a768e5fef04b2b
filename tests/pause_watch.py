"""Whether one thread of this process keeps the others from running, for example by the GIL."""

import threading
import time


class PauseWatch:
    """The longest time for which this process kept a waiting thread of its own from running.

    Processor time of this process counts, so that other work on the machine does not.
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
            at, used = time.monotonic(), time.process_time()
            time.sleep(0.002)
            waited = time.monotonic() - at - 0.002
            self.worst = max(self.worst, min(waited, time.process_time() - used))
