"""Finds unhealthy agents of this gateway: their mail piles up, or their sessions fail."""

from collections.abc import Callable, Iterable

from gatepost.core.gateway_core import Core
from gatepost.errors import LaunchFailed
from gatepost.journal import Tx

# Tasks that ended earlier do not count.
_RECENT_MS = 120_000
_SELECT_LATEST = """
SELECT agent, error_code FROM task WHERE ended_at >= ? AND executor = 'session'
ORDER BY ended_at DESC LIMIT 1000
"""


class LocalAgentHealth:
    """`growing_mailboxes` are the agents that do not keep up with their mail."""

    def __init__(self, core: Core, growing_mailboxes: Callable[[], Iterable[str]]) -> None:
        self._core = core
        self._growing_mailboxes = growing_mailboxes

    async def find_unhealthy(self) -> tuple[str, ...]:
        now = self._core.clock.now()
        failing = await self._core.read(lambda tx: failing_agents(tx, now))
        return tuple(sorted({*self._growing_mailboxes(), *failing}))


def failing_agents(tx: Tx, now: int) -> list[str]:
    """Agents whose last session could not be launched, not long ago."""
    latest: dict[str, str | None] = {}
    for agent, error_code in tx.fetch_all(_SELECT_LATEST, (now - _RECENT_MS,)):
        latest.setdefault(agent, error_code)
    return [agent for agent, error_code in latest.items() if error_code == LaunchFailed.code]
