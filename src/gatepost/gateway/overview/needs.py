"""What a person has to do, most urgent first, each with the one action that mends it.

Everything is read from what the gateway knows anyway; what needs nobody is not listed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from gatepost.core.gateway_core import Core
from gatepost.delivery.undelivered import UndeliveredFilter, find_undelivered
from gatepost.delivery.undelivered_table import UndeliveredMessage
from gatepost.durations import format_duration
from gatepost.gateway.admin.feedback import Feedback
from gatepost.gateway.admin.status import gateway_status
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.gateway.overview.room_ledger import VIOLATION_CLASS
from gatepost.journal import Tx
from gatepost.mailbox import browse
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.tasks.task_table import Task, find_late_tasks
from gatepost.wire.gateway_views import MailboxCounts, PeerStatus, Status
from gatepost.wire.operations import DeadLetter
from gatepost.wire.overview_views import Need, NeedAction, NeedList
from gatepost.wire.report_views import IncidentView, ReviewView

# Urgencies: lost messages, a gateway that cannot work, mail that is stuck, decisions, advice.
BROKEN, FAILED, STUCK, DECIDE, ADVISE = range(5)
_MAX_NEEDS = 50
_MAX_OF_KIND = 20
_TEXT = 200
_MAX_COUNTED = 100
# Incidents of one class that are listed one by one.
_SHOWN_OF_CLASS = 3
# The dead letters themselves are listed.
_LISTED_CLASSES = frozenset({"dead_letter"})


class NeedFacts(Struct, frozen=True):
    """What the needs are found in, as it was at `now`. `letters`: mailbox → dead letters of it
    that were not sent again, not all if there are many.

    `given_up` are undelivered messages that were not sent again, the oldest first.
    """

    now: int
    status: Status
    mailboxes: list[MailboxCounts] = []
    letters: dict[str, list[DeadLetter]] = {}
    given_up: list[UndeliveredMessage] = []
    incidents: list[IncidentView] = []
    reviews: list[ReviewView] = []
    late_tasks: list[Task] = []


class NeedFinder:
    def __init__(self, operations: Operations, peers: PeerStatuses, feedback: Feedback) -> None:
        self._operations = operations
        self._core: Core = operations.core
        self._peers = peers
        self._feedback = feedback

    async def find(self) -> NeedList:
        return list_needs(await self._gather())

    async def _gather(self) -> NeedFacts:
        status = await gateway_status(self._operations, self._peers)
        page = await self._feedback.find_incidents(0, None, 200)
        reviews = await self._feedback.find_reviews("open", _MAX_OF_KIND)
        now = self._core.clock.now()

        def read(tx: Tx) -> tuple[list[MailboxCounts], list[UndeliveredMessage], list[Task]]:
            boxes = [MailboxCounts(*row) for row in browse.mailbox_counts(tx)]
            given_up = find_undelivered(tx, UndeliveredFilter(replayed=False), _MAX_OF_KIND)
            return boxes, given_up, find_late_tasks(tx, now, _MAX_OF_KIND)

        boxes, given_up, late = await self._core.read(read)
        dead = [box for box in boxes if box.dead_letters][:_MAX_OF_KIND]
        letters = {}
        for box in dead:
            wanted = DeadLetterFilter(replayed=False)
            found = await self._operations.dead_letters.find(box.name, wanted, _MAX_COUNTED)
            if found:
                letters[box.name] = found
        return NeedFacts(now, status, dead, letters, given_up, page.incidents, reviews, late)


def list_needs(facts: NeedFacts) -> NeedList:
    """All that is needed, the most urgent and then the oldest first."""
    found = [
        *_broken_promises(facts.incidents),
        *_failures(facts.status),
        *_dead_letters(facts),
        *_undelivered(facts),
        *_unreachable(facts.status.peers, facts.now),
        *_late_tasks(facts.late_tasks, facts.now),
        *_reviews(facts.reviews),
        *_incidents(facts.incidents),
        *_advice(facts.status),
    ]
    found.sort(key=lambda need: (need.urgency, need.since or 0))
    return NeedList(found[:_MAX_NEEDS], max(0, len(found) - _MAX_NEEDS))


def _call(label: str, command: str, path: str, **body: Any) -> NeedAction:
    return NeedAction(label, command, "POST", path, Raw(msgspec.json.encode(body)))


def _broken_promises(incidents: Iterable[IncidentView]) -> Iterator[Need]:
    for each in _open(incidents):
        if each.class_ == VIOLATION_CLASS:
            yield _incident_need(each, BROKEN, f"A promise is broken: {each.subject}")


def _failures(status: Status) -> Iterator[Need]:
    if not status.accepting:
        text = f"{status.node_id} does not accept messages: {status.problem}"
        action = NeedAction("Look", "gatepost status")
        yield Need("not-accepting", FAILED, "storage", text[:_TEXT], action)
    for number, problem in enumerate(status.mesh_problems):
        action = NeedAction("Look", "gatepost mesh status")
        yield Need(f"mesh-{number}", FAILED, "mesh", problem[:_TEXT], action)
    for number, problem in enumerate(status.health_problems):
        action = NeedAction("Look", "gatepost status")
        text = f"{status.node_id} is degraded: {problem}"
        yield Need(f"health-{number}", FAILED, "health", text[:_TEXT], action)


def _dead_letters(facts: NeedFacts) -> Iterator[Need]:
    for box in facts.mailboxes:
        letters = facts.letters.get(box.name)
        if not letters:
            continue
        path = f"/v1/mailboxes/{quote(box.name, safe='')}/dead-letters/replay"
        command = f"gatepost dlq replay {box.name} --all"
        number = len(letters) if len(letters) < _MAX_COUNTED else box.dead_letters
        text = f"{_count(number, 'dead letter')} of {box.name}"
        action = _call("Replay", command, path, replayed=False)
        detail = letters[-1].reason[:_TEXT]
        yield Need(f"dlq-{box.name}", STUCK, "dead_letters", text, action, detail, None, box.name)


def _undelivered(facts: NeedFacts) -> Iterator[Need]:
    if not facts.given_up:
        return
    first, count = facts.given_up[0], facts.status.undelivered
    text = f"{_count(count, 'message')} given up, the first one to {first.to_agent}"
    action = _call("Replay", "gatepost undelivered replay --all", "/v1/undelivered/replay")
    yield Need("undelivered", STUCK, "undelivered", text, action, first.reason, first.failed_at)


def _unreachable(peers: Iterable[PeerStatus], now: int) -> Iterator[Need]:
    for peer in peers:
        if not peer.waiting or not (peer.status == "offline" or peer.problem or not peer.id):
            continue
        since = peer.waiting_since or now
        age = format_duration(max(0, now - since) / 1000)
        where = f"{peer.id} is {peer.status}" if peer.id else "No gateway has their agent"
        text = f"{where} · {_count(peer.waiting, 'message')} waiting for {age}"
        command = (
            f"gatepost route set AGENT --owner {peer.id} --fallback NODE"
            if peer.id
            else "gatepost agent add AGENT"
        )
        label = "Re-route" if peer.id else "Look"
        action = NeedAction(label, command)
        yield Need(
            f"node-{peer.id}", STUCK, "node", text, action, peer.why or peer.state, since, peer.id
        )


def _late_tasks(tasks: Iterable[Task], now: int) -> Iterator[Need]:
    for task in tasks:
        late = format_duration(max(0, now - (task.eta_at or now)) / 1000)
        text = f"{task.agent} is {late} over its ETA"
        action = NeedAction("Look", f"gatepost task show {task.id}")
        yield Need(
            f"task-{task.id}", DECIDE, "task", text, action, task.description[:_TEXT], task.eta_at,
            task.id,
        )  # fmt: skip


def _reviews(reviews: Iterable[ReviewView]) -> Iterator[Need]:
    for each in reviews:
        text = f"{each.capability_id} misfired: {each.failure_class.replace('_', ' ')}"
        path = f"/v1/reviews/{quote(each.id, safe='')}/resolve"
        action = _call("Resolve", f"gatepost reviews resolve {each.id}", path)
        detail = f"{each.count} times, skill {each.executor_skill_version}"
        yield Need(
            f"review-{each.id}", DECIDE, "review", text, action, detail, each.raised_at, each.id
        )


def _incidents(incidents: Iterable[IncidentView]) -> Iterator[Need]:
    """Open incidents. Those of which the dead letter or the message is listed need nothing more."""
    shown = [
        each
        for each in _open(incidents)
        if each.class_ != VIOLATION_CLASS and each.class_ not in _LISTED_CLASSES
    ]
    for class_, number in Counter(each.class_ for each in shown).items():
        group = [each for each in shown if each.class_ == class_]
        words = class_.replace("_", " ").capitalize()
        if number <= _SHOWN_OF_CLASS:
            for each in group:
                yield _incident_need(each, DECIDE, f"{words}: {each.subject}")
            continue
        command = f"gatepost incidents --resolve-all --class {class_} --yes"
        action = NeedAction(
            "Resolve all",
            command,
            "POST",
            "/v1/incidents/resolve-all",
            Raw(msgspec.json.encode({"class": class_})),
        )
        oldest = min(each.raised_at for each in group)
        text, detail = f"{words}: {number} incidents", group[0].detail[:_TEXT]
        yield Need(f"class-{class_}", DECIDE, "incidents", text, action, detail, oldest, class_)


def _advice(status: Status) -> Iterator[Need]:
    if status.runs_as_root:
        action = NeedAction("Look", "gatepost init --help")
        yield Need("root", ADVISE, "root", f"{status.node_id} runs as root", action)


def _incident_need(each: IncidentView, urgency: int, text: str) -> Need:
    command = f"gatepost incidents --resolve {each.id}"
    action = _call("Resolve", command, "/v1/incidents/resolve", id=each.id)
    detail = each.detail[:_TEXT]
    return Need(
        f"incident-{each.id}", urgency, "incident", text[:_TEXT], action, detail, each.raised_at,
        each.id,
    )  # fmt: skip


def _open(incidents: Iterable[IncidentView]) -> Iterator[IncidentView]:
    return (each for each in incidents if each.status == "open" and each.ended_at is None)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
