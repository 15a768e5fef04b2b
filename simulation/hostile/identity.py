"""The hostile node without its sockets: its key, its admission, and the records it signs."""

from collections import Counter
from typing import Any

from msgspec.structs import replace

from gatepost.access.welcome_header import Welcome
from gatepost.clock import Clock, SystemClock
from gatepost.events import NodeKey
from gatepost.room import (
    AgentRecord,
    Genesis,
    NodeRecord,
    RecordAuthor,
    RoomRecord,
    SignedRecord,
    append_admission,
    claim_key,
    lib0,
    room_id,
    sign_admission,
)
from gatepost.room.admission_chain import chain_issuer
from gatepost.room.awareness import AwarenessEntry, encode_awareness
from gatepost.room.document import RoomDocument
from gatepost.room.signed_record import sign_record
from gatepost.room.sync_protocol import AWARENESS, QUERY_AWARENESS, STEP_1, SYNC, UPDATE
from gatepost.wire.operations import Tier
from simulation.hostile.outbox import HostileOutbox


class HostileIdentity:
    """A node id with its key. `welcome` it once it is admitted; only then can it sign records.

    `outbox` holds the events it has made up so far.
    """

    def __init__(self, name: str, key: NodeKey | None = None, clock: Clock | None = None) -> None:
        self.name = name
        self.clock = clock or SystemClock()
        self.key = key or NodeKey.generate(self.clock)
        self.outbox = HostileOutbox(name, self.key, self.clock, f"inc-{self.key.fingerprint[:8]}")
        self.epoch = 1
        self._genesis: Genesis | None = None
        self._author: RecordAuthor | None = None
        self._versions: Counter[tuple[str, str]] = Counter()

    @property
    def genesis(self) -> Genesis:
        assert self._genesis is not None, "no gateway has admitted this node yet"
        return self._genesis

    @property
    def author(self) -> RecordAuthor:
        assert self._author is not None, "no gateway has admitted this node yet"
        return self._author

    def welcome(self, said: Welcome) -> None:
        """Remember the room that this node was admitted to."""
        self._genesis, self.epoch = said.genesis, said.epoch
        if said.chain:
            self._author = RecordAuthor(self.key, said.chain)

    # -- records

    def sign(
        self,
        map: str,
        key: str,
        data: RoomRecord | None,
        version: int | None = None,
        at: int | None = None,
    ) -> SignedRecord:
        """Sign any record for any key. Without `version` it is the next one of its key."""
        if version is None:
            version = self._versions[map, key] + 1
        self._versions[map, key] = max(version, self._versions[map, key])
        moment = self.clock.now() if at is None else at
        return sign_record(self.author, map, key, version, moment, data)

    def sign_node(self, version: int | None = None, **changes: Any) -> SignedRecord:
        """The record of this node, true but for the changes."""
        link = self.author.chain[-1]
        data = NodeRecord(
            tier=link.tier,
            status="online",
            last_heartbeat_at=self.clock.now(),
            protocol_version="1.0",
            added_by=chain_issuer(self.genesis, self.author.chain),
            added_at=link.issued_at,
        )
        return self.sign("nodes", self.name, replace(data, **changes), version)

    def sign_agent(self, agent: str, version: int | None = None, **changes: Any) -> SignedRecord:
        """A claim of this node about an agent: it lives here, unless the changes say otherwise."""
        data = AgentRecord(gateway=self.name, type="internal", last_seen_at=self.clock.now())
        key = claim_key(agent, self.name)
        return self.sign("agents", key, replace(data, **changes), version)

    def admit(
        self, name: str, tier: Tier = "edge", key: NodeKey | None = None
    ) -> "HostileIdentity":
        """An accomplice that this node admits by its own signature, without any gateway."""
        other = HostileIdentity(name, key, self.clock)
        now = self.clock.now()
        link = sign_admission(self.key, self.name, name, other.key.public, tier, now)
        other.welcome(
            Welcome(
                self.genesis, self.epoch, append_admission(self.genesis, self.author.chain, link)
            )
        )
        return other

    # -- messages of the room

    def room_messages(self, *records: SignedRecord) -> list[bytes]:
        """Sync messages with these records, in the slots that belong to them."""
        updates = RoomDocument(room_id(self.epoch)).encode_updates(records)
        return [self.sync_message(update) for update in updates]

    def sync_message(self, data: bytes, step: int = UPDATE) -> bytes:
        """A sync message with any content."""
        return bytes((SYNC, step)) + lib0.encode_bytes(data)

    def step_1_message(self, state_vector: bytes = b"\x00") -> bytes:
        """Asks for everything in the room, or everything that the state vector lacks."""
        return self.sync_message(state_vector, STEP_1)

    def awareness_message(self, client: int, clock: int, state: str) -> bytes:
        entry = AwarenessEntry(client, clock, state)
        return bytes((AWARENESS,)) + lib0.encode_bytes(encode_awareness([entry]))

    def awareness_query(self) -> bytes:
        return bytes((QUERY_AWARENESS,))
