"""What a gateway says of itself and its agents in the room."""

from collections.abc import Iterable
from typing import Literal

from gatepost.room import Agent, Node, Room, claim_key
from gatepost.room.admission import issuer_of
from gatepost.wire import PROTOCOL_VERSION
from gatepost.wire import Agent as LocalAgent

Status = Literal["online", "offline"]


def node(room: Room, endpoint: str | None, status: Status, now: int) -> Node:
    chain = room.publisher.author.chain
    return Node(
        tier=chain[-1].tier,
        endpoint_ws=endpoint,
        status=status,
        last_heartbeat_at=now,
        protocol_version=PROTOCOL_VERSION,
        added_by=issuer_of(room.genesis, chain),
        added_at=chain[-1].issued_at,
    )


def agents(local: Iterable[LocalAgent], gateway: str) -> dict[tuple[str, str], Agent]:
    """By map and key."""
    return {("agents", claim_key(each.id, gateway)): _agent(each, gateway) for each in local}


def _agent(local: LocalAgent, gateway: str) -> Agent:
    kind: Literal["internal", "external"] = "internal" if local.type == "internal" else "external"
    return Agent(gateway=gateway, type=kind, last_seen_at=local.seen_at, standby=local.standby)


def agents_said(room: Room) -> list[tuple[str, str]]:
    """Map and key of every agent this gateway has in the room."""
    own = room.publisher.author.key.public
    return [
        (signed.map, signed.key)
        for signed in room.document
        if signed.map == "agents" and signed.public_key == own and signed.data is not None
    ]
