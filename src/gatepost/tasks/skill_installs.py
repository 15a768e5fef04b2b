"""Delegation skills: distributed once to each gateway, and installed there by its own agents.

The gateway of a capability's owner asks every gateway that has agents, once for all of them, by a
task of the type `skill_distribution` in the name of `gateway`. The other gateway takes it if the
room's catalog has this capability as it is offered, from there. It keeps the contract, asks those
of its agents that take skills, and answers with the status of each.

A failed request is repeated after 1, 4, 16, 64 and 256 s, and then no more until the skill has
another version: a gateway that refuses costs its publisher six requests and one incident. A gateway
that answered is asked again for agents whose status is not final, after its six requests once an
hour.

All of it runs in the writer's thread.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.agents import SKILL_TAKERS_SQL, agents_here
from gatepost.delivery.decisions import TaskRequested
from gatepost.errors import ForeignSkill, GatepostError, InvalidRequest, UnknownCapability
from gatepost.events import (
    SKILL_DISTRIBUTION,
    AgentId,
    fingerprint_content,
    format_event_id,
    parse_event_id,
)
from gatepost.events.reserved_names import GATEWAY
from gatepost.journal.transaction import Row, Tx
from gatepost.tasks import task_table
from gatepost.tasks.capabilities.contract import contract_digest, encode_contract, keep_contract
from gatepost.tasks.capabilities.publication import PublishedCapability, list_publications
from gatepost.tasks.executed_tasks import ExecutedTasks
from gatepost.tasks.policy import Operator
from gatepost.tasks.requested_tasks import RequestedTasks
from gatepost.tasks.skill_distribution import (
    SkillDistribution,
    describe_distribution,
    read_distribution,
)
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_request import RequestContent, encode_request
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task, TaskPayload
from gatepost.wire.tasks import NewTask

InstallStatus = Literal["pending", "installed", "failed", "not_asked"]

# Requests of one transaction; the caller then starts the next one.
MAX_ASKED_AT_ONCE = 64
# The most unanswered requests to one gateway.
MAX_OPEN_OF_NODE = 16
# The most skills that this gateway's agents take from one other gateway.
MAX_OFFERS_OF_NODE = 100
# The most agents in an answer, or in the list of a gateway that has not answered.
MAX_NAMED = 256
# Longer reasons of failed installs are cut.
_MAX_ERROR_CHARS = 300

_REPEAT_SECS = (1, 4, 16, 64, 256)
_REFRESH_MS = 3_600_000
_DAY_MS = 86_400_000
# A gateway answers after this time at the latest, even if some agents have not answered.
_ANSWER_MS = 20_000

_SELECT_LACKING = f"""
SELECT a.id, CASE WHEN i.version = ?3 THEN i.attempts ELSE 0 END
FROM ({SKILL_TAKERS_SQL}) a LEFT JOIN capability_install i
    ON i.capability = ?1 AND i.agent = a.id
WHERE a.id <> ?2
    AND (i.agent IS NULL OR i.version <> ?3 OR i.next_at <= ?4)
ORDER BY a.id LIMIT ?5
"""
_NOTE_INSTALL = """
INSERT OR REPLACE INTO capability_install
    (capability, agent, version, task, attempts, status, next_at, error, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_INSTALL = (
    "SELECT capability, agent, version, attempts FROM capability_install WHERE task = ?"
)
_SELECT_INSTALLS = """
SELECT agent, version, status, at, error FROM capability_install WHERE capability = ?
"""
_NOTE_NODE = """
INSERT OR REPLACE INTO capability_node
    (capability, node, version, task, attempts, status, agents, next_at, error, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_NODES = """
SELECT node, version, attempts, status, agents, next_at, error, at FROM capability_node
WHERE capability = ?
"""
_SELECT_NODE = "SELECT capability, node, version, attempts FROM capability_node WHERE task = ?"
_COUNT_OPEN = "SELECT node, count(*) FROM capability_node WHERE status = 'pending' GROUP BY node"
_NOTE_OFFER = """
INSERT OR REPLACE INTO skill_offer (capability, source, document, task, at) VALUES (?, ?, ?, ?, ?)
"""
_SELECT_OFFERS = "SELECT capability, source, document, task, at FROM skill_offer"
_SELECT_OFFERS_OF_NODE = "SELECT capability FROM skill_offer WHERE source = ? AND capability <> ?"
_FORGET_OFFERS = "DELETE FROM skill_offer WHERE capability = ?"
_FORGET_INSTALLS = "DELETE FROM capability_install WHERE capability = ?"
_CLOSE_OFFER = "UPDATE skill_offer SET task = NULL WHERE capability = ?"
_SELECT_NEXT_DUE = """
SELECT min(due) FROM (
    SELECT min(next_at) AS due FROM capability_install WHERE next_at > ?1
    UNION ALL SELECT min(next_at) FROM capability_node WHERE next_at > ?1
    UNION ALL SELECT min(at) + ?2 FROM skill_offer WHERE task IS NOT NULL
)
"""


class SkillInstall(Struct, frozen=True):
    """Whether an agent has the delegation skill of a capability, as its gateway says."""

    agent: str
    version: str
    status: InstallStatus
    at: int | None = None
    error: str | None = None


class NodeAnswer(Struct):
    """The result of a distribution: the status of each agent of a gateway."""

    agents: Annotated[dict[AgentId, InstallStatus], Meta(max_length=MAX_NAMED)]


class SkillOffer(Struct, frozen=True):
    """A skill that another gateway distributes. `task` asks for an answer, None once it has one."""

    skill: SkillDistribution
    source: str
    task: str | None
    at: int


class _NodeRow(Struct, frozen=True):
    """The status of a capability's skill at one other gateway."""

    node: str
    version: str
    attempts: int
    status: str
    agents: dict[str, InstallStatus]
    next_at: int | None
    error: str | None
    at: int

    @property
    def settled(self) -> int:
        """The agents whose status is final."""
        return sum(status != "pending" for status in self.agents.values())


class SkillInstalls:
    def __init__(self, parts: HubParts, requested: RequestedTasks, executed: ExecutedTasks) -> None:
        self._parts = parts
        self._core = parts.core
        self._requested = requested
        self._executed = executed
        parts.changes.on_distribution_ended = self.note_end

    # -- asking agents of this gateway, and other gateways

    def distribute(self, tx: Tx) -> bool:
        """Send the requests and answers that are due; returns whether more are due."""
        left = MAX_ASKED_AT_ONCE
        homes = self._agents_by_node()
        for published in list_publications(tx):
            left -= self._ask_agents(tx, describe_distribution(published), left)
            left -= self._ask_nodes(tx, published, homes, left)
        for offer in _load_offers(tx):
            if self._is_in_catalog(offer.skill):
                left -= self._ask_agents(tx, offer.skill, left)
            if offer.task is not None and not offer.at <= tx.now < offer.at + _ANSWER_MS:
                self._answer(tx, offer)
        return left == 0

    def next_due(self, tx: Tx) -> int | None:
        """When the next request or answer may be due."""
        row = tx.fetch_one(_SELECT_NEXT_DUE, (tx.now, _ANSWER_MS))
        return None if row is None else row[0]

    def _agents_by_node(self) -> dict[str, list[str]]:
        here, found = self._core.node.id, defaultdict[str, list[str]](list)
        for id, home in self._core.routes.directory.agents.items():
            if home.owner not in (None, here):
                found[home.owner or ""].append(id)
        return {node: sorted(agents) for node, agents in sorted(found.items())}

    def _ask_agents(self, tx: Tx, skill: SkillDistribution, limit: int) -> int:
        """Ask agents of this gateway that take skills and lack this one; returns how many."""
        version = skill.delegation_skill.version
        wanted = (skill.capability_id, skill.owner_agent_id, version, tx.now, limit)
        found = tx.fetch_all(_SELECT_LACKING, wanted)
        for agent, attempts in found:
            if agent in self._core.agents.hub_run:
                done = (skill.capability_id, agent, version, None, attempts + 1)
                tx.execute(_NOTE_INSTALL, (*done, "installed", None, None, tx.now))
                continue
            task, error = self._request_install(tx, skill, agent)
            ids = (skill.capability_id, agent, version, task, attempts + 1)
            if error is None:
                tx.execute(_NOTE_INSTALL, (*ids, "pending", None, None, tx.now))
            else:
                tx.execute(_NOTE_INSTALL, (*ids, *_failure(tx, attempts + 1, error)))
        return len(found)

    def _ask_nodes(
        self, tx: Tx, published: PublishedCapability, homes: dict[str, list[str]], limit: int
    ) -> int:
        skill = describe_distribution(published)
        known = {row.node: row for row in _load_nodes(tx, skill.capability_id)}
        open_by_node: dict[str, int] = dict(tx.fetch_all(_COUNT_OPEN)) if homes else {}
        asked = 0
        for node, agents in homes.items():
            row = known.get(node)
            if row is not None and row.version != skill.delegation_skill.version:
                row = None
            if asked == limit:
                break
            if open_by_node.get(node, 0) < MAX_OPEN_OF_NODE and _is_due(tx, row, agents):
                self._ask_node(tx, skill, node, agents, row)
                asked += 1
        return asked

    def _ask_node(
        self,
        tx: Tx,
        skill: SkillDistribution,
        node: str,
        agents: list[str],
        row: _NodeRow | None,
    ) -> None:
        """Send one request for all agents of a gateway. It names one of them, in turns."""
        attempts = 1 if row is None else row.attempts + 1
        agent = agents[(attempts - 1) % len(agents)]
        task, error = self._request_install(tx, skill, agent)
        known = b"{}" if row is None else msgspec.json.encode(row.agents)
        ids = (skill.capability_id, node, skill.delegation_skill.version, task, attempts)
        if error is None:
            tx.execute(_NOTE_NODE, (*ids, "pending", known, None, None, tx.now))
        else:
            self._note_refusal(tx, ids, known, error)

    def _request_install(
        self, tx: Tx, skill: SkillDistribution, agent: str
    ) -> tuple[bytes | None, str | None]:
        """Request one task; returns its id, or why it could not be requested."""
        of = skill.delegation_skill
        new = NewTask(
            GATEWAY,
            f"install the delegation skill {of.ref} {of.version}",
            [agent],
            UNSET,
            Raw(msgspec.json.encode(skill)),
            task_type=SKILL_DISTRIBUTION,
        )
        payload = encode_request(new)
        content = RequestContent(fingerprint_content(payload), payload)
        mark = tx.begin_operation()
        try:
            (task,) = self._requested.create_tasks(tx, new, content, Operator())
        except GatepostError as error:
            tx.undo_operation(mark)
            return None, error.message
        tx.keep_operation()
        return parse_event_id(task.id), None

    # -- ends of requests

    def note_end(self, tx: Tx, task: Task) -> None:
        """A task of this type that was requested here has ended."""
        id = parse_event_id(task.id)
        for capability, agent, version, attempts in tx.fetch_all(_SELECT_INSTALL, (id,)):
            ids = (capability, agent, version, id, attempts)
            if task.state is TaskState.COMPLETED:
                tx.execute(_NOTE_INSTALL, (*ids, "installed", None, None, tx.now))
            else:
                tx.execute(_NOTE_INSTALL, (*ids, *_failure(tx, attempts, _reason(task))))
            self._answer_if_settled(tx, capability)
        for capability, node, version, attempts in tx.fetch_all(_SELECT_NODE, (id,)):
            self._note_node_end(tx, task, (capability, node, version, id, attempts))

    def _note_node_end(self, tx: Tx, task: Task, ids: Row) -> None:
        answer = self._read_answer(tx, task, ids[1])
        if answer is None:
            self._note_refusal(tx, ids, b"{}", _reason(task))
            return
        attempts = ids[-1]
        is_settled = "pending" not in answer.values()
        delay = _REFRESH_MS if is_settled else _repeat_delay(attempts) or _REFRESH_MS
        agents = msgspec.json.encode(answer)
        tx.execute(_NOTE_NODE, (*ids, "answered", agents, tx.now + delay, None, tx.now))

    def _read_answer(self, tx: Tx, task: Task, node: str) -> dict[str, InstallStatus] | None:
        """A gateway's answer about its agents; None if it is not a valid answer."""
        result = task_table.load_payload(tx, task.id).result
        if task.state is not TaskState.COMPLETED or result is None:
            return None
        try:
            answer = msgspec.json.decode(result, type=NodeAnswer)
        except msgspec.MsgspecError:
            return None
        homes = self._core.routes.directory.agents
        return {
            agent: status
            for agent, status in answer.agents.items()
            if agent in homes and homes[agent].owner == node
        }

    def _note_refusal(self, tx: Tx, ids: Row, agents: bytes, error: str) -> None:
        """A gateway refused a skill, or none of its agents took it: ask again for a while."""
        capability, node, version, _, attempts = ids
        status, next_at, said, at = _failure(tx, attempts, error)
        tx.execute(_NOTE_NODE, (*ids, status, agents, next_at, said, at))
        if next_at is None:
            detail = f"{node} did not take the skill of {capability} {version}: {said}"
            day = tx.now // _DAY_MS * _DAY_MS
            self._core.incidents.raise_(tx, "skill_refused", f"{node}@{day}", detail)

    # -- skills of other gateways

    def apply_offer(self, tx: Tx, requested: TaskRequested) -> None:
        """Take a skill that another gateway distributes; an invalid offer is not stored."""
        envelope, source = requested.envelope, requested.source
        if task_table.find_requested_task(tx, envelope.event_id) is not None:
            return
        task = Task(
            id=envelope.event_id,
            agent=envelope.to_agent_id or "",
            requester=envelope.source_agent_id,
            requester_node=source,
            executor="agent",
            description="install a delegation skill",
            info=msgspec.json.encode(envelope.task),
            created_at=tx.now,
            updated_at=tx.now,
        )
        mark = fingerprint_content(requested.payload)
        task_table.add_task(tx, task, TaskPayload(request_mark=mark))
        self._parts.changes.note_change(tx, task)
        try:
            skill = self._judge_offer(requested)
            self._require_capacity(tx, skill.capability_id, source)
            keep_contract(tx, encode_contract(skill.contract), source)
        except GatepostError as error:
            self._executed.refuse_task(tx, task, error.code, error.message)
            return
        self._executed.try_begin(tx, task.id, None, None)
        self._replace_offer(tx, SkillOffer(skill, source, task.id, tx.now))

    def _judge_offer(self, requested: TaskRequested) -> SkillDistribution:
        """The skill, if it is the one in the catalog and comes from the gateway of its owner."""
        envelope, source = requested.envelope, requested.source
        is_inline = envelope.payload_ref is None
        skill = read_distribution(requested.payload) if is_inline else None
        if skill is None:
            raise InvalidRequest("this is not a skill distribution")
        entry = self._parts.router.capabilities.get(skill.capability_id)
        home = self._core.routes.directory.agents.get(entry.owner_agent if entry else "")
        if envelope.source_agent_id != GATEWAY:
            raise self._report(source, "an agent distributes a skill, not its gateway")
        if entry is None or home is None or home.owner is None or source in home.former:
            # The room update may arrive later than this event.
            raise UnknownCapability(f"{source} does not publish {skill.capability_id} here")
        if home.owner != source:
            raise self._report(source, f"{home.owner} publishes {skill.capability_id}")
        if not self._is_in_catalog(skill):
            raise UnknownCapability(f"the catalog has {skill.capability_id} in another version")
        return skill

    def _report(self, source: str, why: str) -> ForeignSkill:
        self._core.abuse.report_abuse(source, AbuseKind.FOREIGN_SKILL, why)
        return ForeignSkill(f"{source} may not distribute this skill: {why}")

    def _is_in_catalog(self, skill: SkillDistribution) -> bool:
        """Whether the room's catalog describes the skill in the same way."""
        entry = self._parts.router.capabilities.get(skill.capability_id)
        return (
            entry is not None
            and skill
            == SkillDistribution(
                capability_id=entry.id,
                owner_agent_id=entry.owner_agent,
                delegation_skill=entry.delegation_skill,
                default_eta_seconds=entry.default_eta_secs,
                progress_seconds=entry.progress_secs,
                contract=skill.contract,
                escalation=entry.escalation,
            )
            and entry.contract == contract_digest(encode_contract(skill.contract))
        )

    def _require_capacity(self, tx: Tx, capability: str, source: str) -> None:
        """InvalidRequest if a gateway distributes too many skills; withdrawn ones give way."""
        known = [row[0] for row in tx.fetch_all(_SELECT_OFFERS_OF_NODE, (source, capability))]
        if len(known) < MAX_OFFERS_OF_NODE:
            return
        gone = [(id,) for id in known if id not in self._parts.router.capabilities]
        if not gone:
            detail = f"it distributes more than {MAX_OFFERS_OF_NODE} skills"
            self._core.abuse.report_abuse(source, AbuseKind.QUOTA_EXCEEDED, detail)
            raise InvalidRequest(
                f"agents here take {MAX_OFFERS_OF_NODE} skills of one gateway, and have as many"
            )
        tx.execute_many(_FORGET_OFFERS, gone)
        tx.execute_many(_FORGET_INSTALLS, gone)

    def _replace_offer(self, tx: Tx, offer: SkillOffer) -> None:
        """Keep the latest offer of a skill, ask the agents here, and answer once they have."""
        capability = offer.skill.capability_id
        for former in _load_offers(tx, capability):
            if former.task is not None:
                self._answer(tx, former)
        row = (msgspec.json.encode(offer.skill), parse_event_id(offer.task or ""), offer.at)
        tx.execute(_NOTE_OFFER, (capability, offer.source, *row))
        self._ask_agents(tx, offer.skill, MAX_ASKED_AT_ONCE)
        self._answer_if_settled(tx, capability)

    def _answer_if_settled(self, tx: Tx, capability: str) -> None:
        for offer in _load_offers(tx, capability):
            if offer.task is not None and not self._has_pending(tx, offer.skill):
                self._answer(tx, offer)

    def _has_pending(self, tx: Tx, skill: SkillDistribution) -> bool:
        return any(each.status == "pending" for each in self._installs_here(tx, skill))

    def _answer(self, tx: Tx, offer: SkillOffer) -> None:
        assert offer.task is not None
        tx.execute(_CLOSE_OFFER, (offer.skill.capability_id,))
        if task_table.load_task(tx, offer.task).has_ended:
            return
        found = self._installs_here(tx, offer.skill)[:MAX_NAMED]
        result = msgspec.json.encode(NodeAnswer({each.agent: each.status for each in found}))
        payload = TaskPayload(result=result, mark=fingerprint_content(result))
        self._executed.complete_task(tx, offer.task, payload)

    # -- views

    def list_installs(self, tx: Tx, published: PublishedCapability) -> list[SkillInstall]:
        """Every agent of the room, as its gateway answered."""
        skill = describe_distribution(published)
        found = self._installs_here(tx, skill)
        known = {row.node: row for row in _load_nodes(tx, skill.capability_id)}
        for node, agents in self._agents_by_node().items():
            found += _installs_at(skill, agents, known.get(node))
        return sorted(found, key=lambda each: each.agent)

    def _installs_here(self, tx: Tx, skill: SkillDistribution) -> list[SkillInstall]:
        """The status of agents here. The hub keeps the skills of the agents that it runs."""
        version = skill.delegation_skill.version
        rows = tx.fetch_all(_SELECT_INSTALLS, (skill.capability_id,))
        asked = {row[0]: SkillInstall(*row) for row in rows if row[1] == version}
        found, homes = [], self._core.routes.directory.agents
        for agent, takes_skills in agents_here(tx).items():
            home = homes.get(agent)
            if agent == skill.owner_agent_id:
                continue
            if home is not None and home.owner not in (None, self._core.node.id):
                continue
            status: InstallStatus = "pending" if takes_skills else "not_asked"
            if agent in self._core.agents.hub_run:
                status = "installed"
            found.append(asked.get(agent) or SkillInstall(agent, version, status))
        return found


def _installs_at(
    skill: SkillDistribution, agents: Iterable[str], row: _NodeRow | None
) -> list[SkillInstall]:
    """The agents of another gateway, up to a limit."""
    version = skill.delegation_skill.version
    if row is None or row.version != version:
        return [SkillInstall(agent, version, "pending") for agent in list(agents)[:MAX_NAMED]]
    other: InstallStatus = "failed" if row.status == "failed" else "pending"
    return [
        SkillInstall(agent, version, row.agents.get(agent, other), row.at, row.error)
        for agent in list(agents)[:MAX_NAMED]
    ]


def _is_due(tx: Tx, row: _NodeRow | None, agents: list[str]) -> bool:
    """Whether a request to a gateway is due, the first or a repeated one."""
    if row is None:
        return True
    if row.next_at is None or row.next_at > tx.now:
        return False
    return row.status == "failed" or row.settled < min(len(agents), MAX_NAMED)


def _repeat_delay(attempts: int) -> int | None:
    """Milliseconds to wait after this many requests; None after the last one."""
    return _REPEAT_SECS[attempts - 1] * 1000 if attempts <= len(_REPEAT_SECS) else None


def _failure(tx: Tx, attempts: int, error: str) -> tuple[str, int | None, str, int]:
    """(status, time of the next request, reason, now)"""
    delay = _repeat_delay(attempts)
    next_at = None if delay is None else tx.now + delay
    return "failed", next_at, error[:_MAX_ERROR_CHARS], tx.now


def _reason(task: Task) -> str:
    return f"{task.error_code}: {task.error}" if task.error_code else "its answer is not one"


def _load_nodes(tx: Tx, capability: str) -> list[_NodeRow]:
    return [
        _NodeRow(node, version, attempts, status, msgspec.json.decode(agents), *rest)
        for node, version, attempts, status, agents, *rest in tx.fetch_all(
            _SELECT_NODES, (capability,)
        )
    ]


def _load_offers(tx: Tx, capability: str | None = None) -> list[SkillOffer]:
    if capability is None:
        rows = tx.fetch_all(_SELECT_OFFERS)
    else:
        rows = tx.fetch_all(f"{_SELECT_OFFERS} WHERE capability = ?", (capability,))
    return [
        SkillOffer(
            msgspec.json.decode(document, type=SkillDistribution),
            source,
            None if task is None else format_event_id(task),
            at,
        )
        for _, source, document, task, at in rows
    ]


def forget_capability(tx: Tx, capability: str) -> None:
    """Forget who has the skills of a capability that this gateway published."""
    tx.execute(_FORGET_INSTALLS, (capability,))
    tx.execute("DELETE FROM capability_node WHERE capability = ?", (capability,))
