"""Verifies the file of a proof: every signature, hash and rule; sans-I/O.

The whole file is rejected unless all of this holds:

1. The file has the one spelling of its content, within its bounds.
2. Its genesis is the one that the verifier was given. The chains of admissions of all nodes in the
   file lead there, and no node id has two keys.
3. The gateway that made the file signed it.
4. Each commit group has a head that its source signed, and exactly the digests of that head; each
   event in it has the digest of its place. No two groups of one outbox contradict each other.
5. Each event is about the message: it is the message, or refers to it.
6. Each gateway that saw a head signed that it did, and no checked chain contradicts a group. The
   digests behind a group lead to a head that was seen.
7. Each content key opens the payload of the event it is for.

Revocations do not reject a file: they decide which events count (`evidence.py`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from gatepost.errors import ChainError, GatepostError, ProofRejected
from gatepost.events import (
    EncryptedPayload,
    Envelope,
    EventKind,
    decode_event,
    decode_payload,
    event_digest,
    extend_chain,
    fingerprint_key,
    verify_group,
)
from gatepost.events.encryption import decrypt_payload
from gatepost.events.kinds import TRACKED_KINDS
from gatepost.proof.proof_file import (
    DigestStretch,
    ProofFile,
    ProvenGroup,
    SeenHead,
    decode_proof,
    is_proof_signed,
    is_seen_head_signed,
    named_nodes,
    split_digests,
)
from gatepost.room import AdmissionLink, ChainVerifier, RoomMembership
from gatepost.room.membership import decide_membership
from gatepost.room.signed_record import open_signed_record

# Events that say something about the message they refer to.
ABOUT_KINDS: Final = frozenset({EventKind.ACK, EventKind.REPLY, EventKind.DEAD_LETTER})


class ProvenEvent(Struct, frozen=True):
    """One event of a proof, with the group that vouches for it."""

    envelope: Envelope
    group: ProvenGroup


class VerifiedProof(Struct, frozen=True):
    """A proof of which every signature holds. `keys` are the public keys of the nodes in it."""

    file: ProofFile
    keys: Mapping[str, bytes]
    events: list[ProvenEvent]
    pinned: list[tuple[SeenHead, ProvenGroup]]
    membership: RoomMembership
    payloads: Mapping[str, Raw]


def verify_proof(data: bytes, genesis_key: bytes) -> VerifiedProof:
    """Verify a file against the key of a room's genesis; raise ProofRejected if it is wrong."""
    file = decode_proof(data)
    if file.genesis.key != genesis_key:
        raise ProofRejected(
            f"the proof is of the room with the genesis key {fingerprint_key(file.genesis.key)},"
            f" not {fingerprint_key(genesis_key)}"
        )
    try:
        return _verify_file(file)
    except ProofRejected:
        raise
    except GatepostError as error:
        raise ProofRejected(error.message) from None


def _verify_file(file: ProofFile) -> VerifiedProof:
    verifier = ChainVerifier(file.genesis)
    keys = _node_keys(file, verifier)
    if not is_proof_signed(file, keys[file.made_by]):
        raise ProofRejected(f"the proof is not signed by {file.made_by}: it was changed")
    revocations = [
        open_signed_record(each.record, each.signature, verifier) for each in file.revocations
    ]
    events = [event for group in file.groups for event in _verify_group(file, group, keys)]
    _require_one_history(file.groups)
    _require_one_sender(file, events)
    for seen in file.seen:
        _verify_seen_head(seen, file.groups, keys)
    pinned = [*_pinned_groups(file)]
    payloads = _open_payloads(file, events)
    membership = decide_membership(revocations, file.genesis, file.chains)
    return VerifiedProof(file, keys, events, pinned, membership, payloads)


def _node_keys(file: ProofFile, verifier: ChainVerifier) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for chain in file.chains:
        verifier.verify_chain(chain)
        link: AdmissionLink = chain[-1]
        if keys.setdefault(link.node, link.key) != link.key:
            raise ProofRejected(f"the proof has two keys of {link.node}")
    for node in named_nodes(file):
        if node not in keys:
            raise ProofRejected(f"the proof does not show that {node} was admitted to the room")
    return keys


def _verify_group(
    file: ProofFile, group: ProvenGroup, keys: Mapping[str, bytes]
) -> Iterable[ProvenEvent]:
    digests = group.split_digests()
    try:
        verify_group(group.previous, digests, group.head, keys[group.source])
    except ChainError as error:
        raise ProofRejected(error.message) from None
    for body in group.events:
        envelope = decode_event(body)
        if envelope.source_node_id != group.source:
            raise ProofRejected(
                f"an event of {envelope.source_node_id} is in the outbox of {group.source}"
            )
        if not group.first <= envelope.seq <= group.last:
            raise ProofRejected(f"event {envelope.seq} of {group.source} is outside of its group")
        if digests[envelope.seq - group.first] != event_digest(body):
            raise ProofRejected(
                f"event {envelope.seq} of {group.source} is not what its source wrote"
            )
        if not is_about(envelope, file.event_id):
            raise ProofRejected(f"event {envelope.seq} of {group.source} is about another message")
        yield ProvenEvent(envelope, group)


def is_about(envelope: Envelope, event_id: str) -> bool:
    """Whether an event is the message, or says something about it."""
    if envelope.event_id == event_id:
        return envelope.kind in TRACKED_KINDS
    return envelope.ref_event_id == event_id and envelope.kind in ABOUT_KINDS


def _require_one_history(groups: list[ProvenGroup]) -> None:
    """Two groups of one outbox are apart, unless they are the same."""
    ends: dict[tuple[str, str], list[ProvenGroup]] = {}
    for group in groups:
        for other in ends.setdefault((group.source, group.incarnation), []):
            if group.first <= other.last and other.first <= group.last:
                raise ProofRejected(f"two groups of {group.source} are in the same place")
            if group.first == other.last + 1 and group.previous != other.chain:
                raise ProofRejected(f"two groups of {group.source} do not fit together")
            if other.first == group.last + 1 and other.previous != group.chain:
                raise ProofRejected(f"two groups of {group.source} do not fit together")
        ends[group.source, group.incarnation].append(group)


def _require_one_sender(file: ProofFile, events: list[ProvenEvent]) -> None:
    """The message has one gateway that sent it, and all its attempts say the same of it."""
    sends = [each.envelope for each in events if each.envelope.event_id == file.event_id]
    if not sends:
        raise ProofRejected(f"the proof has no send of {file.event_id}")
    said = {(e.source_node_id, e.source_agent_id, e.to_agent_id, e.kind, e.corr_id) for e in sends}
    if len(said) > 1:
        raise ProofRejected(f"the sends of {file.event_id} contradict each other")


def _verify_seen_head(seen: SeenHead, groups: list[ProvenGroup], keys: Mapping[str, bytes]) -> None:
    if not is_seen_head_signed(seen, keys[seen.witness]):
        raise ProofRejected(
            f"what {seen.witness} saw of {seen.source} is not signed by {seen.witness}"
        )
    for group in groups:
        at_same_place = (seen.source, seen.incarnation, seen.seq) == (
            group.source,
            group.incarnation,
            group.last,
        )
        if at_same_place and seen.chain and seen.chain != group.chain:
            raise ProofRejected(
                f"{seen.witness} saw another history of {seen.source}: {seen.source} signed two"
            )


def _pinned_groups(file: ProofFile) -> Iterator[tuple[SeenHead, ProvenGroup]]:
    """The heads that others checked, each with the group that its chain covers."""
    for seen in file.seen:
        for group in file.groups:
            end = (group.source, group.incarnation, group.last, group.chain)
            if end == (seen.source, seen.incarnation, seen.seq, seen.chain):
                yield seen, group
    for stretch in file.stretches:
        yield from _follow_stretch(file, stretch)


def _follow_stretch(
    file: ProofFile, stretch: DigestStretch
) -> Iterator[tuple[SeenHead, ProvenGroup]]:
    outbox = (stretch.source, stretch.incarnation)
    group = next(
        (g for g in file.groups if (g.source, g.incarnation, g.last) == (*outbox, stretch.after)),
        None,
    )
    if group is None or not stretch.digests or len(stretch.digests) % 32:
        raise ProofRejected(f"digests of {stretch.source} lead on from nowhere")
    chain = extend_chain(group.chain, split_digests(stretch.digests))
    reached = [s for s in file.seen if (s.source, s.incarnation, s.seq) == (*outbox, stretch.upto)]
    if not any(seen.chain == chain for seen in reached):
        raise ProofRejected(f"the digests of {stretch.source} lead to no head that was seen")
    yield from ((seen, group) for seen in reached if seen.chain == chain)


def _open_payloads(file: ProofFile, events: list[ProvenEvent]) -> dict[str, Raw]:
    payloads: dict[str, Raw] = {}
    for event_id, key in file.keys.items():
        envelope = next(
            (
                each.envelope
                for each in events
                if each.envelope.event_id == event_id and each.envelope.payload is not UNSET
            ),
            None,
        )
        if envelope is None or envelope.kind not in TRACKED_KINDS:
            raise ProofRejected(f"the proof has a key for {event_id}, and no payload of it")
        encrypted = decode_payload(envelope, EncryptedPayload)
        clear = decrypt_payload(
            encrypted, key, event_id=event_id, source_node_id=envelope.source_node_id
        )
        payloads[event_id] = _check_json(clear, event_id)
    return payloads


def _check_json(clear: bytes, event_id: str) -> Raw:
    try:
        msgspec.json.decode(str(clear, "utf-8"))
    except (ValueError, RecursionError):
        raise ProofRejected(f"the payload of {event_id} is not JSON") from None
    return Raw(clear)
