"""What this gateway knows of the room, for whoever judges the archives later."""

from typing import TYPE_CHECKING

from gatepost.gateway.room import RoomKeeper
from gatepost.room import Coordination, Revocation
from gatepost.room.records import subject

if TYPE_CHECKING:
    from gatepost.archive.room_facts import RoomFacts


def room_facts(keeper: RoomKeeper) -> "RoomFacts | None":
    """Everybody let in, everybody shut out, and who claims to coordinate; None without a room."""
    from gatepost.archive.room_facts import NodeFact, RevocationFact, RoomFacts, TermFact

    if keeper.room is None:
        return None
    room, members = keeper.room, keeper.room.view.nodes
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
    keys = {signed.writer: signed.public_key for signed in room.document if signed.map == "nodes"}
    revocations, terms = [], []
    for signed in sorted(room.document, key=lambda each: each.key):
        author, said = members.get(signed.writer), signed.data
        if author is None or author.public_key != signed.public_key:
            continue
        if isinstance(said, Revocation) and author.is_backbone:
            node = subject(signed.key)
            revocations.append(
                RevocationFact(
                    node=node,
                    public_key=keys.get(node, b""),
                    by=author.id,
                    at=said.revoked_at,
                    last_seq=said.last_seq,
                )
            )
        elif isinstance(said, Coordination):
            at = author.record.last_heartbeat_at
            terms.append(TermFact(counter=said.term.counter, node=said.term.node, at=at))
    return RoomFacts(
        node=keeper.core.node.id,
        at=keeper.core.clock.now(),
        nodes=nodes,
        revocations=tuple(revocations),
        terms=tuple(terms),
    )
