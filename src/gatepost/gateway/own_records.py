"""What a gateway says of itself and its agents in the room."""

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from gatepost.journal import Tx
from gatepost.room import Agent, Delivery, Node, Owned, Room, claim_key
from gatepost.room.admission import issuer_of
from gatepost.room.records import subject
from gatepost.wire import PROTOCOL_VERSION
from gatepost.wire import Agent as LocalAgent

Status = Literal["online", "offline"]
# What is held was taken, and has no receipt yet.
_PROGRESS = """
SELECT sum(seq - first_seq + 1), max(at),
       (SELECT count(*) FROM held WHERE event_id IS NOT NULL),
       (SELECT count(*) FROM dead_letter) + (SELECT count(*) FROM undelivered)
FROM cursor
"""

Claims = dict[tuple[str, str], Agent | None]


def node(
    room: Room, endpoint: str | None, status: Status, now: int, capabilities: tuple[str, ...]
) -> Node:
    chain = room.publisher.author.chain
    return Node(
        tier=chain[-1].tier,
        endpoint_ws=endpoint,
        capabilities=capabilities,
        status=status,
        last_heartbeat_at=now,
        protocol_version=PROTOCOL_VERSION,
        added_by=issuer_of(room.genesis, chain),
        added_at=chain[-1].issued_at,
    )


def agents(room: Room, local: Iterable[LocalAgent], gateway: str) -> Claims:
    """All we have to say of agents, by map and key. None takes a claim back."""
    said = claims_of(room)
    hosted = {each.id: each for each in local}
    claims: Claims = {}
    for id in said.keys() | hosted.keys():
        if id in hosted:
            claim = _hosted(hosted[id], room.view.agents.get(id), said.get(id), gateway)
        else:
            claim = said[id] if _is_news(room, id, said[id], gateway) else None
        if claim is not None or id in said:
            claims["agents", claim_key(id, gateway)] = claim
    return claims


def claims_of(room: Room) -> dict[str, Agent]:
    """What this gateway says of agents now."""
    own = room.publisher.author.key.public
    return {
        subject(signed.key): signed.data
        for signed in room.document
        if signed.map == "agents" and signed.public_key == own and isinstance(signed.data, Agent)
    }


def _hosted(
    local: LocalAgent, owned: Owned | None, said: Agent | None, gateway: str
) -> Agent | None:
    """Our claim to an agent of ours. Who has an owner already is not claimed but asked for."""
    kind: Literal["internal", "external"] = "internal" if local.type == "internal" else "external"
    claim = Agent(gateway=gateway, type=kind, last_seen_at=local.seen_at, standby=local.standby)
    if local.standby or owned is None or owned.gateway is None:
        return claim
    if owned.gateway != gateway:
        return None if said is None or said.standby else said
    record = owned.record
    return replace(claim, role=record.role, epoch=record.epoch, transfers=record.transfers)


def _is_news(room: Room, id: str, said: Agent, gateway: str) -> bool:
    """Whether we gave an agent to somebody who has not said so itself yet."""
    taker = None if said.gateway == gateway else room.view.nodes.get(said.gateway or "")
    if taker is None or said.standby:
        return False
    found = room.document.get(("agents", claim_key(id, taker.id), taker.public_key))
    theirs = found.data if found else None
    return not (isinstance(theirs, Agent) and theirs.epoch >= said.epoch)


def delivery(tx: Tx) -> Delivery | None:
    """How far this gateway has come, all it reads taken together; None if it reads nothing yet."""
    ((seen, last_at, held, dead),) = tx.rows(_PROGRESS)
    if seen is None:
        return None
    return Delivery(
        inbox_cursor_acked=max(0, seen - held),
        inbox_cursor_seen=seen,
        dead_letter_count=dead,
        last_ack_at=last_at,
    )
