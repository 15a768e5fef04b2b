"""What a verified proof shows, and what it does not, in words.

An event counts unless its gateway was revoked and the event is behind the last one that counts. A
receipt counts if it is from a gateway that the message was sent to. A head that another gateway
checked pins the bytes of the message: its sender cannot show another message in its place. The
receipt alone does not, because it names the message by its id.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal

from msgspec import Raw, Struct, json

from gatepost.errors import MalformedEvent, ProofRejected
from gatepost.events import (
    DeadLetterNotice,
    Envelope,
    EventKind,
    Receipt,
    decode_payload,
    fingerprint_key,
)
from gatepost.proof.proof_file import SeenHead
from gatepost.proof.verification import ProvenEvent, VerifiedProof, verify_proof
from gatepost.room.records import RevocationRecord

_STATUS_ORDER = {"accepted": 0, "refused": 1, "processed": 2}

Standing = Literal["member", "revoked", "outsider"]


class NodeStanding(Struct, frozen=True):
    """Whether a node of the proof is a member, by the revocations in the file.

    Events of a revoked node count up to `last_seq`.
    """

    node: str
    fingerprint: str
    standing: Standing
    revoked_by: str | None = None
    revoked_at: int | None = None
    last_seq: int | None = None

    def honours(self, seq: int) -> bool:
        if self.standing == "revoked":
            return seq <= (self.last_seq or 0)
        return self.standing == "member"


class ProvenReceipt(Struct, frozen=True):
    """A receipt, and whether it counts: `problem` says why not."""

    node: str
    agent: str
    status: str
    at: int
    seq: int
    outcome: str | None = None
    reason: str | None = None
    problem: str = ""


class ProofFindings(Struct, frozen=True, kw_only=True):
    """The result of a verification. `proven` and `not_proven` are sentences."""

    event_id: str
    genesis: str
    genesis_key: str
    made_by: str
    made_at: int
    node: str
    from_agent: str
    to_agent: str
    kind: str
    sent_at: int
    nodes: list[NodeStanding]
    receipts: list[ProvenReceipt]
    proven: list[str]
    not_proven: list[str]
    payloads: dict[str, Raw]


def report_proof(data: bytes, genesis_key: bytes) -> ProofFindings:
    """Verify a file and say what it proves; raise ProofRejected if it does not verify."""
    return _ProofReader(verify_proof(data, genesis_key)).read()


class _ProofReader:
    def __init__(self, proof: VerifiedProof) -> None:
        self._proof = proof
        self._file = file = proof.file
        self._sends = sorted(
            (each for each in proof.events if each.envelope.event_id == file.event_id),
            key=lambda each: each.envelope.seq,
        )
        self._first = self._sends[0]
        self._sender = self._first.envelope.source_node_id
        self._targets = {each.envelope.to_node_id or self._sender for each in self._sends}
        self._nodes = {node: self._find_standing(node) for node in sorted(proof.keys)}

    def read(self) -> ProofFindings:
        receipts, sent = list(self._find_receipts()), self._first.envelope
        return ProofFindings(
            event_id=self._file.event_id,
            genesis=self._file.genesis.node,
            genesis_key=self._file.genesis.key.hex(),
            made_by=self._file.made_by,
            made_at=self._file.made_at,
            node=self._sender,
            from_agent=sent.source_agent_id,
            to_agent=sent.to_agent_id or "",
            kind=sent.kind,
            sent_at=sent.created_at,
            nodes=list(self._nodes.values()),
            receipts=receipts,
            proven=[_one_line(each) for each in self._describe_proven(receipts)],
            not_proven=[_one_line(each) for each in self._describe_not_proven(receipts)],
            payloads=dict(self._proof.payloads),
        )

    # -- facts

    def _find_standing(self, node: str) -> NodeStanding:
        key = self._proof.keys[node]
        membership, identity = self._proof.membership, (node, key)
        name = fingerprint_key(key)
        if records := membership.revoked.get(identity):
            by = min(records, key=lambda each: _revocation(each.data).revoked_at)
            last = membership.last_honoured_seqs()[identity]
            at = _revocation(by.data).revoked_at
            return NodeStanding(node, name, "revoked", by.writer, at, last)
        if identity in membership.ranks:
            return NodeStanding(node, name, "member")
        return NodeStanding(node, name, "outsider")

    def _find_receipts(self) -> Iterator[ProvenReceipt]:
        events = (each for each in self._proof.events if each.envelope.kind == EventKind.ACK)
        found = [self._read_receipt(each.envelope) for each in events]
        yield from sorted(found, key=lambda each: (each.at, _STATUS_ORDER.get(each.status, 3)))

    def _read_receipt(self, envelope: Envelope) -> ProvenReceipt:
        try:
            receipt = decode_payload(envelope, Receipt)
        except MalformedEvent as error:
            raise ProofRejected(error.message) from None
        node = envelope.source_node_id
        return ProvenReceipt(
            node,
            envelope.source_agent_id,
            receipt.status,
            envelope.created_at,
            envelope.seq,
            receipt.outcome,
            receipt.reason,
            self._find_problem(node, envelope.seq),
        )

    def _find_problem(self, node: str, seq: int) -> str:
        """Why a receipt does not count; empty if it does."""
        if node not in self._targets:
            return f"the message was not sent to {node}"
        standing = self._nodes[node]
        if standing.honours(seq):
            return ""
        if standing.standing == "outsider":
            return f"the gateway that admitted {node} was revoked, and {node} with it"
        return (
            f"{node} was revoked by {standing.revoked_by}, and its events count up to"
            f" {standing.last_seq} only; this one is {seq}"
        )

    # -- words

    def _describe_proven(self, receipts: list[ProvenReceipt]) -> Iterator[str]:
        sent = self._first
        if self._nodes[self._sender].honours(sent.envelope.seq):
            yield self._describe_send(sent.envelope)
        for seen in self._file.seen:
            if self._pins_message(seen):
                yield (
                    f"{seen.witness} checked the outbox of {seen.source} with exactly these bytes"
                    f" in it, by {_time(seen.at)}: {seen.source} cannot put another message in"
                    " their place"
                )
        for receipt in receipts:
            if not receipt.problem:
                yield _describe_receipt(receipt) + self._note_revocation(receipt.node)
        for reply in self._about(EventKind.REPLY):
            if self._nodes[reply.source_node_id].honours(reply.seq):
                yield (
                    f"{reply.source_node_id} signed a reply of {reply.source_agent_id} to it on"
                    f" {_time(reply.created_at)}, with the id {reply.event_id}"
                )
        for letter in self._about(EventKind.DEAD_LETTER):
            if letter.source_node_id == self._sender:
                notice = decode_payload(letter, DeadLetterNotice)
                at, why = _time(letter.created_at), _quote(notice.reason)
                yield f"{self._sender} gave it up on {at}: {why}"
        for event_id in self._proof.payloads:
            what = "message" if event_id == self._file.event_id else f"reply {event_id}"
            yield f"the payload of the {what}, as shown here, is what was signed and encrypted"

    def _describe_send(self, sent: Envelope) -> str:
        again = "" if len(self._sends) == 1 else f", and sent it {len(self._sends)} times"
        return (
            f"{self._sender} signed a {sent.kind} of {sent.source_agent_id} to {sent.to_agent_id}"
            f" on {_time(sent.created_at)}, as event {sent.seq} of its outbox{again}"
            f"{self._note_revocation(self._sender)}"
        )

    def _note_revocation(self, node: str) -> str:
        """A remark on what a revoked node signed before its events ended to count."""
        standing = self._nodes[node]
        if standing.standing != "revoked":
            return ""
        return (
            f" ({node} was revoked by {standing.revoked_by} on {_time(standing.revoked_at or 0)};"
            f" its events up to {standing.last_seq} still count)"
        )

    def _describe_not_proven(self, receipts: list[ProvenReceipt]) -> Iterator[str]:
        if not self._nodes[self._sender].honours(self._first.envelope.seq):
            yield f"that {self._sender} sent it: {self._describe_standing(self._sender)}"
        for receipt in receipts:
            if receipt.problem:
                said = _describe_receipt(receipt)
                yield f"{said}: this receipt does not count, because {receipt.problem}"
        counted = [each for each in receipts if not each.problem]
        if not any(each.status in ("accepted", "processed") for each in counted):
            yield "that it arrived: the file has no receipt that counts"
        elif not any(each.status == "processed" for each in counted):
            yield "that its turn has ended: no receipt in the file says so"
        yield from self._describe_witnesses(counted)
        maker = self._file.made_by
        yield from (f"more, as {maker} says: {why}" for why in self._file.missing)
        if self._file.event_id not in self._proof.payloads:
            yield "what the message says: its payload is encrypted here, and no key is in the file"
        else:
            yield (
                "that the receiver read the same payload: who makes a message can prepare one that"
                " another key opens in another way"
            )
        yield "the times: each gateway dates its events by its own clock"
        yield (
            f"that no gateway was revoked after {_time(self._file.made_at)}: until then,"
            f" {self._file.made_by} says which ones were"
        )

    def _describe_standing(self, node: str) -> str:
        standing = self._nodes[node]
        if standing.standing == "outsider":
            return f"the gateway that admitted {node} was revoked, and {node} with it"
        return (
            f"{node} was revoked by {standing.revoked_by}, and its events count up to"
            f" {standing.last_seq} only"
        )

    def _describe_witnesses(self, counted: list[ProvenReceipt]) -> Iterator[str]:
        if any(self._pins_message(seen) for seen in self._file.seen):
            return
        others = {each.node for each in counted} - {self._sender}
        named = f" {', '.join(sorted(others))} names it by its id." if others else ""
        yield (
            f"that others saw these very bytes: only {self._sender} vouches for them, and could"
            f" sign others in their place.{named}"
        )
        for seen in self._file.seen:
            if self._covers_message(seen):
                yield (
                    f"more than the position: {seen.witness} says that it has read the outbox of"
                    f" {seen.source} up to event {seen.seq}, and did not check what lies between"
                )

    def _pins_message(self, seen: SeenHead) -> bool:
        if seen.witness == self._sender or self._nodes[seen.witness].standing != "member":
            return False
        return (seen, self._first.group) in self._proof.pinned

    def _covers_message(self, seen: SeenHead) -> bool:
        group, sent = self._first.group, self._first.envelope
        return (
            (seen.source, seen.incarnation) == (group.source, group.incarnation)
            and seen.witness != group.source
            and seen.seq >= sent.seq
        )

    def _about(self, kind: EventKind) -> list[Envelope]:
        found: Iterable[ProvenEvent] = self._proof.events
        return sorted(
            (
                each.envelope
                for each in found
                if each.envelope.kind == kind and each.envelope.ref_event_id == self._file.event_id
            ),
            key=lambda envelope: envelope.created_at,
        )


def _revocation(data: object) -> RevocationRecord:
    assert isinstance(data, RevocationRecord)
    return data


def _describe_receipt(receipt: ProvenReceipt) -> str:
    who, at = f"{receipt.node} signed on {_time(receipt.at)} that", receipt.agent
    match receipt.status:
        case "accepted":
            return f"{who} it has the message on disk for {at}"
        case "refused":
            return f"{who} it refuses the message: {_quote(receipt.reason)}"
    why = f" ({_quote(receipt.reason)})" if receipt.reason else ""
    if receipt.outcome == "kept":
        return f"{who} it keeps the message for {at}{why}"
    return f"{who} the turn of {at} ended: {receipt.outcome}{why}"


def _quote(text: str | None) -> str:
    """A text of an agent or a gateway, in quotes, so that none of it passes for our words."""
    return json.encode(text or "").decode()


def _one_line(sentence: str) -> str:
    return " ".join(sentence.split())


def _time(at: int) -> str:
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError):
        return f"the impossible time {at}"
