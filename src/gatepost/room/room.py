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
from gatepost.room.admission_chain import AdmissionLink, Genesis
from gatepost.room.cost_limit import CostLimits
from gatepost.room.document import RoomDocument, SlotKey
from gatepost.room.effective_records import EffectiveRecords
from gatepost.room.epoch_proof import EpochProof, proven_epoch
from gatepost.room.known_owners import KnownOwners
from gatepost.room.membership import NodeIdentity
from gatepost.room.node_keys import NodeKeys
from gatepost.room.publisher import NO_LEAP, RecordDrafter, VersionLeap
from gatepost.room.records import RoomRecord, claim_key
from gatepost.room.signed_record import RecordAuthor, SignedRecord
from gatepost.room.update_guard import UpdateGuard
from gatepost.room.yjs_update import encode_state_vector, select_clocks

CONTROL_ROOM = "ansible-control"

RoomListener = Callable[["RoomChange"], None]


class RoomChange(Struct, frozen=True):
    """The records that changed, and the origin of the change.

    `conflicts` are pairs of records that one writer signed for one version: the one that was stored
    and the one that came. `second_keys` are records that were not stored, each with the admission
    that gives another node's id to their writer.
    """

    changed: tuple[SignedRecord, ...]
    origin: object = None
    conflicts: tuple[tuple[SignedRecord, SignedRecord], ...] = ()
    second_keys: tuple[tuple[SignedRecord, AdmissionLink], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.changed or self.conflicts or self.second_keys)


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
        self.effective = EffectiveRecords(genesis, self.owners)
        self._guard = UpdateGuard(genesis)
        self._listeners: list[RoomListener] = []
        self._publisher: RecordDrafter | None = None
        self._merge_records(records)
        if author is not None:
            self.set_author(author, leap)

    @property
    def id(self) -> str:
        return self.document.room_id

    @property
    def publisher(self) -> RecordDrafter:
        if self._publisher is None:
            raise Forbidden("this node is not admitted to the room yet")
        return self._publisher

    def set_author(self, author: RecordAuthor, leap: VersionLeap = NO_LEAP) -> None:
        """Set the key and admission chain that this node writes with from now on."""
        if self._publisher is None:
            self._publisher = RecordDrafter(self.document, self.genesis, author, leap)
        self._publisher.author = author

    def apply_update(self, update: bytes, origin: object = None) -> RoomChange:
        """Apply an update as a whole; a RoomViolation leaves the room unchanged."""
        return self._apply_records(self._guard.check_update(update, self.document), origin)

    def accept_record(self, text: str, signature: str, origin: object = "elsewhere") -> RoomChange:
        """Put one signed record into effect that did not come in an update of this document."""
        return self._apply_records([self._guard.open_record(text, signature)], origin)

    def draft_record(
        self, map: str, key: str, data: RoomRecord | None, now: int
    ) -> SignedRecord | None:
        """Draft an own record, or its tombstone if `data` is None; None if nothing changed."""
        return self.publisher.draft_record(map, key, data, now)

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
        applied = replace(self._merge_records(records), origin=origin)
        if not applied.is_empty:
            for listener in list(self._listeners):
                listener(applied)
        return applied

    def _merge_records(self, records: Iterable[SignedRecord]) -> RoomChange:
        changed: dict[SlotKey, SignedRecord] = {}
        conflicts, second_keys = [], []

        def revoked_by_now() -> Collection[NodeIdentity]:
            self.effective.add_records(changed.values())
            return self.effective.membership.revoked

        for signed in records:
            if (link := self.node_keys.find_second_key(signed, revoked_by_now)) is not None:
                second_keys.append((signed, link))
                continue
            if (known := self.document.conflicting_record(signed)) is not None:
                conflicts.append((known, signed))
            # A record beyond its writer's quota is ignored.
            if self.document.is_newer(signed) and self._has_capacity_for(signed):
                self.document.put_record(signed)
                self.node_keys.bind_chain(signed.chain)
                changed[signed.slot_key] = signed
        self.effective.add_records(changed.values())
        return RoomChange(tuple(changed.values()), None, tuple(conflicts), tuple(second_keys))

    def _has_capacity_for(self, signed: SignedRecord) -> bool:
        return self.document.has_capacity_for(signed) and self.node_keys.has_capacity_for(
            signed.chain
        )
