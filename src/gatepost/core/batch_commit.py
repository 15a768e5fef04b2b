"""Work in batches: one transaction per batch, so that no commit group has to wait for all of it."""

from collections.abc import Callable

from gatepost.core.gateway_core import Core
from gatepost.journal import Tx


async def commit_until_none(core: Core, batch: Callable[[Tx], int]) -> int:
    """Commit `batch` again and again until it returns 0; return the sum of its results."""
    total = 0
    while count := await core.commit(batch):
        total += count
    return total
