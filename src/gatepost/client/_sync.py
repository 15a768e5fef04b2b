"""The client for blocking code: runs an event loop in its own thread."""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from gatepost.client._client import Client
from gatepost.client._message import Message
from gatepost.errors import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Client, P], Awaitable[T]],
) -> Callable[Concatenate["Blocking", P], T]:
    """Turn an async method of Client into a blocking one with the same signature."""

    def call(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def on_loop() -> T:
            return await method(self._client, *args, **kwargs)

        return self._wait(on_loop)

    functools.update_wrapper(call, method)
    return call


class Blocking:
    """Blocking forms of a client's calls, for any thread except that of its event loop."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    enqueue = _blocking(Client.enqueue)
    enqueue_many = _blocking(Client.enqueue_many)
    dequeue = _blocking(Client.dequeue)
    ack = _blocking(Client.ack)
    ack_by_id = _blocking(Client.ack_by_id)
    nack = _blocking(Client.nack)
    nack_by_id = _blocking(Client.nack_by_id)
    extend = _blocking(Client.extend)
    peek = _blocking(Client.peek)
    purge = _blocking(Client.purge)
    peek_dead_letter = _blocking(Client.peek_dead_letter)
    purge_dead_letter = _blocking(Client.purge_dead_letter)
    send = _blocking(Client.send)
    broadcast = _blocking(Client.broadcast)
    request = _blocking(Client.request)
    register = _blocking(Client.register)
    status = _blocking(Client.status)

    def load(self, message: Message) -> Any:
        """The payload of a message, fetched from the gateway if it is a blob."""
        return self._wait(message.load)

    def read(self, message: Message) -> bytes:
        """The bytes of a message's payload, whole."""
        return self._wait(message.read)

    def _wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if _loop_runs_here(self._loop):
            raise InvalidRequest("this would block its own event loop; use the asynchronous client")
        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class SyncClient(Blocking):
    """A blocking client: `with SyncClient("alice") as client: client.send("bob", ...)`."""

    def __init__(
        self,
        name: str | None = None,
        *,
        state_dir: Path | str | None = None,
        url: str | None = None,
        token: str | None = None,
    ) -> None:
        client = Client(name, state_dir=state_dir, url=url, token=token)
        super().__init__(client, asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._run, name="gatepost-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._wait(self._client.__aenter__)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._wait(self._client.close)
            self._end()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _loop_runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
