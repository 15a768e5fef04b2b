"""Facts about the room, written beside the archive for the audit of its segments."""

from typing import TYPE_CHECKING

from gatepost.room import CoordinationRecord, RevocationRecord
from gatepost.room.service.room_replica import RoomReplica

if TYPE_CHECKING:
    from gatepost.archive.room_facts import RoomFacts


def collect_room_facts(replica: RoomReplica) -> "RoomFacts | None":
    """Collect members, revocations and coordination terms; None without a room."""
    from gatepost.archive.room_facts import NodeFact, RevocationFact, RoomFacts, TermFact

    if replica.room is None:
        return None
    room, members = replica.room, replica.room.effective.nodes
    nodes = tuple(
        NodeFact(
            id=member.id,
            public_key=member.public_key,
            tier=member.record.tier,
            added_by=member.record.added_by,
            added_at=member.record.added_at,
        )
        for member in sorted(members.values(), key=lambda each: each.id)
    )
    revocations = [
        RevocationFact(
            node=node,
            public_key=key,
            by=signed.writer,
            at=signed.data.revoked_at,
            last_seq=signed.data.last_seq,
        )
        for (node, key), records in sorted(room.effective.membership.revoked.items())
        for signed in sorted(records, key=lambda each: each.writer)
        if isinstance(signed.data, RevocationRecord)
    ]
    terms = []
    for signed in sorted(room.document, key=lambda each: each.key):
        author, record = members.get(signed.writer), signed.data
        if author is None or author.public_key != signed.public_key:
            continue
        if isinstance(record, CoordinationRecord):
            at = author.record.last_heartbeat_at
            terms.append(TermFact(counter=record.term.counter, node=record.term.node, at=at))
    return RoomFacts(
        node=replica.core.node.id,
        at=replica.core.clock.now(),
        nodes=nodes,
        revocations=tuple(revocations),
        terms=tuple(terms),
    )
