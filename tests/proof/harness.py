"""A room of three gateways in memory, and the proofs of messages between two of them."""

from msgspec.structs import replace

from gatepost.events import (
    EncryptedPayload,
    Envelope,
    decode_event,
    decode_payload,
    fingerprint_key,
)
from gatepost.links.event_proof import merge_groups, read_evidence, read_seen_heads
from gatepost.proof.proof_file import (
    ProofFile,
    ProvenGroup,
    SeenHead,
    SignedText,
    encode_proof,
    sign_proof,
)
from gatepost.room import Genesis, RecordAuthor, RevocationRecord, SignedRecord, sign_admission
from gatepost.room.admission_chain import AdmissionChain, found_room
from gatepost.room.records import claim_key
from gatepost.room.signed_record import sign_record
from tests.delivery.mesh import START, Gate, Mesh


class ProofWorld:
    """`a` and `b` have links with the relay `s` only, which founded the room."""

    def __init__(self) -> None:
        self.mesh = Mesh("a", "b", "s", relays=["s"])
        for name in ("a", "b"):
            self.mesh.link(name, "s")
        self.mesh.flow()
        self.genesis, chain = found_room(self["s"].key, "s", START)
        self.chains: dict[str, AdmissionChain] = {"s": chain}
        for name in ("a", "b"):
            self.admit(name, self[name].key.public)

    def __getitem__(self, name: str) -> Gate:
        return self.mesh[name]

    def admit(self, name: str, public: bytes) -> None:
        link = sign_admission(self["s"].key, "s", name, public, "edge", START)
        self.chains[name] = (link,)

    def deliver(self, payload: bytes = b'"hi"') -> str:
        """Send a message from `a` to `b`, which processes it."""
        sent = self["a"].send(self["b"], payload).event_id
        self.settle()
        return sent

    def settle(self) -> None:
        self.mesh.flow()
        self.mesh.refresh()
        self["b"].settle()
        self.mesh.flow()

    def groups(self, event_id: str) -> list[ProvenGroup]:
        parts = [self["a"].do(lambda tx: read_evidence(tx, "a", event_id).groups)]
        parts.append(self["b"].do(lambda tx: read_evidence(tx, "b", event_id, "a").groups))
        return merge_groups(*parts)

    def seen(self, groups: list[ProvenGroup], witness: str = "s") -> list[SeenHead]:
        heads = [(each.source, each.incarnation, each.last) for each in groups]
        gate = self[witness]
        found: list[SeenHead] = gate.do(lambda tx: read_seen_heads(tx, gate.node, heads))
        return found

    def prove(self, event_id: str, **more: object) -> ProofFile:
        groups = self.groups(event_id)
        file = ProofFile(
            event_id=event_id,
            genesis=self.genesis,
            made_by="a",
            made_at=self["a"].now(),
            chains=[self.chains[name] for name in sorted(self.chains)],
            groups=groups,
            seen=self.seen(groups),
        )
        return replace(file, **more)

    def write(self, file: ProofFile) -> bytes:
        """The file as its maker signs it, whatever is in it."""
        return encode_proof(sign_proof(self[file.made_by].key, file))

    @property
    def genesis_key(self) -> bytes:
        return self.genesis.key

    def content_key(self, file: ProofFile) -> bytes:
        (event,) = [e for e in events_of(file) if e.event_id == file.event_id]
        keys = decode_payload(event, EncryptedPayload).keys
        return self["a"].node.cipher.unwrap_own_key(keys, [self["b"].key.public])

    def revoke(self, name: str, last_seq: int, by: str = "s") -> SignedText:
        author = RecordAuthor(self[by].key, tuple(self.chains[by]))
        record = RevocationRecord(
            key=fingerprint_key(self.chains[name][-1].key), last_seq=last_seq, revoked_at=START + 9
        )
        signed: SignedRecord = sign_record(
            author, "nodes", claim_key(name, by), 1, START + 9, record
        )
        return SignedText(signed.text, signed.signature)


def events_of(file: ProofFile) -> list[Envelope]:
    return [decode_event(body) for group in file.groups for body in group.events]


def other_genesis(world: ProofWorld) -> Genesis:
    return Genesis("s", world["a"].key.public)
