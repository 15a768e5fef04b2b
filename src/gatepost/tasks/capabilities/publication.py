"""Capabilities that this gateway publishes: their documents and indexes."""

from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct, field

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
from gatepost.tasks.capabilities.contract import ContractDocument, encode_contract, keep_contract
from gatepost.wire.operations import StatedSkill

_UPSERT = """
INSERT INTO capability (
    id, owner_agent, document, contract, policy_version, published_at, eligible
) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET owner_agent = excluded.owner_agent, document = excluded.document,
    contract = excluded.contract, policy_version = excluded.policy_version,
    published_at = excluded.published_at, eligible = excluded.eligible
"""
_SELECT = "SELECT document, contract, policy_version, published_at, eligible FROM capability"
_decode_agents = msgspec.json.Decoder(tuple[str, ...]).decode

IsRoutable = Callable[[str], bool]


class NewCapability(Struct, forbid_unknown_fields=True, kw_only=True):
    """A capability as its publisher describes it.

    The owner hosts the executor skill, and all other agents get the delegation skill. A task whose
    executor is lost is attempted `max_attempts` times in total. Its executor reports progress at
    least every `progress_seconds`. Tasks are not routed by a disabled capability. The catalog's
    field names are accepted too.
    """

    other_names: ClassVar[dict[str, str]] = {
        "delegation_skill_ref": "delegation_skill",
        "executor_skill_ref": "executor_skill",
        "contract_schema_ref": "contract",
    }

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
    """A published capability. The index, and so its version, changes with its routable agents."""

    document: NewCapability
    contract: str
    policy_version: int
    published_at: int
    eligible: tuple[str, ...]


def keep_publication(tx: Tx, new: NewCapability, is_routable: IsRoutable) -> PublishedCapability:
    """Keep a capability and its contract; a new version of the index begins."""
    known = find_publication(tx, new.capability_id)
    digest = keep_contract(tx, encode_contract(new.contract))
    version = 1 if known is None else known.policy_version + 1
    body = msgspec.json.encode(new)
    eligible = _find_eligible(new, is_routable)
    row = (new.capability_id, new.owner_agent_id, body, digest, version, tx.now)
    tx.execute(_UPSERT, (*row, msgspec.json.encode(eligible)))
    return PublishedCapability(new, digest, version, tx.now, eligible)


def renew_indexes(tx: Tx, is_routable: IsRoutable) -> list[PublishedCapability]:
    """Begin a new version of each index whose agents have come or gone; returns these."""
    changed = []
    for known in list_publications(tx):
        if _find_eligible(known.document, is_routable) != known.eligible:
            changed.append(keep_publication(tx, known.document, is_routable))
    return changed


def _find_eligible(new: NewCapability, is_routable: IsRoutable) -> tuple[str, ...]:
    named = dict.fromkeys([new.owner_agent_id, *new.eligible_agent_ids])
    return tuple(agent for agent in named if is_routable(agent))


def remove_publication(tx: Tx, id: str) -> PublishedCapability:
    found = load_publication(tx, id)
    tx.execute("DELETE FROM capability WHERE id = ?", (id,))
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
    return EligibilityRecord(
        eligible_agent_ids=published.eligible,
        updated_at=published.published_at,
        policy_version=published.policy_version,
        epoch=epoch,
    )


def check_publication(new: NewCapability, *, is_hosted: bool) -> None:
    """Raise InvalidRequest, naming the gate, unless a capability may be published."""
    if not is_hosted:
        raise InvalidRequest(
            f"the owner {new.owner_agent_id!r} does not live behind this gateway, so it cannot"
            " host the executor skill here: publish where it lives"
        )


def check_executor_skill(new: NewCapability, stated: tuple[StatedSkill, ...] | None) -> None:
    """Raise InvalidRequest unless the owner states the executor skill, if it states any."""
    wanted = new.executor_skill
    if stated is None or StatedSkill(wanted.ref, wanted.version) in stated:
        return
    versions = [skill.version for skill in stated if skill.ref == wanted.ref]
    has = f"it has version {', '.join(versions)}" if versions else "it does not state this skill"
    raise InvalidRequest(
        f"the owner {new.owner_agent_id!r} does not host the executor skill {wanted.ref!r}"
        f" {wanted.version}: {has}; see `executor_skills` of its definition or registration"
    )


def _from_row(row: Row) -> PublishedCapability:
    document, contract, version, at, eligible = row
    decoded = msgspec.json.decode(document, type=NewCapability)
    return PublishedCapability(decoded, contract, version, at, _decode_agents(eligible))
