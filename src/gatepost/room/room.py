"""One replica of the room.

Updates from peers come in through `apply_update`. This node's own records come in through
`draft_record` and `accept_drafts`; in between, the caller makes the draft durable. Listeners
registered with `on_change` receive the changes. The replica reads no clock and does no I/O; use it
from one thread at a time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from gatepost.errors import Forbidden
from gatepost.room.admission_chain import AdmissionLink, ChainVerifier, Genesis
from gatepost.room.cost_limit import CostLimits
from gatepost.room.document import RoomDocument, SlotKey
from gatepost.room.effective_records import EffectiveRecords
from gatepost.room.epoch_proof import EpochProof, proven_epoch
from gatepost.room.evidence import Evidence, SignedTwice, prove_signed_twice
from gatepost.room.known_owners import KnownOwners
from gatepost.room.membership import NodeIdentity
from gatepost.room.node_keys import NodeKeys
from gatepost.room.record_drafter import NO_LEAP, RecordDrafter, VersionLeap
from gatepost.room.records import RoomRecord, claim_key
from gatepost.room.signed_record import RecordAuthor, SignedRecord, open_signed_record
from gatepost.room.yjs_update import YjsItem, decode_update, encode_state_vector, select_clocks

CONTROL_ROOM = "ansible-control"

RoomListener = Callable[["RoomChange"], None]


class RoomChange(Struct, frozen=True):
    """The records that changed, and the origin of the change.

    `conflicts` are pairs of records that one writer signed for one version: the one that was stored
    and the one that came. `collisions` are pairs of records whose slots collide (document.py): the
    one that counts and the other. `proofs` are new ones against a writer (evidence.py).
    `second_keys` are records that were not stored, each with the
    admission that gives another node's id to their writer.
    """

    changed: tuple[SignedRecord, ...]
    origin: object = None
    conflicts: tuple[tuple[SignedRecord, SignedRecord], ...] = ()
    second_keys: tuple[tuple[SignedRecord, AdmissionLink], ...] = ()
    collisions: tuple[tuple[SignedRecord, SignedRecord], ...] = ()
    proofs: tuple[SignedTwice, ...] = ()

    @property
    def is_empty(self) -> bool:
        found = (self.conflicts, self.second_keys, self.collisions, self.proofs)
        return not self.changed and not any(found)


def room_id(epoch: int) -> str:
    """The name of the document of an epoch; see retention.py."""
    return CONTROL_ROOM if epoch == 1 else f"{CONTROL_ROOM}.{epoch}"


class SharedRoom:
    """One replica of the room. `effective` holds the records that count."""

    def __init__(
        self,
        genesis: Genesis,
        *,
        author: RecordAuthor | None = None,
        epoch: int = 1,
        epoch_proof: EpochProof | None = None,
        records: Iterable[SignedRecord] = (),
        leap: VersionLeap = NO_LEAP,
        node_keys: Iterable[NodeIdentity] = (),
        owners: KnownOwners | None = None,
        evidence: Iterable[SignedTwice] = (),
    ) -> None:
        self.genesis = genesis
        self.node_keys = NodeKeys(genesis, node_keys)
        self.costs = CostLimits()
        self.epoch = epoch
        self.epoch_proof = epoch_proof
        # The proof of a later epoch, which a peer has shown. The owner of the replica moves on.
        self.later_epoch_proof: EpochProof | None = None
        self.document = RoomDocument(room_id(epoch))
        self.owners = owners or KnownOwners()
        self.evidence = Evidence(evidence)
        self.effective = EffectiveRecords(genesis, self.owners)
        self._guard = UpdateGuard(genesis)
        self._listeners: list[RoomListener] = []
        self._drafter: RecordDrafter | None = None
        self._merge_records(records)
        if author is not None:
            self.set_author(author, leap)

    @property
    def id(self) -> str:
        return self.document.room_id

    @property
    def drafter(self) -> RecordDrafter:
        if self._drafter is None:
            raise Forbidden("this node is not admitted to the room yet")
        return self._drafter

    def set_author(self, author: RecordAuthor, leap: VersionLeap = NO_LEAP) -> None:
        """Set the key and admission chain with which this node signs."""
        if self._drafter is None:
            self._drafter = RecordDrafter(self.document, self.genesis, author, leap)
        self._drafter.author = author

    def apply_update(self, update: bytes, origin: object = None) -> RoomChange:
        """Apply an update as a whole; a RoomViolation leaves the room unchanged."""
        return self._apply_records(self._guard.check_update(update, self.document), origin)

    def accept_record(self, text: str, signature: str, origin: object = "elsewhere") -> RoomChange:
        """Apply one signed record that did not come in an update of this document."""
        return self._apply_records([self._guard.open_record(text, signature)], origin)

    def accept_evidence(self, proof: SignedTwice, origin: object) -> RoomChange:
        """Take a proof from a peer, unless it names a second key for a node that has another."""
        if self.node_keys.find_second_key(proof.first, self._revoked_keys) is not None:
            return RoomChange(())
        kept = self.evidence.add_proof(proof)
        return self._tell_listeners(RoomChange((), origin, proofs=(kept,) if kept else ()))

    def open_evidence(self, *signed: tuple[str, str]) -> SignedTwice:
        """Open two records as a proof; RoomViolation unless both are genuine and prove it."""
        return prove_signed_twice(*(self._guard.open_record(*each) for each in signed))

    def draft_record(
        self, map: str, key: str, data: RoomRecord | None, now: int
    ) -> SignedRecord | None:
        """Draft an own record, or its tombstone if `data` is None; None if nothing changed."""
        return self.drafter.draft_record(map, key, data, now)

    def accept_drafts(self, drafts: Iterable[SignedRecord]) -> RoomChange:
        """Put drafts of own records into effect."""
        return self._apply_records(list(drafts), None)

    def coordination_record(self) -> SignedRecord | None:
        """The latest record of the coordinator, which names the epoch of the room."""
        claim = self.effective.coordination
        member = None if claim is None else self.effective.nodes.get(claim.coordinator)
        if claim is None or member is None:
            return self.genesis_claim()
        key = claim_key("coordinator", claim.coordinator)
        return self.document.record_at(("coordination", key, member.public_key))

    def genesis_claim(self) -> SignedRecord | None:
        """The claim of the genesis, which may permit elections."""
        key = claim_key("coordinator", self.genesis.node)
        return self.document.record_at(("coordination", key, self.genesis.key))

    def note_epoch_proof(self, proof: EpochProof) -> None:
        """Remember the proof of a later epoch; RoomViolation unless it is genuine."""
        if proven_epoch(proof, self.genesis, self.epoch) > self.epoch:
            self.later_epoch_proof = proof

    def on_change(self, listener: RoomListener) -> Callable[[], None]:
        """Call `listener` after every change. The returned function unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def state_vector(self) -> bytes:
        return encode_state_vector(self.document.slot_clocks())

    def missing_updates(self, state_vector: bytes) -> Iterator[bytes]:
        """Updates that bring a document with this state vector up to date; at least one."""
        clocks = select_clocks(state_vector, self.document.clients())
        return self.document.encode_updates(self.document.records_newer_than(clocks))

    def _apply_records(self, records: list[SignedRecord], origin: object) -> RoomChange:
        return self._tell_listeners(replace(self._merge_records(records), origin=origin))

    def _tell_listeners(self, applied: RoomChange) -> RoomChange:
        if not applied.is_empty:
            for listener in list(self._listeners):
                listener(applied)
        return applied

    def _merge_records(self, records: Iterable[SignedRecord]) -> RoomChange:
        changed: dict[SlotKey, SignedRecord] = {}
        conflicts, second_keys, proofs = [], [], []
        collisions = list[tuple[SignedRecord, SignedRecord]]()

        def revoked_by_now() -> Collection[NodeIdentity]:
            self.effective.add_records(changed.values())
            return self._revoked_keys()

        for signed in records:
            if (link := self.node_keys.find_second_key(signed, revoked_by_now)) is not None:
                second_keys.append((signed, link))
                continue
            if (known := self.document.conflicting_record(signed)) is not None:
                conflicts.append((known, signed))
                kept = self.evidence.add_proof(prove_signed_twice(known, signed))
                proofs += [] if kept is None else [kept]
            before = None
            # A record beyond its writer's quota is ignored.
            if self.document.is_newer(signed) and self._has_capacity_for(signed):
                before = self.document.put_record(signed)
                self.node_keys.bind_chain(signed.chain)
                changed[signed.slot_key] = signed
            if self.document.has_collisions:
                collisions += self._settle_collision(signed, before, changed)
        self.effective.add_records(changed.values())
        facts = (tuple(conflicts), tuple(second_keys), tuple(collisions), tuple(proofs))
        return RoomChange(tuple(changed.values()), None, *facts)

    def _settle_collision(
        self,
        signed: SignedRecord,
        before: SignedRecord | None,
        changed: dict[SlotKey, SignedRecord],
    ) -> Iterator[tuple[SignedRecord, SignedRecord]]:
        """Remove records that another slot's record displaces from effect; return the pairs."""
        served = self.document.served_instead_of(signed.slot_key)
        if served is None:
            return
        for loser in (signed, before):
            if loser is not None and loser.slot_key != served.slot_key:
                changed.pop(loser.slot_key, None)
                self.effective.remove_record(loser)
                yield served, loser
        if before is not None and before.slot_key != served.slot_key:
            changed[served.slot_key] = served

    def _revoked_keys(self) -> Collection[NodeIdentity]:
        return self.effective.membership.revoked

    def _has_capacity_for(self, signed: SignedRecord) -> bool:
        return self.document.has_capacity_for(signed) and self.node_keys.has_capacity_for(
            signed.chain
        )


class UpdateGuard:
    """Checks incoming updates: every value must be a signed record in its own slot.

    The verdict depends on the update alone, not on earlier arrivals; the stored document serves
    only to recognise duplicates and to name the broken rule. All honest replicas therefore accept
    the same updates, and a peer is never cut off for relaying an update it accepted itself, not
    even if the writer was revoked since or the claim lost. One bad record rejects the whole update.
    """

    def __init__(self, genesis: Genesis) -> None:
        self._chains = ChainVerifier(genesis)

    def check_update(self, update: bytes, document: RoomDocument) -> list[SignedRecord]:
        """Return every record of the update, or raise RoomViolation. The document only is read."""
        decoded = decode_update(update)
        records = [self._open_item(item, document) for item in decoded.items]
        if decoded.deletes:
            document.check_deletes(decoded.deletes, records)
        return records

    def open_record(self, text: str, signature: str) -> SignedRecord:
        return open_signed_record(text, signature, self._chains)

    def _open_item(self, item: YjsItem, document: RoomDocument) -> SignedRecord:
        signed = document.matching_record(item) or open_signed_record(
            item.record, item.signature, self._chains
        )
        document.check_item(item, signed)
        return signed
