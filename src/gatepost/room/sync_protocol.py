"""The Yjs sync protocol with one peer, compatible with y-websocket, without the socket.

A message is a type and its content: sync (step 1: own state vector; step 2: the updates the other
side lacks; update), awareness, auth, and awareness query. Both sides send step 1 when they connect
and answer the other's step 1 with step 2. Content too large for one message precedes step 2 as
updates. Gateways also show each other the proof of a later epoch, digests of their slots
(slot_digest.py), and the proofs against writers (evidence.py).

Later room changes are kept per peer as the set of slots to send, not as bytes. A slow peer thus
costs no more memory than the room has keys, and receives the latest version of each key once.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Literal

from gatepost.errors import Forbidden, RoomViolation
from gatepost.room import awareness, lib0, slot_digest
from gatepost.room.awareness import AwarenessEntry, RoomAwareness
from gatepost.room.document import SlotKey
from gatepost.room.epoch_proof import MAX_PROOF_RECORD, MAX_PROOF_SIGNATURE, EpochProof
from gatepost.room.evidence import MAX_PROOFS, PROOF_HASH_BYTES, SignedTwice
from gatepost.room.lib0 import Lib0Reader
from gatepost.room.records import MAX_RECORD_BYTES
from gatepost.room.room import RoomChange, SharedRoom
from gatepost.room.yjs_update import MAX_SIGNATURE, MAX_UPDATE_BYTES

SYNC, AWARENESS, AUTH, QUERY_AWARENESS = 0, 1, 2, 3
# Between gateways only: no Yjs message has this type, so a plain Yjs reader must never get one.
DIGEST, EPOCH = 0x60, 0x61
BUCKET_DIGESTS, SLOT_DIGESTS, PROOF_HASHES, PROOF = 0, 1, 2, 3
STEP_1, STEP_2, UPDATE = 0, 1, 2
MAX_MESSAGE_BYTES = MAX_UPDATE_BYTES + 16
MAX_DIGEST_BYTES = 64 * 1024
_MAX_REASON = 1024

# The role of the other side: a dialer dialed us, a listener was dialed by us. A listener relays the
# awareness of all its connections, so only a dialer must speak for itself alone.
SyncRole = Literal["listener", "dialer"]


class SyncPeer:
    """One connection to the authenticated node `node`; `role` is the role of the other side.

    `receive_message` raises RoomViolation when the connection has to be closed. The caller calls
    `close` however the connection ends. `synced` tells whether the other side has answered our
    step 1.
    """

    def __init__(
        self, room: SharedRoom, awareness: RoomAwareness, node: str, role: SyncRole
    ) -> None:
        self._room = room
        self._awareness = awareness
        self.node = node
        self._role = role
        self._slots_to_send: dict[SlotKey, None] = {}
        self._entries_to_send: dict[int, AwarenessEntry] = {}
        self._unsubscribers: tuple[Callable[[], None], ...] = (
            room.on_change(self._on_room_change),
            awareness.on_change(self._on_awareness),
        )
        self.synced = False
        self._handlers: dict[int, Callable[[Lib0Reader], Iterable[bytes]]] = {
            SYNC: self._handle_sync,
            AWARENESS: self._handle_awareness,
            AUTH: self._handle_auth,
            QUERY_AWARENESS: self._handle_awareness_query,
            DIGEST: self._handle_digest,
            EPOCH: self._handle_epoch,
        }

    def first_messages(self) -> list[bytes]:
        """The messages to send right after connecting."""
        return [_sync_message(STEP_1, self._room.state_vector()), *self._presence_messages()]

    def receive_message(self, message: bytes) -> Iterable[bytes]:
        """Handle a message and return the answers to it.

        The answers to step 1 are made one by one as they are read: together they may be as large
        as the room.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise lib0.too_large_error("a message", len(message), MAX_MESSAGE_BYTES)
        reader = Lib0Reader(message)
        handler = self._handlers.get(reader.read_uint())
        if handler is None:
            raise RoomViolation("unknown message type", rule="message")
        return handler(reader)

    def pending_messages(self) -> Iterator[bytes]:
        """Messages with the changes since the last call; call it when the peer can take more.

        Each message is made as it is read, from the records as they are now.
        """
        places, self._slots_to_send = self._slots_to_send, {}
        said, self._entries_to_send = self._entries_to_send, {}
        document = self._room.document
        served = {s.slot_key: s for place in places if (s := document.served_instead_of(place))}
        updates = document.encode_updates(served.values()) if served else ()
        presence = [_awareness_message(list(said.values()))] if said else []
        return chain((_sync_message(UPDATE, update) for update in updates), presence)

    def digest_messages(self) -> list[bytes]:
        """The digest of our slots, for a gateway that we dialled and that has synced."""
        if self._role == "dialer" or not self.synced:
            return []
        digests = self._room.document.digests.bucket_digests()
        buckets = _digest_message(BUCKET_DIGESTS, slot_digest.encode_buckets(digests))
        return [buckets, self._proof_hashes()]

    def charge_cost(self, spent: float, now: float) -> float:
        """Note the seconds spent on a message; return the seconds to wait for the next one."""
        return self._room.costs.charge(self.node, spent, now)

    def close(self) -> None:
        """Unsubscribe from room and awareness after the connection ended."""
        unsubscribers, self._unsubscribers = self._unsubscribers, ()
        for unsubscribe in unsubscribers:
            unsubscribe()
        self._awareness.remove_connection(self)

    def _on_awareness(self, entry: AwarenessEntry, speaker: object) -> None:
        if speaker is self._awareness or (self._role == "dialer" and speaker is not self):
            self._entries_to_send[entry.client] = entry

    def _on_room_change(self, applied: RoomChange) -> None:
        if applied.origin is not self:
            self._slots_to_send |= dict.fromkeys(signed.slot_key for signed in applied.changed)
            return
        for _, came in (*applied.conflicts, *applied.collisions):
            # The peer has a record that does not count: send ours.
            if self._room.document.served_instead_of(came.slot_key) is not came:
                self._slots_to_send[came.slot_key] = None

    def _handle_sync(self, reader: Lib0Reader) -> Iterable[bytes]:
        step, data = reader.read_uint(), reader.read_bytes(MAX_UPDATE_BYTES)
        reader.expect_end()
        if step == STEP_1:
            return self._answer_state_vector(data)
        if step not in (STEP_2, UPDATE):
            raise RoomViolation("unknown sync message type", rule="message")
        self._room.apply_update(data, self)
        self.synced |= step == STEP_2
        return []

    def _answer_state_vector(self, state_vector: bytes) -> Iterator[bytes]:
        updates = self._room.missing_updates(state_vector)
        self._slots_to_send.clear()
        return _missing_messages(updates)

    def _handle_awareness(self, reader: Lib0Reader) -> list[bytes]:
        entries = awareness.decode_awareness(reader.read_bytes(awareness.MAX_AWARENESS_BYTES))
        reader.expect_end()
        presences = [awareness.decode_state(entry.state) for entry in entries]
        if self._role == "dialer":
            self._awareness.receive_entries(entries, self, self.node)
        for presence in presences:
            if presence is not None and presence.node_id == self.node:
                self._awareness.note_presence(presence, self)
        return []

    def _handle_auth(self, reader: Lib0Reader) -> list[bytes]:
        if self._role == "dialer" or reader.read_uint() != 0:
            raise RoomViolation("only the accepting side may refuse permission", rule="message")
        raise Forbidden(f"{self.node} refused the room: {reader.read_text(_MAX_REASON)}")

    def _handle_awareness_query(self, reader: Lib0Reader) -> list[bytes]:
        reader.expect_end()
        return self._presence_messages()

    def _handle_digest(self, reader: Lib0Reader) -> Iterable[bytes]:
        kind, digests = reader.read_uint(), self._room.document.digests
        if kind == BUCKET_DIGESTS:
            theirs = slot_digest.decode_buckets(reader.read_bytes(MAX_DIGEST_BYTES))
            reader.expect_end()
            slots = digests.slots_in(digests.differing_buckets(theirs))
            return [_digest_message(SLOT_DIGESTS, slot_digest.encode_slots(slots))] if slots else []
        if kind not in (SLOT_DIGESTS, PROOF_HASHES, PROOF):
            raise RoomViolation("unknown digest message type", rule="message")
        body = Lib0Reader(reader.read_bytes(MAX_DIGEST_BYTES))
        reader.expect_end()
        if kind == PROOF_HASHES:
            return self._answer_proof_hashes(body)
        if kind == PROOF:
            return self._take_proof(body)
        slots = slot_digest.decode_slots(body)
        body.expect_end()
        updates = self._room.document.encode_updates(digests.differing_records(slots))
        return (_sync_message(UPDATE, update) for update in updates)

    def _proof_hashes(self) -> bytes:
        hashes = self._room.evidence.hashes()
        return _digest_message(PROOF_HASHES, lib0.encode_uint(len(hashes)) + b"".join(hashes))

    def _answer_proof_hashes(self, body: Lib0Reader) -> Iterator[bytes]:
        """Send the proofs that the peer lacks; ask it for those that we lack, if it asked first."""
        hashes = {body.read_exactly(PROOF_HASH_BYTES) for _ in range(body.read_count(MAX_PROOFS))}
        body.expect_end()
        beyond = self._room.evidence.proofs_beyond(hashes)
        messages = (_proof_message(proof) for proof in beyond)
        is_asked = self._role == "dialer" and not hashes <= set(self._room.evidence.hashes())
        return chain(messages, [self._proof_hashes()] if is_asked else [])

    def _take_proof(self, body: Lib0Reader) -> list[bytes]:
        records = [
            (body.read_text(MAX_RECORD_BYTES), body.read_text(MAX_SIGNATURE)) for _ in range(2)
        ]
        body.expect_end()
        self._room.accept_evidence(self._room.open_evidence(*records), self)
        return []

    def _handle_epoch(self, reader: Lib0Reader) -> list[bytes]:
        proof = EpochProof(
            reader.read_text(MAX_PROOF_RECORD), reader.read_text(MAX_PROOF_SIGNATURE)
        )
        reader.expect_end()
        self._room.note_epoch_proof(proof)
        return []

    def _presence_messages(self) -> list[bytes]:
        relays = self._role == "dialer"
        present = self._awareness.present_entries() if relays else self._awareness.own_entries()
        return [_awareness_message(present)] if present else []


def _digest_message(kind: int, data: bytes) -> bytes:
    return bytes((DIGEST, kind)) + lib0.encode_bytes(data)


def _proof_message(proof: SignedTwice) -> bytes:
    texts = (text for s in (proof.first, proof.second) for text in (s.text, s.signature))
    return _digest_message(PROOF, b"".join(lib0.encode_text(text) for text in texts))


def epoch_message(proof: EpochProof) -> bytes:
    """Show a peer that the room is in a later epoch."""
    return bytes((EPOCH,)) + lib0.encode_text(proof.record) + lib0.encode_text(proof.signature)


def _missing_messages(updates: Iterator[bytes]) -> Iterator[bytes]:
    """All updates as messages, the last of them as step 2."""
    last = next(updates)
    for update in updates:
        yield _sync_message(UPDATE, last)
        last = update
    yield _sync_message(STEP_2, last)


def _sync_message(step: int, data: bytes) -> bytes:
    return bytes((SYNC, step)) + lib0.encode_bytes(data)


def _awareness_message(entries: list[AwarenessEntry]) -> bytes:
    return bytes((AWARENESS,)) + lib0.encode_bytes(awareness.encode_awareness(entries))
