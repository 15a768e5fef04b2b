"""This gateway's replica of the room: which room it is in, its document, and its admission."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gatepost.access import (
    AccessPolicy,
    CombinedNodeDirectory,
    Issuer,
    JournalNodeDirectory,
    node_sessions,
)
from gatepost.access.mesh_secrets import forget_secrets
from gatepost.access.node_directory import has_admissions
from gatepost.access.room_directory import RoomDirectory
from gatepost.access.welcome_header import Welcome
from gatepost.core.change_counter import ChangeCounter
from gatepost.core.gateway_core import Core
from gatepost.errors import (
    Conflict,
    Forbidden,
    JournalCorrupt,
    Unavailable,
    UnknownNode,
)
from gatepost.journal import Tx
from gatepost.journal.facts import find_fact
from gatepost.links.connections.peer_connections import PeerConnections
from gatepost.presence import OwnerLiveness
from gatepost.room import (
    AdmissionLink,
    ChainVerifier,
    CoordinationRecord,
    KnownOwner,
    KnownOwners,
    NodeRecord,
    RecordAuthor,
    RecordRetention,
    RoomAwareness,
    RoomChange,
    SharedRoom,
    SignedRecord,
    TransportRecord,
    append_admission,
    found_room,
    store,
)
from gatepost.room.epoch_proof import EpochProof, make_epoch_proof, proven_epoch
from gatepost.room.evidence import SignedTwice
from gatepost.room.membership import NodeIdentity
from gatepost.room.record_drafter import VersionLeap
from gatepost.room.records import NodeStatus
from gatepost.room.retention import rejoin_room, rotate_room
from gatepost.room.service import own_records
from gatepost.room.service.received_records import ReceivedRecords
from gatepost.room.service.room_abuse import RoomAbuse
from gatepost.room.store import RoomIdentity

log = logging.getLogger(__name__)

# Tombstones are kept for this long, unless the coordinator's settings say otherwise.
_TOMBSTONE_MS = RecordRetention().tombstone_ms
# Routing follows a change within this time unless the disk is full.
_ROUTING_SECS = 1.0

T = TypeVar("T")
ReplicaWatcher = Callable[[RoomChange | None], None]


class RoomReplica:
    """The replica. `room` is None until this gateway founds a room, by an invite, or joins one."""

    def __init__(self, core: Core) -> None:
        self.core = core
        settings = core.settings.room
        self.policy = AccessPolicy(
            profile=settings.profile,
            require_proof=settings.require_proof,
            allow_keyless=settings.allow_keyless,
        )
        self.room: SharedRoom | None = None
        self.endpoint: str | None = None
        self.tls_pin: str | None = None
        # The addresses at which this gateway takes datagrams of the mesh.
        self.transport = TransportRecord()
        # The proxy through which this gateway reaches onion services, if it has a Tor.
        self.onion_proxy: str | None = None
        self.members = RoomDirectory()
        self.directory = CombinedNodeDirectory(JournalNodeDirectory(), self.members)
        client = int.from_bytes(core.clock.random(4), "big")
        self.awareness = RoomAwareness(core.node.id, client)
        self.connections = PeerConnections(core, self.members)
        self.received = ReceivedRecords(core)
        self.abuse = RoomAbuse(core)
        dead_after_ms = int(core.settings.ownership.dead_after_secs * 1000)
        self.liveness = OwnerLiveness(
            core.clock, core.node.id, dead_after_ms, self.connections.has_peer
        )
        self.changes = ChangeCounter()
        # Counts the changes that routing has seen, slightly behind the others.
        self.routed_changes = ChangeCounter()
        self._watchers: list[ReplicaWatcher] = []
        # Held while the room is replaced by another one, or by its next document.
        self._room_lock = asyncio.Lock()

    # -- loading, founding and entering a room

    async def load_room(self) -> None:
        """Open the room that is stored in the journal, if any."""
        await self.core.commit(node_sessions.close_all_node_sessions)
        loaded = await self.core.read(_load_room)
        if loaded is None:
            return
        identity, records, leap, node_keys, owners, evidence = loaded
        own_key = ("nodes", self.core.node.id, self.core.node.key.public)
        own = next((signed for signed in records if signed.slot_key == own_key), None)
        if own is None:
            raise JournalCorrupt("the room in the journal lacks this node's own record")
        if isinstance(own.data, NodeRecord):
            self.liveness.note_own_heartbeat(own.data.last_heartbeat_at)
        author = RecordAuthor(self.core.node.key, own.chain)
        self._open_room(
            SharedRoom(
                identity.genesis,
                author=author,
                epoch=identity.epoch,
                epoch_proof=identity.epoch_proof,
                records=records,
                leap=leap,
                node_keys=node_keys,
                owners=KnownOwners(owners),
                evidence=evidence,
            )
        )

    async def found_room(self, also: Callable[[Tx], T]) -> T:
        """Commit `also`, and found the room in the same transaction if it does not exist yet."""
        async with self._room_lock:
            if self.room is not None:
                return await self.core.commit(also)
            now = self.core.clock.now()
            genesis, chain = found_room(self.core.node.key, self.core.node.id, now)
            room = SharedRoom(genesis, author=RecordAuthor(self.core.node.key, chain))
            result = await self._store_and_open(room, also)
            log.info("founded a room; this node is its genesis")
            return result

    async def enter_room(
        self, room: SharedRoom, welcome: Welcome, also: Callable[[Tx], None]
    ) -> None:
        """Adopt a synced copy of a peer's room as ours. The welcome was checked."""
        async with self._room_lock:
            await self.check_may_join()
            room.set_author(RecordAuthor(self.core.node.key, welcome.chain))
            await self._store_and_open(room, also)
            log.info("joined the room of %s", welcome.genesis.node)

    async def check_may_join(self) -> None:
        """Raise Conflict unless this gateway is in no room, or alone in its own."""
        if self.room is None:
            return
        admitted = await self.core.read(has_admissions)
        is_genesis = self.room.genesis.key == self.core.node.key.public
        if admitted or len(self.room.effective.nodes) > 1 or not is_genesis:
            raise Conflict(
                "this gateway is in a room with others already, and cannot change to another room"
            )

    async def _store_and_open(self, room: SharedRoom, also: Callable[[Tx], T]) -> T:
        node, now = self.build_node_record(room, "online"), self.core.clock.now()
        first = room.draft_record("nodes", self.core.node.id, node, now)
        drafts = [first] if first else []
        records = [*room.document, *drafts]

        def replace_room(tx: Tx) -> T:
            # Records of a room without other members were never seen by another node.
            store.delete_room(tx)
            forget_secrets(tx)
            store.create_room(tx, RoomIdentity(room.genesis, room.epoch, room.epoch_proof))
            store.save_records(tx, records)
            return also(tx)

        result = await self.core.commit(replace_room)
        room.accept_drafts(drafts)
        self._open_room(room)
        return result

    def _open_room(self, room: SharedRoom) -> None:
        self.room = room
        room.owners.is_dead = self.liveness.is_dead
        self.members.refresh_from(room)
        room.on_change(self._apply_change)
        room.costs.on_exceeded = self.abuse.report_cost
        self._signal_change(None)

    # -- moving to another document

    async def follow_epoch(self) -> None:
        """Move to the next document, if the coordinator names it or a peer has proved it.

        The coordinator raises the epoch by one. A node that missed more than one epoch learns of
        the latest from a peer.
        """
        room = self.current_room
        signed = room.coordination_record()
        if room.later_epoch_proof is not None:
            await self.catch_up_to(room.later_epoch_proof)
        elif signed is not None and isinstance(signed.data, CoordinationRecord):
            proof, kept = make_epoch_proof(signed), signed.data.retention
            now = self.core.clock.now()
            if signed.data.room_epoch == room.epoch + 1:
                await self._move_to(lambda room: rotate_room(room, proof, now, kept))

    async def catch_up_to(self, proof: EpochProof) -> None:
        """Move to the later document that a peer has proved, if we missed the rotation."""
        room = self.current_room
        if proven_epoch(proof, room.genesis, room.epoch) > room.epoch:
            if self.liveness.was_away_for(_TOMBSTONE_MS):
                # Owners may have withdrawn their claims, and their tombstones may be gone.
                room.owners.forget_all()
            await self._move_to(lambda room: rejoin_room(room, proof))

    async def _move_to(self, moved: Callable[[SharedRoom], SharedRoom]) -> None:
        async with self._room_lock:
            while True:
                count, room = self.changes.count, moved(self.current_room)
                records = list(room.document)
                await self.core.commit(
                    partial(
                        store.replace_records,
                        epoch=room.epoch,
                        epoch_proof=room.epoch_proof,
                        records=records,
                    )
                )
                # Records that changed during the commit must be moved too: start again.
                if self.changes.count == count:
                    break
            self._open_room(room)
        log.info("the room moved to its document %s", room.id)
        self.connections.end_all(Unavailable("the room moved to another document"))

    # -- identity and admission

    def create_issuer(self) -> Issuer:
        node = self.core.node
        tier = "backbone" if self.room is None else self.author.chain[-1].tier
        return Issuer(node.id, node.key, self.core.clock, tier)

    @property
    def author(self) -> RecordAuthor:
        return self.current_room.drafter.author

    @property
    def current_room(self) -> SharedRoom:
        if self.room is None:
            raise Conflict("this gateway is in no room yet; `gatepost invite` or `gatepost join`")
        return self.room

    def check_members(self, *nodes: str) -> None:
        """Raise UnknownNode unless all these nodes are in the room."""
        for node in nodes:
            if node not in self.current_room.effective.nodes:
                raise UnknownNode(f"no node {node!r} is in the room; `gatepost nodes` shows all")

    def check_welcome(self, welcome: Welcome, issuer_key: bytes) -> None:
        """Raise Forbidden unless the peer admits this node by it, or we are in its room already."""
        _check_epoch(welcome, None if self.room is None else self.room.epoch)
        if self.room is not None and self.room.genesis == welcome.genesis:
            return
        chain = welcome.chain
        own = (self.core.node.id, self.core.node.key.public)
        if not chain or (chain[-1].node, chain[-1].key) != own:
            raise Forbidden("the peer sent no admission for this node")
        ChainVerifier(welcome.genesis).verify_chain(chain)
        issuer = chain[-2].key if len(chain) > 1 else welcome.genesis.key
        if issuer != issuer_key:
            raise Forbidden("the admission of this node was not issued by the peer")

    def adopt_chain(self, welcome: Welcome) -> None:
        """Use the chain of a newer admission, which may give another tier."""
        chain, room = welcome.chain, self.current_room
        if chain and chain[-1].issued_at > self.author.chain[-1].issued_at:
            ChainVerifier(room.genesis).verify_chain(chain)
            room.set_author(RecordAuthor(self.core.node.key, chain))

    def chain_for(self, link: AdmissionLink) -> tuple[AdmissionLink, ...]:
        """Return the chain of a node that we admitted."""
        return append_admission(self.current_room.genesis, self.author.chain, link)

    def build_node_record(self, room: SharedRoom, status: NodeStatus) -> NodeRecord:
        now, capabilities = self.core.clock.now(), self.core.settings.node.capabilities
        address = (self.endpoint, self.tls_pin)
        return own_records.node_record(room, *address, status, now, capabilities)

    # -- changes of the room

    def watch_changes(self, watcher: ReplicaWatcher) -> None:
        """Call `watcher` with every change of the room; with None if it is another document now."""
        self._watchers.append(watcher)

    def _apply_change(self, applied: RoomChange) -> None:
        self.abuse.report_change(applied, self.current_room.genesis)
        if not applied.changed:
            return
        if applied.origin is not None:
            self.received.add_records(applied.changed)
        if any(self.members.is_affected_by(signed) for signed in applied.changed):
            self.members.refresh_from(self.current_room)
            self.connections.end_revoked()
        self._signal_change(applied)

    def _signal_change(self, change: RoomChange | None) -> None:
        for watcher in self._watchers:
            watcher(change)
        self.changes.note_change()

    async def wait_until_routed(self) -> None:
        """Return once routing knows what the replica holds now.

        A view of the room is taken first and shown after this wait, so that a reader can send to
        every agent that it shows.
        """
        await self.routed_changes.wait_until_reached(self.changes.count, _ROUTING_SECS)


def _check_epoch(welcome: Welcome, known_epoch: int | None) -> None:
    """Raise unless the coordinator has signed a later epoch than the one we know, if any."""
    if welcome.epoch <= (known_epoch or 1):
        return
    proof, known = welcome.epoch_proof, known_epoch or welcome.epoch
    if proof is None or proven_epoch(proof, welcome.genesis, known) != welcome.epoch:
        raise Forbidden(f"the peer names epoch {welcome.epoch} of the room without a proof")


_LoadedRoom = tuple[
    RoomIdentity,
    list[SignedRecord],
    VersionLeap,
    list[NodeIdentity],
    dict[str, KnownOwner],
    list[SignedTwice],
]


def _load_room(tx: Tx) -> _LoadedRoom | None:
    identity = store.load_room_identity(tx)
    if identity is None:
        return None
    records = store.load_records(tx, identity.genesis)
    keys, owners = store.load_node_keys(tx), store.load_owners(tx)
    evidence = store.load_evidence(tx, identity.genesis)
    return identity, records, _load_version_leap(tx), keys, owners, evidence


def _load_version_leap(tx: Tx) -> VersionLeap:
    leap, restored_at = find_fact(tx, "leap"), find_fact(tx, "restored_at")
    return VersionLeap(int(leap or 0), int(restored_at or 0))
