"""This gateway's replica of the room: its records, their storage, and the live connections.

Our own records are on disk before they are sent, so that no version is ever signed twice. Records
of other nodes are passed on at once and saved soon after: their writer has them on disk, so if we
lose one, the next sync brings it back.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from gatepost.access import (
    AccessPolicy,
    CombinedNodeDirectory,
    Issuer,
    JournalNodeDirectory,
    node_sessions,
)
from gatepost.errors import (
    Conflict,
    Forbidden,
    GatepostError,
    JournalCorrupt,
    Revoked,
    RoomViolation,
    Unavailable,
)
from gatepost.gateway.core import Core
from gatepost.gateway.peers import own_records
from gatepost.gateway.peers.connection import PeerConnection
from gatepost.gateway.peers.own_records import NodeStatus
from gatepost.gateway.peers.room_directory import RoomDirectory
from gatepost.gateway.peers.welcome_header import Welcome
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.room import (
    AdmissionLink,
    ChainVerifier,
    ConnectionPresence,
    Genesis,
    NodeRecord,
    RecordAuthor,
    RecordRetention,
    RoomAwareness,
    RoomChange,
    RoomRecord,
    SharedRoom,
    SignedRecord,
    append_admission,
    found_room,
    store,
)
from gatepost.room.document import SlotKey
from gatepost.room.retention import finished_records, rejoin_room, rotate_room

log = logging.getLogger(__name__)

T = TypeVar("T")
RecordChanges = Mapping[tuple[str, str], RoomRecord | None]

_FAREWELL_SECS = 0.5
_RETRY_SECS = 1.0
_ANNOUNCE_MS = 15_000
_PROGRESS_MS = 30_000


class RoomReplica:
    """The replica. `room` is None until this gateway founds a room, by an invite, or joins one."""

    def __init__(self, core: Core) -> None:
        self.core = core
        settings = core.settings.room
        self.policy = AccessPolicy(profile=settings.profile, require_proof=settings.require_proof)
        self.room: SharedRoom | None = None
        self.endpoint: str | None = None
        self.members = RoomDirectory()
        self.directory = CombinedNodeDirectory(JournalNodeDirectory(), self.members)
        client = int.from_bytes(core.clock.random(4), "big")
        self.awareness = RoomAwareness(core.node.id, client)
        self.connections: set[PeerConnection] = set()
        self.incident_counts: Counter[str] = Counter()
        self.change_count = 0
        self._changed = asyncio.Event()
        self._pending_drafts: dict[SlotKey, SignedRecord] = {}
        self._unsaved_records: dict[SlotKey, SignedRecord] = {}
        self._has_unsaved = asyncio.Event()
        self._room_lock = asyncio.Lock()
        self._announced_at = 0
        self._progress_at = 0
        self._has_left = False
        self.may_publish = asyncio.Event()
        # Held while claims to agents are derived from the room and published.
        self.claims_lock = asyncio.Lock()

    # -- loading, founding and entering a room

    async def load_room(self) -> None:
        """Open the room that is stored in the journal, if any."""
        await self.core.commit(node_sessions.close_all_node_sessions)
        loaded = await self.core.read(_load_room)
        if loaded is None:
            return
        genesis, epoch, records, leap = loaded
        own = next((s for s in records if s.slot_key == self._own_record_key()), None)
        if own is None:
            raise JournalCorrupt("the room in the journal lacks this node's own record")
        author = RecordAuthor(self.core.node.key, own.chain)
        self._open_room(SharedRoom(genesis, author=author, epoch=epoch, records=records, leap=leap))

    async def found_room(self, also: Callable[[Tx], T]) -> T:
        """Commit `also`; if there is no room yet, found one in the same transaction."""
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
        admitted = await self.core.read(lambda tx: tx.fetch_one("SELECT 1 FROM admission"))
        if admitted is not None or len(self.room.effective.nodes) > 1 or not self._is_genesis():
            raise Conflict(
                "this gateway is in a room with others already, and cannot change to another room"
            )

    async def _store_and_open(self, room: SharedRoom, also: Callable[[Tx], T]) -> T:
        first = room.draft_record(
            "nodes", self.core.node.id, self._node_record(room, "online"), self._now()
        )
        records = [*room.document, *([first] if first else [])]

        def replace_room(tx: Tx) -> T:
            # Records of a room without other members were never seen by another node.
            tx.execute("DELETE FROM room_record")
            tx.execute("DELETE FROM room")
            store.create_room(tx, room.genesis, room.epoch)
            store.save_records(tx, records)
            return also(tx)

        result = await self.core.commit(replace_room)
        room.accept_drafts([first] if first else [])
        self._open_room(room)
        return result

    def _open_room(self, room: SharedRoom) -> None:
        self.room = room
        self._pending_drafts.clear()
        self.members.refresh_from(room)
        room.on_change(self._apply_change)
        self._signal_change()

    # -- moving to another document

    async def follow_epoch(self) -> None:
        """Move to the document the coordinator names, if it is later than ours."""
        coordination = self.current_room.effective.coordination
        if coordination is not None and coordination.room_epoch > self.current_room.epoch:
            epoch, kept = coordination.room_epoch, coordination.retention
            await self._move_to(lambda room: rotate_room(room, epoch, self._now(), kept))

    async def catch_up_to(self, epoch: int) -> None:
        """Move to the later document a peer is in, if we missed the rotation."""
        if epoch > self.current_room.epoch:
            await self._move_to(lambda room: rejoin_room(room, epoch))

    async def _move_to(self, moved: Callable[[SharedRoom], SharedRoom]) -> None:
        async with self._room_lock:
            while True:
                count, room = self.change_count, moved(self.current_room)
                records = list(room.document)
                await self.core.commit(partial(_store_rotation, room.epoch, records))
                # Records that changed during the commit must be moved too: start again.
                if self.change_count == count:
                    break
            self._open_room(room)
        log.info("the room moved to its document %s", room.id)
        for connection in self.connections:
            connection.end(Unavailable("the room moved to another document"))

    # -- identity and admission

    def create_issuer(self) -> Issuer:
        node = self.core.node
        tier = "backbone" if self.room is None else self.author.chain[-1].tier
        return Issuer(node.id, node.key, self.core.clock, tier)

    @property
    def author(self) -> RecordAuthor:
        return self.current_room.publisher.author

    @property
    def current_room(self) -> SharedRoom:
        if self.room is None:
            raise Conflict("this gateway is in no room yet; `gatepost invite` or `gatepost join`")
        return self.room

    def check_welcome(self, welcome: Welcome, issuer_key: bytes) -> None:
        """Raise Forbidden unless the peer admits this node by it, or we are in its room already."""
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

    def _is_genesis(self) -> bool:
        return self.current_room.genesis.key == self.core.node.key.public

    def _own_record_key(self) -> SlotKey:
        return ("nodes", self.core.node.id, self.core.node.key.public)

    # -- our own records

    async def publish_records(self, changes: RecordChanges) -> None:
        """Sign and save these records, then send them. None deletes a record."""
        now = self._now()
        for (map, key), data in changes.items():
            draft = self.current_room.draft_record(map, key, data, now)
            if draft is not None:
                self._pending_drafts[draft.slot_key] = draft
        await self._save_drafts()

    async def commit_with(self, map: str, key: str, data: RoomRecord, also: Callable[[Tx], T]) -> T:
        """Publish a record in one transaction with `also`: both happen, or neither."""
        draft = self.current_room.draft_record(map, key, data, self._now())
        drafts = [draft] if draft else []

        def save_both(tx: Tx) -> T:
            result = also(tx)
            store.save_records(tx, drafts)
            return result

        result = await self.core.commit(save_both)
        self.current_room.accept_drafts(drafts)
        return result

    async def _save_drafts(self) -> None:
        """Save and send pending drafts. A failed one stays pending: it is never drafted again."""
        drafts = list(self._pending_drafts.values())
        if drafts:
            await self.core.commit(lambda tx: store.save_records(tx, drafts))
            for draft in drafts:
                if self._pending_drafts.get(draft.slot_key) is draft:
                    del self._pending_drafts[draft.slot_key]
            self.current_room.accept_drafts(drafts)

    async def refresh_own_records(self) -> None:
        """Publish changes of this node and its agents, and a heartbeat."""
        if self.room is None or self._has_left or not self.may_publish.is_set():
            return
        await self.follow_epoch()
        async with self.claims_lock:
            agents = await self.core.read(self.core.agents.list)
            changes: dict[tuple[str, str], RoomRecord | None] = {
                ("nodes", self.core.node.id): self._node_record(self.room, "online"),
                **own_records.agent_claims(self.room, agents, self.core.node.id),
                **await self._delivery_progress(),
            }
            await self.publish_records(changes)
        self._announce_presence()

    async def _delivery_progress(self) -> dict[tuple[str, str], RoomRecord]:
        """Return our delivery record, but only now and then: it changes with every message."""
        if self._now() < self._progress_at + _PROGRESS_MS:
            return {}
        found = await self.core.read(own_records.delivery_record)
        if found is None:
            return {}
        self._progress_at = self._now()
        return {("delivery", self.core.node.id): found}

    async def remove_finished_records(self) -> None:
        """Remove our finished records; the coordinator sets how long they are kept."""
        if self.room is None or not self.may_publish.is_set():
            return
        coordination = self.room.effective.coordination
        kept = RecordRetention() if coordination is None else coordination.retention
        await self.publish_records(dict.fromkeys(finished_records(self.room, self._now(), kept)))

    def _announce_presence(self) -> None:
        now = self._now()
        if now >= self._announced_at + _ANNOUNCE_MS:
            self._announced_at = now
            presence = ConnectionPresence(node_id=self.core.node.id, status="online", seen_at=now)
            self.awareness.announce_presence(presence)

    def _node_record(self, room: SharedRoom, status: NodeStatus) -> NodeRecord:
        capabilities = self.core.settings.node.capabilities
        return own_records.node_record(room, self.endpoint, status, self._now(), capabilities)

    async def announce_leaving(self) -> None:
        """Publish that this node goes offline, and wait a moment until peers have received it."""
        if self.room is not None:
            own = ("nodes", self.core.node.id)
            self._has_left = True
            with suppress(GatepostError):
                await self.publish_records({own: self._node_record(self.room, "offline")})
                await self._save_received()
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECS):
                    await asyncio.gather(*(each.idle.wait() for each in self.connections))

    # -- records of other nodes

    def _apply_change(self, applied: RoomChange) -> None:
        if applied.origin is not None:
            self._unsaved_records |= {signed.slot_key: signed for signed in applied.changed}
            self._has_unsaved.set()
        if any(self.members.is_affected_by(signed) for signed in applied.changed):
            self.members.refresh_from(self.current_room)
            self._end_revoked_connections()
        self._signal_change()

    def _signal_change(self) -> None:
        self.change_count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, count: int, secs: float) -> None:
        """Return once `change_count` differs from `count`, or time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(secs):
                while self.change_count == count:
                    await self._changed.wait()

    async def keep_saving(self) -> None:
        """Save received records until cancelled."""
        while True:
            await self._has_unsaved.wait()
            try:
                await self._save_received()
            except GatepostError as error:
                log.warning("the room was not saved, and is retried: %s", error.message)
                await asyncio.sleep(_RETRY_SECS)

    async def _save_received(self) -> None:
        records = dict(self._unsaved_records)
        await self.core.commit(lambda tx: store.save_records(tx, records.values()))
        for key, signed in records.items():
            if self._unsaved_records.get(key) is signed:
                del self._unsaved_records[key]
        if not self._unsaved_records:
            self._has_unsaved.clear()

    # -- live connections

    @contextmanager
    def track_connection(self, connection: PeerConnection) -> Iterator[None]:
        self.connections.add(connection)
        self._end_revoked_connections()
        try:
            yield
        finally:
            self.connections.discard(connection)

    def end_sessions(self, ids: Iterable[str], node: str) -> int:
        """End the connections of these sessions, and those we opened to `node`; return how many."""
        sessions = set(ids)
        ended = [c for c in self.connections if c.session in sessions or c.node == node]
        for connection in ended:
            connection.end(_revoked_error(connection.node))
        return len(ended)

    def _end_revoked_connections(self) -> None:
        for connection in self.connections:
            known = self.members.by_key(None, connection.public_key)
            if known is not None and known.revoked:
                connection.end(_revoked_error(connection.node))

    def count_incident(self, node: str, violation: RoomViolation) -> None:
        self.incident_counts[violation.rule] += 1
        log.warning("%s broke a rule of the room: %s", node, violation.message)
        why = f"{violation.rule}: {violation.message}"[:500]
        self.core.submit(lambda tx: record_audit_entry(tx, node, "room.violation", node, why))

    def _now(self) -> int:
        return self.core.clock.now()


def _load_room(tx: Tx) -> tuple[Genesis, int, list[SignedRecord], int] | None:
    which = store.load_room_identity(tx)
    if which is None:
        return None
    # A restored journal lacks the versions signed since the backup: leap over them.
    leap = tx.fetch_one("SELECT value FROM fact WHERE name = 'leap'")
    return (*which, store.load_records(tx, which[0]), int(leap[0]) if leap else 0)


def _store_rotation(epoch: int, records: list[SignedRecord], tx: Tx) -> None:
    store.replace_records(tx, epoch, records)


def _revoked_error(node: str) -> Revoked:
    return Revoked(f"node {node} was revoked")
