"""A gateway at a glance."""

import os

from gatepost import __version__
from gatepost.gateway.operations import Operations
from gatepost.journal import Tx
from gatepost.wire import Status


async def status(operations: Operations) -> Status:
    core = operations.core
    agents, waiting, in_flight, dead, seq = await core.read(_counts)
    return Status(
        core.node.id,
        __version__,
        os.getpid(),
        core.writer.failure is None,
        core.writer.failure,
        agents,
        waiting,
        in_flight,
        dead,
        seq,
        core.state.journal.stat().st_size,
    )


def _counts(tx: Tx) -> tuple[int, int, int, int, int]:
    row = tx.rows(
        """SELECT (SELECT count(*) FROM agent), total(waiting), total(in_flight),
                  (SELECT count(*) FROM dead_letter), (SELECT coalesce(max(seq), 0) FROM outbox)
           FROM mailbox"""
    )[0]
    agents, waiting, in_flight, dead, seq = (int(value) for value in row)
    return agents, waiting, in_flight, dead, seq
