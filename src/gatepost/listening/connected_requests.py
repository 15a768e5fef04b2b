"""Work for a request, only as long as its client stays connected."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gatepost.errors import Unavailable
from gatepost.listening.route_parameters import AnyRequest

T = TypeVar("T")


async def while_connected(request: AnyRequest, work: Awaitable[T]) -> T:
    """Await `work`, but cancel it when the client hangs up: it must not lease mail unseen."""
    task: asyncio.Future[T] = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else await _cancel_and_wait(task)
    finally:
        gone.cancel()


async def _cancel_and_wait(task: "asyncio.Future[T]") -> T:
    """Return the result if the work ended in time; else raise an error that is not reported."""
    task.cancel()
    await asyncio.wait((task,))
    if task.cancelled():
        raise Unavailable("the client hung up before the answer")
    return task.result()


async def _wait_for_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
