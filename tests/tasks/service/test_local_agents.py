from pathlib import Path

import pytest

from gatepost.journal import Tx
from gatepost.tasks.service.local_agents import LocalAgentHealth, failing_agents
from gatepost.testing import ManualClock
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


def end_task(number: int, agent: str, error_code: str | None, at: int) -> tuple[object, ...]:
    state = "failed" if error_code else "completed"
    return bytes([number]), agent, "al", "session", state, "", b"{}", error_code, at, at, at


_INSERT = """
INSERT INTO task (id, agent, requester, executor, state, description, info, error_code, created_at,
                  updated_at, ended_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


async def test_agents_whose_mail_grows_or_whose_last_session_failed_are_unhealthy(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        core = operations.core
        now = core.clock.now()

        def end_tasks(tx: Tx) -> None:
            for row in (
                end_task(1, "broken", "launch_failed", now - 5),
                end_task(2, "mended", "launch_failed", now - 5),
                end_task(3, "mended", None, now - 1),
                end_task(4, "wrong", "failed", now - 5),
                end_task(5, "long-ago", "launch_failed", now - 200_000),
            ):
                tx.execute(_INSERT, row)

        await core.commit(end_tasks)
        assert await core.read(lambda tx: failing_agents(tx, now)) == ["broken"]
        health = LocalAgentHealth(core, lambda: ["slow"])
        assert await health.find_unhealthy() == ("broken", "slow")
