"""Every event, as it is written."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from msgspec import Raw

from gatepost.core.gateway_core import Core
from gatepost.gateway.overview import event_tail
from gatepost.gateway.overview.event_tail import EventTail
from gatepost.journal import Tx
from gatepost.wire.operations import NewSend, Sent
from gatepost.wire.report_views import JourneyStep
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


def _register(core: Core, agent: str, tx: Tx) -> None:
    core.agents.register(tx, agent)


def _send(core: Core, to: str, tx: Tx) -> Sent:
    new = NewSend(from_agent="alice", to_agent=to, payload=Raw(b'"hi"'))
    return core.coordinator.send(tx, new, b"")


async def test_a_listener_that_does_not_read_is_told_how_many_events_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "_MAX_QUEUED", 3)
    async with opened(tmp_path / "state") as operations:
        core = operations.core
        for agent in ("bob", "carol"):
            await core.commit(partial(_register, core, agent))
        tail = EventTail(core, operations.waits)
        batches = tail.listen("bob")
        assert await anext(batches) == []
        for to in ("carol", "bob", "bob", "bob"):
            await core.commit(partial(_send, core, to))
        found: list[JourneyStep] = []
        while not any(step.what == "missed" for step in found):
            found += await asyncio.wait_for(anext(batches), 60)
        assert {step.to_agent or step.agent for step in found[:3]} == {"bob"}
        assert len(found) == 4
        await batches.aclose()
        assert core.observer._commit_watchers == ()
