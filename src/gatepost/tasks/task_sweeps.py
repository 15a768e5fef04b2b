"""Sweeps over tasks, in which a faulty task does not stop the others."""

import logging
from collections.abc import Callable, Iterable

from gatepost.journal.transaction import Tx, try_operation

log = logging.getLogger(__name__)

EndTask = Callable[[Tx, str], object]


def end_each(tx: Tx, ids: Iterable[str], *ways: EndTask) -> list[str]:
    """End tasks, each in its own savepoint; returns those that changed.

    A task that cannot end in the first way ends in the next one, which does less. If all fail, it
    is left for the next sweep.
    """
    return [id for id in ids if any(_try_end(tx, id, way) for way in ways)]


def _try_end(tx: Tx, id: str, way: EndTask) -> bool:
    _, error = try_operation(tx, lambda tx: way(tx, id))
    if error is not None:
        log.warning("task %s cannot end: %s", id, error)
    return error is None
