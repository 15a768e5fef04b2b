"""The shared room: signed records in a Yjs document, the rules for writing and reading them."""

from gatepost.room.admission_chain import (
    AdmissionLink,
    ChainVerifier,
    Genesis,
    append_admission,
    found_room,
    sign_admission,
)
from gatepost.room.agent_ownership import KnownOwner, OwnedAgent, sign_transfer, transfer_claim
from gatepost.room.awareness import ConnectionPresence, RoomAwareness
from gatepost.room.effective_records import EffectiveRecords
from gatepost.room.known_owners import KnownOwners, OwnerChange
from gatepost.room.membership import RoomMember, RoomMembership
from gatepost.room.records import (
    MAPS,
    AgentRecord,
    AgentTransfer,
    CapabilityRecord,
    CoordinationRecord,
    CoordinatorTerm,
    DeliveryRecord,
    EligibilityRecord,
    EtaAdviceRecord,
    IncidentRecord,
    InviteRecord,
    NodeRecord,
    RecordRetention,
    ReviewRecord,
    RevocationRecord,
    RoomRecord,
    RoutingRecord,
    SkillRef,
    StandingRecord,
    claim_key,
)
from gatepost.room.room import CONTROL_ROOM, RoomChange, SharedRoom, room_id
from gatepost.room.signed_record import RecordAuthor, SignedRecord
from gatepost.room.sync_protocol import MAX_MESSAGE_BYTES, SyncPeer

__all__ = [
    "CONTROL_ROOM",
    "MAPS",
    "MAX_MESSAGE_BYTES",
    "AdmissionLink",
    "AgentRecord",
    "AgentTransfer",
    "CapabilityRecord",
    "ChainVerifier",
    "ConnectionPresence",
    "CoordinationRecord",
    "CoordinatorTerm",
    "DeliveryRecord",
    "EffectiveRecords",
    "EligibilityRecord",
    "EtaAdviceRecord",
    "Genesis",
    "IncidentRecord",
    "InviteRecord",
    "KnownOwner",
    "KnownOwners",
    "NodeRecord",
    "OwnedAgent",
    "OwnerChange",
    "RecordAuthor",
    "RecordRetention",
    "ReviewRecord",
    "RevocationRecord",
    "RoomAwareness",
    "RoomChange",
    "RoomMember",
    "RoomMembership",
    "RoomRecord",
    "RoutingRecord",
    "SharedRoom",
    "SignedRecord",
    "SkillRef",
    "StandingRecord",
    "SyncPeer",
    "append_admission",
    "claim_key",
    "found_room",
    "room_id",
    "sign_admission",
    "sign_transfer",
    "transfer_claim",
]
