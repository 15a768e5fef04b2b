"""Streams of events that say now and then that they are still there."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from litestar.response import ServerSentEventMessage

from gatepost.listening.event_streams import keep_alive


@pytest.mark.anyio
async def test_a_quiet_stream_says_that_it_is_there_and_loses_nothing() -> None:
    speak, is_closed = asyncio.Event(), asyncio.Event()

    async def messages() -> AsyncGenerator[ServerSentEventMessage, None]:
        try:
            await speak.wait()
            yield ServerSentEventMessage(data="one")
            yield ServerSentEventMessage(data="two")
            await asyncio.Event().wait()
        finally:
            is_closed.set()

    stream = keep_alive(messages(), 0.01)
    assert (await anext(stream)).comment == "still here"
    speak.set()
    heard: list[object] = []
    while len(heard) < 2:
        message = await anext(stream)
        if message.data:
            heard.append(message.data)
    assert heard == ["one", "two"]
    await stream.aclose()
    assert is_closed.is_set()


@pytest.mark.anyio
async def test_a_stream_that_ends_ends() -> None:
    async def messages() -> AsyncGenerator[ServerSentEventMessage, None]:
        yield ServerSentEventMessage(data="one")

    assert [message.data async for message in keep_alive(messages())] == ["one"]
