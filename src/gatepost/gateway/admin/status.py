"""Status of the gateway: counts, storage failure, links and incidents."""

import os

from gatepost import __version__
from gatepost.delivery.incident_counts import count_incidents
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.journal import Tx
from gatepost.journal.outbox import EVERYBODY
from gatepost.tasks.runtimes.session_user import is_root
from gatepost.wire.gateway_views import Status


async def gateway_status(operations: Operations, peers: PeerStatuses | None = None) -> Status:
    """`report` is that of a gateway with a network."""
    core = operations.core
    counts = await core.read(_read_counts)
    return Status(
        core.node.id,
        __version__,
        os.getpid(),
        core.writer.failure is None,
        core.writer.failure,
        **dict(zip(_COUNT_NAMES, counts, strict=True)),
        journal_bytes=core.state.journal_size(),
        links=sorted(core.outbox.live_nodes - {EVERYBODY}),
        incidents=await core.read(count_incidents),
        peers=[] if peers is None else await peers.describe_peers(),
        mesh_problems=[] if peers is None else peers.mesh_problems(),
        runs_as_root=is_root(),
        health=core.health.current_status(),
        health_problems=core.health.problems(),
    )


_COUNT_NAMES = (
    "agents",
    "waiting",
    "in_flight",
    "dead_letters",
    "outbox_seq",
    "deliveries_open",
    "undelivered",
    "answered_late",
    "reviews_open",
)


def _read_counts(tx: Tx) -> tuple[int, ...]:
    row = tx.fetch_all(
        """SELECT (SELECT count(*) FROM agent), total(waiting), total(in_flight),
                  (SELECT count(*) FROM dead_letter), (SELECT coalesce(max(seq), 0) FROM outbox),
                  (SELECT count(*) FROM delivery WHERE processed_at IS NULL),
                  (SELECT count(*) FROM undelivered WHERE replayed_as IS NULL),
                  (SELECT count(*) FROM undelivered
                   WHERE replayed_as IS NULL AND verdict_at IS NOT NULL),
                  (SELECT count(*) FROM review WHERE status = 'open')
           FROM mailbox"""
    )[0]
    return tuple(int(value) for value in row)
