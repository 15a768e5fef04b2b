"""The table of roles: the lowest role that may write each record or perform each act.

Any member raises reviews and incidents: only it knows the tasks that its agents requested or did.
An edge node advises on the capabilities of its own agents. findings.py limits how much of one
writer is shown.

The guard of the room, the view, the receiver and the API all ask this table. A record beyond its
writer's role does not count, even with a valid signature.

A node has exactly one role. A role may do everything that the roles before it may. The coordinator
is the genesis of the room. If the genesis permits elections, a backbone node that the mesh elected
acts as the coordinator: its claim shows the mandate of the genesis (signed_record.py).
"""

from enum import IntEnum, StrEnum

from gatepost.room.records import (
    AgentRecord,
    CapabilityRecord,
    CoordinationRecord,
    DeliveryRecord,
    DescriptorRecord,
    EligibilityRecord,
    EtaAdviceRecord,
    IncidentRecord,
    InviteRecord,
    MeshSecretRecord,
    NodeRecord,
    ReviewRecord,
    RevocationRecord,
    RoomRecord,
    RoutingRecord,
    StandingRecord,
    TransportRecord,
)
from gatepost.wire.operations import Tier


class Role(IntEnum):
    EDGE = 1
    BACKBONE = 2
    COORDINATOR = 3


class Act(StrEnum):
    """Acts that are more than writing a record."""

    ADMIT_NODE = "admit a node"
    REVOKE_NODE = "revoke a junior node"
    RELAY_OUTBOX = "relay the outbox of another node"
    OVERRIDE_OWNER = "override the owner of an agent, if that owner is dead or revoked"
    DESCRIBE_ANY_AGENT = "write routes and capabilities of agents that live elsewhere"
    SETTLE_ANY_REPORT = "settle reviews and incidents that another node raised"
    ADVISE_ANY_CAPABILITY = "advise on capabilities of agents that live elsewhere"
    SETTLE_OWNER = "confirm one of two first claims of an agent"
    ROTATE_ROOM = "move the room to its next epoch"


WRITERS: dict[type[RoomRecord], Role] = {
    NodeRecord: Role.EDGE,
    AgentRecord: Role.EDGE,
    DeliveryRecord: Role.EDGE,
    RoutingRecord: Role.EDGE,
    CapabilityRecord: Role.EDGE,
    EligibilityRecord: Role.EDGE,
    ReviewRecord: Role.EDGE,
    IncidentRecord: Role.EDGE,
    EtaAdviceRecord: Role.EDGE,
    TransportRecord: Role.EDGE,
    InviteRecord: Role.BACKBONE,
    RevocationRecord: Role.BACKBONE,
    StandingRecord: Role.BACKBONE,
    MeshSecretRecord: Role.BACKBONE,
    DescriptorRecord: Role.BACKBONE,
    CoordinationRecord: Role.COORDINATOR,
}

ACTORS: dict[Act, Role] = {
    Act.ADMIT_NODE: Role.BACKBONE,
    Act.REVOKE_NODE: Role.BACKBONE,
    Act.RELAY_OUTBOX: Role.BACKBONE,
    Act.OVERRIDE_OWNER: Role.BACKBONE,
    Act.DESCRIBE_ANY_AGENT: Role.BACKBONE,
    Act.SETTLE_ANY_REPORT: Role.BACKBONE,
    Act.ADVISE_ANY_CAPABILITY: Role.BACKBONE,
    Act.SETTLE_OWNER: Role.COORDINATOR,
    Act.ROTATE_ROOM: Role.COORDINATOR,
}


def role_of(public_key: bytes, tier: Tier, genesis_key: bytes) -> Role:
    """The role of the node with this key, which was admitted with this tier."""
    return Role.COORDINATOR if public_key == genesis_key else role_of_tier(tier)


def role_of_tier(tier: Tier) -> Role:
    """The role that the tier alone gives. `role_of` also considers who coordinates."""
    return Role.BACKBONE if tier == "backbone" else Role.EDGE


def may_write(role: Role, record_type: type[RoomRecord]) -> bool:
    return role >= WRITERS[record_type]


def may_act(role: Role, act: Act) -> bool:
    return role >= ACTORS[act]
