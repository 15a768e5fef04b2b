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


def _make_blocking(
    method: Callable[Concatenate[Client, P], Awaitable[T]],
) -> Callable[Concatenate["BlockingCalls", P], T]:
    """Turn an async method of Client into a blocking one with the same signature."""

    def call(self: "BlockingCalls", /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def on_loop() -> T:
            return await method(self._client, *args, **kwargs)

        return self._wait_for_result(on_loop)

    functools.update_wrapper(call, method)
    return call


class BlockingCalls:
    """Blocking forms of a client's calls, for any thread except that of its event loop."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    enqueue = _make_blocking(Client.enqueue)
    enqueue_many = _make_blocking(Client.enqueue_many)
    dequeue = _make_blocking(Client.dequeue)
    ack = _make_blocking(Client.ack)
    ack_by_id = _make_blocking(Client.ack_by_id)
    nack = _make_blocking(Client.nack)
    nack_by_id = _make_blocking(Client.nack_by_id)
    extend = _make_blocking(Client.extend)
    peek = _make_blocking(Client.peek)
    purge = _make_blocking(Client.purge)
    peek_dead_letter = _make_blocking(Client.peek_dead_letter)
    purge_dead_letter = _make_blocking(Client.purge_dead_letter)
    send = _make_blocking(Client.send)
    await_outcome = _make_blocking(Client.await_outcome)
    broadcast = _make_blocking(Client.broadcast)
    request = _make_blocking(Client.request)
    create_task = _make_blocking(Client.create_task)
    create_tasks = _make_blocking(Client.create_tasks)
    await_task = _make_blocking(Client.await_task)
    run_task = _make_blocking(Client.run_task)
    show_task = _make_blocking(Client.show_task)
    cancel_task = _make_blocking(Client.cancel_task)
    load_result = _make_blocking(Client.load_result)
    register = _make_blocking(Client.register)
    status = _make_blocking(Client.status)

    def load(self, message: Message) -> Any:
        """The payload of a message, fetched from the gateway if it is a blob."""
        return self._wait_for_result(message.load)

    def read(self, message: Message) -> bytes:
        """The bytes of a message's payload, whole."""
        return self._wait_for_result(message.read)

    def _wait_for_result(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if _is_loop_running_here(self._loop):
            raise InvalidRequest("this would block its own event loop; use the asynchronous client")
        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class SyncClient(BlockingCalls):
    """A blocking client: `with SyncClient("alice") as client: client.send("bob", ...)`."""

    def __init__(
        self,
        name: str | None = None,
        *,
        state_dir: Path | str | None = None,
        url: str | None = None,
        token: str | None = None,
        token_file: Path | str | None = None,
        context: str | None = None,
    ) -> None:
        client = Client(
            name, state_dir=state_dir, url=url, token=token, token_file=token_file, context=context
        )
        super().__init__(client, asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._run_loop, name="gatepost-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._wait_for_result(self._client.__aenter__)
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._wait_for_result(self._client.close)
            self._stop_loop()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _is_loop_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
