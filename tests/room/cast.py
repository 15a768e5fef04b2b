"""The nodes these tests are about, and records for them to write."""

from functools import cache
from random import Random

from msgspec.structs import replace

from gatepost.events import NodeKey
from gatepost.room import (
    Agent,
    Author,
    Delivery,
    Genesis,
    Node,
    Record,
    Revocation,
    Room,
    Signed,
    admit,
    claim_key,
    extend,
    found,
)
from gatepost.room.admission import issuer_of
from gatepost.room.document import Document
from gatepost.room.room import room_id
from gatepost.room.signing import sign
from gatepost.room.update import Slot, encode
from gatepost.wire import Tier

NOW = 1_700_000_000_000


@cache
def key(node: str) -> NodeKey:
    return NodeKey(Random(node).randbytes(32))


GENESIS, ROOT_CHAIN = found(key("root"), "root", NOW)
ROOT = Author(key("root"), ROOT_CHAIN)


@cache
def author(node: str, tier: Tier = "edge", by: Author = ROOT, at: int = NOW) -> Author:
    link = admit(by.key, by.node, node, key(node).public, tier, at)
    return Author(key(node), extend(GENESIS, by.chain, link))


def node(who: Author, genesis: Genesis = GENESIS) -> Node:
    link = who.chain[-1]
    return Node(
        tier=link.tier,
        endpoint_ws=f"ws://{who.node}:8700",
        status="online",
        last_heartbeat_at=NOW,
        protocol_version="1.0",
        added_by=issuer_of(genesis, who.chain),
        added_at=link.issued_at,
    )


def agent(gateway: str | None) -> Agent:
    return Agent(gateway=gateway, type="internal", role="worker", last_seen_at=NOW)


def delivery(cursor: int) -> Delivery:
    return Delivery(inbox_cursor_acked=cursor, inbox_cursor_seen=cursor, last_ack_at=NOW + cursor)


def entry(who: Author, version: int = 1, **changes: object) -> Signed:
    """The node's own record."""
    return sign(who, "nodes", who.node, version, NOW, replace(node(who), **changes))


def claim(who: Author, map: str, id: str, data: Record | None, version: int = 1) -> Signed:
    return sign(who, map, claim_key(id, who.node), version, NOW, data)


def revocation(who: Author, of: Author, *standing: Author, version: int = 1) -> Signed:
    data = Revocation(
        key=of.key.fingerprint,
        standing=tuple(s.key.fingerprint for s in standing),
        last_seq=7,
        revoked_at=NOW,
    )
    return claim(who, "nodes", of.node, data, version)


def update(*records: Signed, epoch: int = 1) -> bytes:
    """These records as an honest node sends them."""
    (only,) = Document(room_id(epoch)).chunks(records)
    return only


def placed(signed: Signed, **changes: object) -> bytes:
    """An update that is the honest one but for these changes to its Yjs structure."""
    client = Document(room_id(1)).client_of(signed.place)
    slot = Slot(client, signed.version, signed.map, signed.key, signed.text, signed.signature)
    return encode([replace(slot, **changes)])


def room(*records: Signed, of: Author | None = None) -> Room:
    return Room(GENESIS, author=of, records=records)


def contents(of: Room) -> set[str]:
    """Everything a replica holds."""
    return {signed.text for signed in of.document}


def shown(of: Room) -> dict[str, object]:
    """Everything a replica makes of it."""
    view = of.view
    return {
        "nodes": dict(view.nodes),
        "revoked": {
            identity: {s.text for s in by} for identity, by in view.standing.revoked.items()
        },
        "agents": dict(view.agents),
        "routing": dict(view.routing),
        "catalog": dict(view.catalog),
        "index": dict(view.index),
        "invites": dict(view.invites),
        "delivery": dict(view.delivery),
        "reviews": dict(view.reviews),
        "coordination": view.coordination,
    }
