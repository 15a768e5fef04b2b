"""Background work that is repeated until the gateway stops, even if a run fails.

A loop that fails the same way again and again says so once in the log, and raises one incident. It
is reported again when the failure changes or ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec import Struct

from gatepost.errors import GatepostError

log = logging.getLogger(__name__)

RepeatedWork = Callable[[], Awaitable[object]]
# Called with the loop's failure sentence and the error.
ReportFailure = Callable[[str, str], None]


class _FailureStreak(Struct):
    error: str
    count: int


class BackgroundLoops:
    """Runs the background loops of one gateway. `report_failure` raises an incident."""

    def __init__(self, report_failure: ReportFailure) -> None:
        self._report_failure = report_failure
        self._streaks: dict[str, _FailureStreak] = {}

    @property
    def failing(self) -> dict[str, str]:
        """Failure sentence → error, of the loops that failed the same way at least twice."""
        return {name: each.error for name, each in self._streaks.items() if each.count > 1}

    async def repeat_forever(self, secs: float, work: RepeatedWork, failure: str) -> None:
        """Run `work` with a pause of `secs` after each run. `failure` names the loop's failures."""
        while True:
            try:
                await work()
            except Exception as error:
                self._note_failure(failure, error)
            else:
                self._note_success(failure)
            await asyncio.sleep(secs)

    @contextlib.asynccontextmanager
    async def run_every(self, secs: float, work: RepeatedWork, failure: str) -> AsyncIterator[None]:
        """Run `work` every `secs` until exit, the first time after one pause."""

        async def pause_then_repeat() -> None:
            await asyncio.sleep(secs)
            await self.repeat_forever(secs, work, failure)

        task = asyncio.create_task(pause_then_repeat())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _note_failure(self, failure: str, error: Exception) -> None:
        text = _describe_error(error)
        streak = self._streaks.get(failure)
        if streak is None or streak.error != text:
            self._streaks[failure] = _FailureStreak(text, 1)
            _log_failure(failure, error)
            return
        streak.count += 1
        if streak.count == 2:
            log.warning("%s again; it is tried on, and not logged until this changes", failure)
            self._report_failure(failure, text)

    def _note_success(self, failure: str) -> None:
        streak = self._streaks.pop(failure, None)
        if streak is not None and streak.count > 1:
            log.info("it works again after %d failures: %s", streak.count, failure)


def _describe_error(error: Exception) -> str:
    if isinstance(error, GatepostError):
        return error.message
    return f"{type(error).__name__}: {error}"


def _log_failure(failure: str, error: Exception) -> None:
    if isinstance(error, GatepostError):
        log.warning("%s, and is tried again: %s", failure, error.message)
    else:
        log.error("%s, and is tried again", failure, exc_info=error)
