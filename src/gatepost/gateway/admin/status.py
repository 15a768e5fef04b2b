"""Status of the gateway: counts, storage failure, links and incidents."""

import os

from gatepost import __version__
from gatepost.delivery.agents import count_agents
from gatepost.delivery.delivery_reads import count_given_up, count_open
from gatepost.delivery.incident_table import count_incidents
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.journal import Tx
from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.outbox_reads import highest_seq
from gatepost.mailbox.counts import count_dead_letters, count_open_dead_letters, mail_totals
from gatepost.tasks.capabilities.reviews import count_open_reviews
from gatepost.tasks.runtimes.session_user import is_root
from gatepost.wire.gateway_views import Status


async def gateway_status(operations: Operations, peers: PeerStatuses | None = None) -> Status:
    """`peers` is missing in a gateway without a network."""
    core = operations.core
    counts = await core.read(_read_counts)
    return Status(
        core.node.id,
        __version__,
        os.getpid(),
        core.writer.failure is None,
        core.writer.failure,
        **counts,
        journal_bytes=core.state.journal_size(),
        links=sorted(core.outbox.live_nodes - {EVERYBODY}),
        incidents=await core.read(count_incidents),
        peers=[] if peers is None else await peers.describe_peers(),
        mesh_problems=[] if peers is None else peers.mesh_problems(),
        runs_as_root=is_root(),
        health=core.health.current_status(),
        health_problems=core.health.problems(),
    )


def _read_counts(tx: Tx) -> dict[str, int]:
    waiting, in_flight = mail_totals(tx)
    undelivered, answered_late = count_given_up(tx)
    return {
        "agents": count_agents(tx),
        "waiting": waiting,
        "in_flight": in_flight,
        "dead_letters": count_dead_letters(tx),
        "outbox_seq": highest_seq(tx),
        "deliveries_open": count_open(tx),
        "undelivered": undelivered,
        "answered_late": answered_late,
        "reviews_open": count_open_reviews(tx),
        "dead_letters_open": count_open_dead_letters(tx),
    }
