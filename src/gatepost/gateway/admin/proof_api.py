"""Operator API for proofs of messages: gathers the signed evidence of all gateways into a file.

The journal and the archive of this gateway come first. The gateways that the message was sent to,
or came from, add what they signed. All linked gateways are asked how far they saw the outboxes in
the proof. Their answers are verified before they go into the file.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from litestar import Response, Router
from litestar.params import JSONBody
from msgspec import UNSET, Struct
from msgspec.structs import replace

from gatepost.core.gateway_core import Core
from gatepost.delivery.frames import Position, TraceAnswer
from gatepost.delivery.inbox.inbox_reads import sources_of
from gatepost.errors import ChainError, GatepostError, ProofRejected, UnknownMessage
from gatepost.events import (
    EncryptedPayload,
    Envelope,
    decode_event,
    decode_payload,
    parse_event_id,
    verify_group,
)
from gatepost.events.kinds import TRACKED_KINDS
from gatepost.gateway.admin.trace_api import NO_WAY, ask_over_link, find_ways
from gatepost.journal import Tx
from gatepost.links.event_proof import (
    OwnEvidence,
    merge_groups,
    read_digests,
    read_evidence,
    read_seen_heads,
)
from gatepost.links.peer_links import PeerLink
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.listening.route_decorators import post
from gatepost.listening.route_parameters import PathName
from gatepost.proof.proof_file import (
    MAX_GROUPS,
    MAX_NODES,
    MAX_RECORDS,
    MAX_SEEN,
    MAX_STRETCH,
    DigestStretch,
    ProofFile,
    ProvenGroup,
    SeenHead,
    SignedText,
    encode_proof,
    is_seen_head_signed,
    named_nodes,
    sign_proof,
)
from gatepost.proof.verification import is_about, verify_proof
from gatepost.room import (
    AdmissionLink,
    RevocationRecord,
    SharedRoom,
    SignedRecord,
    StandingRecord,
)
from gatepost.room.records import key_subject
from gatepost.room.service.room_replica import RoomReplica

# Long enough for another gateway to search its archive.
_DEADLINE_SECS = 6.0
_MAX_WITNESSES = 16


class ProofOrder(Struct, kw_only=True):
    """The wanted content of a proof. `earlier` is a proof whose evidence may be gone elsewhere."""

    with_payload: bool = False
    earlier: bytes | None = None


class GatheredEvidence(Struct):
    """The parts of a proof while they are gathered. `missing` lists those that no node supplied."""

    groups: list[ProvenGroup]
    seen: list[SeenHead]
    stretches: list[DigestStretch]
    missing: list[str]


class ProofMaker:
    def __init__(self, core: Core, links: ConnectionLinks, replica: RoomReplica) -> None:
        self._core = core
        self._links = links
        self._replica = replica

    async def make_proof(self, event_id: str, order: ProofOrder) -> bytes:
        """Gather the file of a proof; UnknownMessage if the message is not known here."""
        room = self._replica.current_room
        event_id = _spell_id(event_id)
        gathered = self._open_earlier(room, event_id, order.earlier)
        own, sources = await self._core.read(lambda tx: self._read_own(tx, event_id))
        groups = own.groups
        if not own.is_whole:
            groups = merge_groups(await self._search_archive(event_id, gathered), groups)
        gathered.groups = merge_groups(gathered.groups, groups)
        parties = self._find_parties(event_id, gathered.groups, sources)
        if not gathered.groups and not parties:
            raise UnknownMessage(f"no message {event_id} in this gateway's journal or archive")
        await self._ask_parties(room, event_id, parties, gathered)
        if not any(event.event_id == event_id for event in _events_of(gathered.groups)):
            raise UnknownMessage(
                f"the send of {event_id} is nowhere to be had: {'; '.join(gathered.missing)}"
            )
        await self._ask_witnesses(room, event_id, gathered)
        gathered.stretches += await self._core.read(lambda tx: self._find_stretches(tx, gathered))
        return self._write_file(room, event_id, gathered, order.with_payload)

    # -- what is here

    def _open_earlier(
        self, room: SharedRoom, event_id: str, earlier: bytes | None
    ) -> GatheredEvidence:
        if earlier is None:
            return GatheredEvidence([], [], [], [])
        file = verify_proof(earlier, room.genesis.key).file
        if file.event_id != event_id:
            raise ProofRejected(f"the earlier proof is of {file.event_id}, not of {event_id}")
        return GatheredEvidence([*file.groups], [*file.seen], [*file.stretches], [])

    def _read_own(self, tx: Tx, event_id: str) -> tuple[OwnEvidence, list[str]]:
        sources = sources_of(tx, parse_event_id(event_id))
        return read_evidence(tx, self._core.node.id, event_id), sources

    async def _search_archive(self, event_id: str, gathered: GatheredEvidence) -> list[ProvenGroup]:
        try:
            return await self._core.archive.find_evidence(event_id)
        except GatepostError as error:
            gathered.missing.append(f"the archive cannot be searched: {error.message}")
            return []

    def _find_parties(
        self, event_id: str, groups: Iterable[ProvenGroup], sources: Iterable[str]
    ) -> list[str]:
        sends = (each for each in _events_of(groups) if each.event_id == event_id)
        sent_to = (node for each in sends for node in (each.to_node_id, each.source_node_id))
        found = {node for node in (*sources, *sent_to) if node is not None}
        return sorted(found - {self._core.node.id})

    # -- what others add

    async def _ask_parties(
        self, room: SharedRoom, event_id: str, parties: list[str], gathered: GatheredEvidence
    ) -> None:
        asked = (self._ask_node(room, node, event_id) for node in parties)
        answers = await asyncio.gather(*asked)
        for node, answer in zip(parties, answers, strict=True):
            if isinstance(answer, str):
                gathered.missing.append(f"what {node} signed about it: {answer}")
                continue
            groups = [g for g in answer.groups if self._is_genuine(room, g, node, event_id)]
            if len(groups) < len(answer.groups):
                gathered.missing.append(f"some of what {node} sent: it does not verify")
            gathered.groups = merge_groups(gathered.groups, groups)[:MAX_GROUPS]

    async def _ask_witnesses(
        self, room: SharedRoom, event_id: str, gathered: GatheredEvidence
    ) -> None:
        """Ask all linked gateways, and this one itself, how far they saw the outboxes."""
        heads = [(each.source, each.incarnation, each.last) for each in gathered.groups]
        node = self._core.node
        own = await self._core.read(lambda tx: read_seen_heads(tx, node, heads))
        links = self._links.greeted_links()[:_MAX_WITNESSES]
        work = (self._ask_link(link, link.peer, event_id, heads) for link in links)
        answers = await asyncio.gather(*work)
        told = [seen for each in answers if isinstance(each, TraceAnswer) for seen in each.seen]
        known = {_position_of(seen): seen for seen in gathered.seen}
        for seen in (*own, *told):
            key = _find_key(room, seen.witness)
            if key is not None and is_seen_head_signed(seen, key):
                # Keep the first statement, which is older and therefore stronger.
                known.setdefault(_position_of(seen), seen)
        gathered.seen = list(known.values())[:MAX_SEEN]

    async def _ask_node(self, room: SharedRoom, node: str, event_id: str) -> TraceAnswer | str:
        """Ask a node over its link, or through a relay if there is no link."""
        if node not in room.effective.nodes:
            return "it is not a member of the room any more"
        problem = NO_WAY
        for end in find_ways(self._links, node):
            answer = await self._ask_link(end, node, event_id, [])
            if isinstance(answer, TraceAnswer):
                return answer
            problem = answer
        return problem

    async def _ask_link(
        self, end: PeerLink, node: str, event_id: str, heads: Sequence[Position]
    ) -> TraceAnswer | str:
        try:
            async with asyncio.timeout(_DEADLINE_SECS):
                return await ask_over_link(end, node, [event_id], heads)
        except TimeoutError:
            return f"it did not answer within {_DEADLINE_SECS:g} s"

    def _is_genuine(self, room: SharedRoom, group: ProvenGroup, node: str, event_id: str) -> bool:
        key = _find_key(room, node)
        if key is None or group.source != node:
            return False
        try:
            verify_group(group.previous, group.split_digests(), group.head, key)
            return all(is_about(decode_event(body), event_id) for body in group.events)
        except (ChainError, GatepostError):
            return False

    def _find_stretches(self, tx: Tx, gathered: GatheredEvidence) -> list[DigestStretch]:
        """The digests from our groups to the next heads that others checked."""
        found = []
        for group in gathered.groups:
            nearest = _nearest_head(group, gathered.seen)
            if group.source != self._core.node.id or nearest is None:
                continue
            digests = read_digests(tx, group.last, nearest.seq)
            if len(digests) == nearest.seq - group.last:
                found.append(
                    DigestStretch(
                        source=group.source,
                        incarnation=group.incarnation,
                        after=group.last,
                        digests=b"".join(digests),
                    )
                )
        known = {(each.source, each.incarnation, each.after) for each in gathered.stretches}
        return [s for s in found if (s.source, s.incarnation, s.after) not in known]

    # -- the file

    def _write_file(
        self, room: SharedRoom, event_id: str, gathered: GatheredEvidence, with_payload: bool
    ) -> bytes:
        keys = dict(self._open_keys(room, gathered)) if with_payload else {}
        proof = ProofFile(
            event_id=event_id,
            genesis=room.genesis,
            made_by=self._core.node.id,
            made_at=self._core.clock.now(),
            chains=[],
            groups=sorted(gathered.groups, key=lambda each: (each.source, each.first)),
            seen=gathered.seen,
            stretches=gathered.stretches,
            keys=keys,
            missing=[why[:300] for why in gathered.missing[:MAX_NODES]],
        )
        chains = [_find_chain(room, node) for node in sorted({*named_nodes(proof)})]
        proof = replace(proof, chains=[chain for chain in chains if chain is not None])
        proof = replace(proof, revocations=[*_find_revocations(room, proof.chains)][:MAX_RECORDS])
        data = encode_proof(sign_proof(self._core.node.key, proof))
        verify_proof(data, room.genesis.key)
        return data

    def _open_keys(
        self, room: SharedRoom, gathered: GatheredEvidence
    ) -> Iterator[tuple[str, bytes]]:
        """The content keys of the message and its replies, as far as this gateway can open them."""
        for event in _events_of(gathered.groups):
            if event.kind not in TRACKED_KINDS:
                continue
            if event.payload_ref is not None:
                size = event.payload_ref.size
                gathered.missing.append(f"the payload of {event.event_id}: a blob of {size} bytes")
            elif event.payload is not UNSET:
                try:
                    yield event.event_id, self._open_key(room, event)
                except GatepostError as error:
                    gathered.missing.append(f"the payload of {event.event_id}: {error.message}")

    def _open_key(self, room: SharedRoom, event: Envelope) -> bytes:
        cipher, encrypted = self._core.node.cipher, decode_payload(event, EncryptedPayload)
        if event.source_node_id != self._core.node.id:
            writer = _find_key(room, event.source_node_id) or b""
            return cipher.unwrap_key(encrypted.keys, writer)
        target = _find_key(room, event.to_node_id or event.source_node_id)
        return cipher.unwrap_own_key(encrypted.keys, [target] if target else [])


def _spell_id(event_id: str) -> str:
    parse_event_id(event_id)
    return event_id


def _events_of(groups: Iterable[ProvenGroup]) -> Iterator[Envelope]:
    return (decode_event(body) for group in groups for body in group.events)


def _position_of(seen: SeenHead) -> tuple[str, str, str, int, bytes]:
    return seen.witness, seen.source, seen.incarnation, seen.seq, seen.chain


def _nearest_head(group: ProvenGroup, heads: Iterable[SeenHead]) -> SeenHead | None:
    """The nearest checked head behind a group; None if one is at the group, or none is near."""
    behind = [
        each
        for each in heads
        if (each.source, each.incarnation) == (group.source, group.incarnation) and each.chain
        if group.last <= each.seq <= group.last + MAX_STRETCH
    ]
    nearest = min(behind, key=lambda each: each.seq, default=None)
    return None if nearest is None or nearest.seq == group.last else nearest


# -- the room


def _find_chain(room: SharedRoom, node: str) -> tuple[AdmissionLink, ...] | None:
    """The admissions of a node, revoked or not."""
    member = room.effective.nodes.get(node)
    if member is not None:
        return member.chain
    return next((signed.chain for signed in room.document if signed.writer == node), None)


def _find_key(room: SharedRoom, node: str) -> bytes | None:
    chain = _find_chain(room, node)
    return None if chain is None else chain[-1].key


def _find_revocations(
    room: SharedRoom, chains: Iterable[tuple[AdmissionLink, ...]]
) -> Iterator[SignedText]:
    """The revocations of the nodes in these chains, and of their revokers, recursively."""
    records = [s for s in room.document if isinstance(s.data, RevocationRecord | StandingRecord)]
    nodes = {link.node for chain in chains for link in chain}
    found: dict[tuple[str, str], SignedRecord] = {}
    while True:
        new = [
            signed
            for signed in records
            if (signed.key, signed.writer) not in found and _is_about_node(signed, nodes, room)
        ]
        if not new:
            break
        for signed in new:
            found[signed.key, signed.writer] = signed
            nodes |= {link.node for link in signed.chain}
    for signed in found.values():
        yield SignedText(signed.text, signed.signature)


def _is_about_node(signed: SignedRecord, nodes: set[str], room: SharedRoom) -> bool:
    """Whether a record revokes one of these nodes or lists its standing admissions."""
    if isinstance(signed.data, RevocationRecord):
        return key_subject(signed.key) in nodes
    revoked = {node for node, _ in room.effective.membership.revoked}
    return bool(revoked & nodes)


def create_router(maker: ProofMaker) -> Router:
    @post("/{event_id:str}", status_code=200, summary="The proof of a message, as a file")
    async def prove(event_id: PathName, data: JSONBody[ProofOrder]) -> Response[bytes]:
        proof = await maker.make_proof(event_id, data)
        return Response(proof, media_type="application/json")

    return Router("/v1/proofs", route_handlers=[prove])
