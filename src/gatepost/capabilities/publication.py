"""Capabilities that this gateway publishes: their documents, and who has their delegation skill."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from gatepost.capabilities.contract import ContractDocument, encode_contract, keep_contract
from gatepost.errors import InvalidRequest, UnknownCapability
from gatepost.events import AgentId
from gatepost.journal.transaction import Row, Tx
from gatepost.room.records import (
    Attempts,
    CapabilityRecord,
    CapabilityStatus,
    EligibilityRecord,
    EscalationPolicy,
    Seconds,
    SkillRef,
    SkillVersion,
    Title,
)

DISTRIBUTION = "skill_distribution"
InstallStatus = Literal["pending", "installed", "failed"]

_UPSERT = """
INSERT INTO capability (id, owner_agent, document, contract, policy_version, published_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET owner_agent = excluded.owner_agent, document = excluded.document,
    contract = excluded.contract, policy_version = excluded.policy_version,
    published_at = excluded.published_at
"""
_SELECT = "SELECT document, contract, policy_version, published_at FROM capability"
_SELECT_INSTALLS = """
SELECT i.agent, i.task, i.version, t.state, t.ended_at, t.error FROM capability_install i
LEFT JOIN task t ON t.id = i.task WHERE i.capability = ? ORDER BY i.agent
"""
_NOTE_INSTALL = """
INSERT INTO capability_install (capability, agent, version, task) VALUES (?, ?, ?, ?)
ON CONFLICT (capability, agent) DO UPDATE SET version = excluded.version, task = excluded.task
"""


class NewCapability(Struct, forbid_unknown_fields=True, kw_only=True):
    """A capability as its publisher describes it.

    The owner hosts the executor skill, and all other agents get the delegation skill. A task whose
    executor is lost is tried `max_attempts` times in all. Its executor reports progress at least
    every `progress_seconds`. No task is routed by one that is disabled.
    """

    capability_id: AgentId
    name: Title
    version: SkillVersion
    owner_agent_id: AgentId
    delegation_skill: SkillRef
    executor_skill: SkillRef
    default_eta_seconds: Seconds
    progress_seconds: Seconds | None = None
    contract: ContractDocument
    status: CapabilityStatus = "active"
    max_attempts: Attempts = 1
    escalation: EscalationPolicy | None = None
    eligible_agent_ids: Annotated[list[AgentId], Meta(max_length=1000)] = field(
        default_factory=list
    )


class PublishedCapability(Struct):
    document: NewCapability
    contract: str
    policy_version: int
    published_at: int


class SkillInstall(Struct, frozen=True):
    """Whether an agent has the delegation skill of a capability, by its own report."""

    agent: str
    version: str
    status: InstallStatus
    at: int | None = None
    error: str | None = None


def keep_publication(tx: Tx, new: NewCapability) -> PublishedCapability:
    """Keep a capability and its contract; a new version of the index begins."""
    known = find_publication(tx, new.capability_id)
    digest = keep_contract(tx, encode_contract(new.contract))
    version = 1 if known is None else known.policy_version + 1
    body = msgspec.json.encode(new)
    row = (new.capability_id, new.owner_agent_id, body, digest, version, tx.now)
    tx.execute(_UPSERT, row)
    return PublishedCapability(new, digest, version, tx.now)


def remove_publication(tx: Tx, id: str) -> PublishedCapability:
    found = load_publication(tx, id)
    tx.execute("DELETE FROM capability WHERE id = ?", (id,))
    tx.execute("DELETE FROM capability_install WHERE capability = ?", (id,))
    return found


def find_publication(tx: Tx, id: str) -> PublishedCapability | None:
    row = tx.fetch_one(f"{_SELECT} WHERE id = ?", (id,))
    return None if row is None else _from_row(row)


def load_publication(tx: Tx, id: str) -> PublishedCapability:
    found = find_publication(tx, id)
    if found is None:
        raise UnknownCapability(f"this gateway does not publish a capability {id!r}")
    return found


def list_publications(tx: Tx) -> list[PublishedCapability]:
    return [_from_row(row) for row in tx.fetch_all(f"{_SELECT} ORDER BY id")]


def catalog_record(published: PublishedCapability, epoch: int) -> CapabilityRecord:
    new = published.document
    return CapabilityRecord(
        name=new.name,
        version=new.version,
        owner_agent_id=new.owner_agent_id,
        delegation_skill_ref=new.delegation_skill,
        executor_skill_ref=new.executor_skill,
        default_eta_seconds=new.default_eta_seconds,
        progress_seconds=new.progress_seconds,
        contract_schema_ref=published.contract,
        status=new.status,
        max_attempts=new.max_attempts,
        escalation=new.escalation,
        epoch=epoch,
    )


def index_record(published: PublishedCapability, epoch: int) -> EligibilityRecord:
    new = published.document
    eligible = tuple(dict.fromkeys([new.owner_agent_id, *new.eligible_agent_ids]))
    return EligibilityRecord(
        eligible_agent_ids=eligible,
        updated_at=published.published_at,
        policy_version=published.policy_version,
        epoch=epoch,
    )


# -- distribution of the delegation skill


def note_install_task(tx: Tx, capability: str, agent: str, version: str, task: bytes) -> None:
    """A task asks an agent to install the delegation skill."""
    tx.execute(_NOTE_INSTALL, (capability, agent, version, task))


def list_installs(tx: Tx, capability: str) -> list[SkillInstall]:
    found = []
    for agent, _, version, state, ended_at, error in tx.fetch_all(_SELECT_INSTALLS, (capability,)):
        status: InstallStatus = "pending"
        if state == "completed":
            status = "installed"
        elif state in ("failed", "cancelled", None):
            status = "failed"
        found.append(SkillInstall(agent, version, status, ended_at, error))
    return found


def missing_installs(tx: Tx, published: PublishedCapability, agents: list[str]) -> list[str]:
    """The agents that have to be asked: new ones, those that failed, those with another version."""
    version = published.document.delegation_skill.version
    known = {each.agent: each for each in list_installs(tx, published.document.capability_id)}
    return [
        agent
        for agent in agents
        if agent != published.document.owner_agent_id
        and (
            agent not in known or known[agent].version != version or known[agent].status == "failed"
        )
    ]


def check_publication(new: NewCapability, *, is_hosted: bool) -> None:
    """Raise InvalidRequest, naming the gate, unless a capability may be published."""
    if not is_hosted:
        raise InvalidRequest(
            f"the owner {new.owner_agent_id!r} does not live behind this gateway, so it cannot"
            " host the executor skill here: publish where it lives"
        )


def _from_row(row: Row) -> PublishedCapability:
    document, contract, version, at = row
    decoded = msgspec.json.decode(document, type=NewCapability)
    return PublishedCapability(decoded, contract, version, at)
