"""Background work that is repeated until the gateway stops, whatever happens to one run."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from gatepost.errors import GatepostError

log = logging.getLogger(__name__)

RepeatedWork = Callable[[], Awaitable[object]]


async def repeat_forever(secs: float, work: RepeatedWork, failure: str) -> None:
    """Run `work` with a pause of `secs` after each run. Errors are logged after `failure`."""
    while True:
        try:
            await work()
        except GatepostError as error:
            log.warning("%s, and is tried again: %s", failure, error.message)
        except Exception:
            log.exception("%s, and is tried again", failure)
        await asyncio.sleep(secs)


@contextlib.asynccontextmanager
async def run_every(secs: float, work: RepeatedWork, failure: str) -> AsyncIterator[None]:
    """Run `work` every `secs` until exit, the first time after one pause."""

    async def pause_then_repeat() -> None:
        await asyncio.sleep(secs)
        await repeat_forever(secs, work, failure)

    task = asyncio.create_task(pause_then_repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
