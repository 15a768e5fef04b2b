"""The room records a gateway writes about itself: node, agent claims and delivery progress."""

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from gatepost.delivery.delivery_reads import count_undelivered
from gatepost.delivery.inbox.inbox_reads import read_progress
from gatepost.delivery.incident_table import open_incidents
from gatepost.events.reserved_names import is_reserved_name
from gatepost.journal import Tx
from gatepost.mailbox.counts import count_dead_letters
from gatepost.room import AgentRecord, DeliveryRecord, NodeRecord, OwnedAgent, SharedRoom, claim_key
from gatepost.room.admission_chain import chain_issuer
from gatepost.room.record_drafter import HEARTBEAT_INTERVAL_MS
from gatepost.room.records import NodeStatus, key_subject
from gatepost.wire.gateway_views import AgentInfo as LocalAgent
from gatepost.wire.operations import PROTOCOL_VERSION

# The intervals per agent. So a gateway writes about 100 heartbeats of agents a minute, and all
# gateways of a room write about 20 a second, because each of them verifies each one.
_HOSTED_AGENT_MS = 600
_ROOM_AGENT_MS = 50
_MAX_INCIDENT_CLASSES = 48


AgentClaims = dict[tuple[str, str], AgentRecord | None]


def node_record(
    room: SharedRoom,
    endpoint: str | None,
    tls_pin: str | None,
    status: NodeStatus,
    now: int,
    capabilities: tuple[str, ...],
) -> NodeRecord:
    chain = room.drafter.author.chain
    return NodeRecord(
        tier=chain[-1].tier,
        endpoint_ws=endpoint,
        tls_pin=tls_pin,
        capabilities=capabilities,
        status=status,
        last_heartbeat_at=now,
        protocol_version=PROTOCOL_VERSION,
        added_by=chain_issuer(room.genesis, chain),
        added_at=chain[-1].issued_at,
    )


def agent_heartbeat_ms(hosted: int, in_room: int) -> int:
    """How long a gateway waits between two heartbeats of an agent, by how many agents there are."""
    return max(HEARTBEAT_INTERVAL_MS, _HOSTED_AGENT_MS * hosted, _ROOM_AGENT_MS * in_room)


def agent_claims(room: SharedRoom, local: Iterable[LocalAgent], gateway: str) -> AgentClaims:
    """Return our claims to agents by (map, key). None withdraws a claim."""
    published = published_claims(room)
    hosted = {each.id: each for each in local if not is_reserved_name(each.id)}
    heartbeat_ms = agent_heartbeat_ms(len(hosted), len(room.effective.agents))
    claims: AgentClaims = {}
    for id in published.keys() | hosted.keys():
        old = published.get(id)
        if id in hosted:
            claim = _hosted_agent_claim(hosted[id], room.effective.agents.get(id), old, gateway)
            claim = _without_early_heartbeat(claim, old, heartbeat_ms)
        else:
            claim = (
                old if old is not None and _is_pending_transfer(room, id, old, gateway) else None
            )
        if claim is not None or old is not None:
            claims["agents", claim_key(id, gateway)] = claim
    return claims


def published_claims(room: SharedRoom) -> dict[str, AgentRecord]:
    """Return the claims this gateway has in the room now, by agent."""
    own = room.drafter.author.key.public
    return {
        key_subject(signed.key): signed.data
        for signed in room.document
        if signed.map == "agents"
        and signed.public_key == own
        and isinstance(signed.data, AgentRecord)
    }


def _hosted_agent_claim(
    local: LocalAgent, owned: OwnedAgent | None, old: AgentRecord | None, gateway: str
) -> AgentRecord | None:
    """Return our claim to a hosted agent.

    An agent another gateway owns is not claimed: its owner is asked for it
    (`room/agent_ownership.py`).
    """
    kind: Literal["internal", "external"] = "internal" if local.type == "internal" else "external"
    claim = AgentRecord(
        gateway=gateway,
        type=kind,
        role=local.role,
        order="none" if local.order == "none" else None,
        last_seen_at=local.seen_at,
        standby=local.standby,
    )
    if local.standby or owned is None or owned.gateway is None:
        return claim
    if owned.gateway != gateway:
        return None if old is None or old.standby else old
    record = owned.record
    role = local.role or record.role
    return replace(claim, role=role, epoch=record.epoch, transfers=record.transfers)


def _without_early_heartbeat(
    claim: AgentRecord | None, old: AgentRecord | None, heartbeat_ms: int
) -> AgentRecord | None:
    """Keep the published time of an agent's last activity until the next one is due."""
    if claim is None or old is None:
        return claim
    is_early = old.last_seen_at <= claim.last_seen_at < old.last_seen_at + heartbeat_ms
    return replace(claim, last_seen_at=old.last_seen_at) if is_early else claim


def _is_pending_transfer(room: SharedRoom, id: str, claim: AgentRecord, gateway: str) -> bool:
    """Return whether we gave the agent to a node that has not claimed it yet."""
    taker = None if claim.gateway == gateway else room.effective.nodes.get(claim.gateway or "")
    if taker is None or claim.standby:
        return False
    found = room.document.record_at(("agents", claim_key(id, taker.id), taker.public_key))
    theirs = found.data if found else None
    return not (isinstance(theirs, AgentRecord) and theirs.epoch >= claim.epoch)


def delivery_record(tx: Tx) -> DeliveryRecord | None:
    """Return the progress over all outboxes this gateway reads, and its unresolved incidents.

    None if it reads no outbox yet and has no incident.
    """
    seen, last_at, held = read_progress(tx)
    incidents = open_incidents(tx, _MAX_INCIDENT_CLASSES)
    if seen is None and not incidents:
        return None
    return DeliveryRecord(
        inbox_cursor_acked=max(0, (seen or 0) - held),
        inbox_cursor_seen=seen,
        dead_letter_count=count_dead_letters(tx) + count_undelivered(tx),
        last_ack_at=last_at,
        incident_counts=incidents,
    )
