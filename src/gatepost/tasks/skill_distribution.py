"""The input of a `skill_distribution` task: a delegation skill, and the contract with it."""

import msgspec
from msgspec import Struct

from gatepost.errors import GatepostError
from gatepost.events import AgentId
from gatepost.room.records import EscalationPolicy, SkillRef
from gatepost.tasks.capabilities.contract import ContractDocument
from gatepost.tasks.capabilities.publication import PublishedCapability
from gatepost.tasks.task_request import input_of


class SkillDistribution(Struct, kw_only=True):
    capability_id: AgentId
    owner_agent_id: AgentId
    delegation_skill: SkillRef
    default_eta_seconds: int
    progress_seconds: int | None = None
    contract: ContractDocument = ContractDocument()
    escalation: EscalationPolicy | None = None


def describe_distribution(published: PublishedCapability) -> SkillDistribution:
    new = published.document
    return SkillDistribution(
        capability_id=new.capability_id,
        owner_agent_id=new.owner_agent_id,
        delegation_skill=new.delegation_skill,
        default_eta_seconds=new.default_eta_seconds,
        progress_seconds=new.progress_seconds,
        contract=new.contract,
        escalation=new.escalation,
    )


def read_distribution(request: bytes) -> SkillDistribution | None:
    """The skill that a request distributes; None if it is another request."""
    try:
        return msgspec.json.decode(input_of(request), type=SkillDistribution)
    except (msgspec.MsgspecError, GatepostError, ValueError):
        return None
