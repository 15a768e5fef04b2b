"""Running calls of sessions: they end with their session, and are bounded."""

import asyncio

import pytest

from gatepost.errors import Revoked, Unavailable
from gatepost.gateway.admin.agent_session_calls import AgentSessionCalls

pytestmark = pytest.mark.anyio


async def _return(value: int) -> int:
    return value


async def test_a_call_returns_the_result_of_its_work() -> None:
    assert await AgentSessionCalls().run_call("s", _return(1)) == 1


async def test_the_end_of_a_session_ends_its_calls_and_no_other() -> None:
    calls, go_on = AgentSessionCalls(), asyncio.Event()
    mine = asyncio.ensure_future(calls.run_call("mine", asyncio.Event().wait()))
    other = asyncio.ensure_future(calls.run_call("other", go_on.wait()))
    await asyncio.sleep(0)
    calls.end_calls(["mine", "unknown"])
    with pytest.raises(Revoked):
        await mine
    go_on.set()
    assert await other is True


async def test_a_stream_stops_when_its_session_ends() -> None:
    calls = AgentSessionCalls()
    stream = calls.stream_pieces("s", iter([b"1", b"2"]))
    assert await anext(stream) == b"1"
    calls.end_calls(["s"])
    with pytest.raises(Revoked):
        await anext(stream)


async def test_a_session_has_a_bounded_number_of_calls() -> None:
    calls = AgentSessionCalls()
    running = [
        asyncio.ensure_future(calls.run_call("s", asyncio.Event().wait())) for _ in range(64)
    ]
    await asyncio.sleep(0)
    refused = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(Unavailable):
        await calls.run_call("s", refused)
    assert refused.cancelled()
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert await calls.run_call("s", _return(2)) == 2
