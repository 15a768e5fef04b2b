"""The abuse log: peers, token holders and strangers that did what their role does not allow.

Every report is counted by its source and kind. The first one of a source and kind, and then at most
one per hour, also becomes an incident that names the source, and a line in the gateway's log.

A stranger chooses its address, and a backbone node the names of the nodes that it admits. So all
addresses together have one incident of each kind in an hour, and so have all other sources beyond
the first 16. It names some of them, and is amended while more come.

A report needs no transaction. It may come from the event loop, and from an operation of the writer
that is undone afterwards: the incident is written when the commit group ends.
"""

import logging
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.delivery.incidents import IncidentLog
from gatepost.journal.transaction import Tx
from gatepost.journal.writer import JobOutcome

log = logging.getLogger(__name__)

ABUSE = "abuse"
INTERVAL_MS = 3_600_000
MAX_ENTRIES = 512
# Count the sources beyond the limits together.
OTHERS, STRANGERS = "others", "strangers"
# Addresses fill at most this many entries, so that nodes can always be counted by name.
_MAX_ADDRESSES = 128
# Sources of one kind that get a separate incident in an hour.
_MAX_NAMED = 16
_MAX_SAMPLES, _MAX_DISTINCT = 3, 1024
_AMEND_AFTER_MS = 60_000
_ADDRESS = "address:"
_MAX_SOURCE_CHARS = 128
_MAX_DETAIL_CHARS = 300


class AbuseKind(StrEnum):
    """The rules that can be broken; docs/operations.md explains each."""

    FORGED_SENDER = "forged_sender"
    FORGED_RECEIPT = "forged_receipt"
    UNREADABLE_PAYLOAD = "unreadable_payload"
    CONNECTION_FLOOD = "connection_flood"
    TOKEN_GUESSING = "token_guessing"
    FOREIGN_BLOB = "foreign_blob"
    FOREIGN_OUTBOX = "foreign_outbox"
    QUOTA_EXCEEDED = "quota_exceeded"
    ROOM_VIOLATION = "room_violation"
    SIGNED_TWICE = "signed_twice"
    SECOND_KEY = "second_key"
    SLOT_COLLISION = "slot_collision"
    FOREIGN_AGENT = "foreign_agent"
    FOREIGN_CAPABILITY = "foreign_capability"
    FOREIGN_SKILL = "foreign_skill"
    RESERVED_NAME = "reserved_name"
    ROOM_COST = "room_cost"
    MESH_ROLE = "mesh_role"
    DATAGRAM_FLOOD = "datagram_flood"
    TASK_FLOOD = "task_flood"
    SLOW_CONTRACT = "slow_contract"


class AbuseRecord(Struct):
    count: int
    seen_at: int


class AbuseReport(Struct):
    """The content of one incident, with at most `_MAX_DISTINCT` sources."""

    detail: str
    since: int
    amended_at: int
    count: int = 0
    sources: dict[str, None] = {}

    def is_current(self, now: int) -> bool:
        # After the clock went back, do not wait longer than the interval.
        return self.since <= now < self.since + INTERVAL_MS

    def describe(self, kind: AbuseKind) -> str:
        first, *others = list(self.sources)
        if not others:
            return f"{first} was refused ({kind}): {self.detail}"
        number = len(self.sources)
        many = f"{number} or more" if number >= _MAX_DISTINCT else str(number)
        samples = ", ".join((first, *others[: _MAX_SAMPLES - 1]))
        return f"{many} sources were refused ({kind}), such as {samples}: {self.detail}"


_Key = tuple[str, AbuseKind]


class AbuseLog:
    """`wake_writer` has to start a commit group soon, if none is running.

    Two threads may report at once without a lock. At worst one of two reports of the same source
    and kind is not counted.
    """

    def __init__(self, incidents: IncidentLog, clock: Clock) -> None:
        self._incidents = incidents
        self._clock = clock
        self._records: dict[_Key, AbuseRecord] = {}
        self._reports: dict[_Key, AbuseReport] = {}
        # Reports to write, and whether their incident exists.
        self._unwritten: dict[_Key, bool] = {}
        self._written: list[_Key] = []
        self.wake_writer: Callable[[], None] = _wait_for_group

    def report_abuse(self, source: str, kind: AbuseKind, detail: str) -> bool:
        """Count a report; return whether it is the first of its incident's subject in this hour.

        `source` is a node id, `agent:ID` for an external agent, or `address:IP` for a stranger.
        `detail` is a sentence that may quote the source; it is cleaned and cut here.
        """
        now, source = self._clock.now(), clean_text(source, _MAX_SOURCE_CHARS)
        self._count_source(source, kind, now)
        key = self._choose_incident(source, kind, now)
        report = self._reports.get(key)
        is_first = report is None or not report.is_current(now)
        if report is None or is_first:
            report = AbuseReport(clean_text(detail, _MAX_DETAIL_CHARS), now, now)
            self._reports[key] = report
        report.count += 1
        if len(report.sources) < _MAX_DISTINCT:
            report.sources[source] = None
        if is_first or self._is_amendment_due(report, now):
            report.amended_at = now
            self._unwritten.setdefault(key, not is_first)
            self.wake_writer()
        return is_first

    def counts(self) -> dict[tuple[str, str], int]:
        """(Source, kind) → reports since the start, of at most `MAX_ENTRIES` entries."""
        return {key: record.count for key, record in list(self._records.items())}

    def _count_source(self, source: str, kind: AbuseKind, now: int) -> None:
        key = self._choose_key(source, kind, now)
        record = self._records.setdefault(key, AbuseRecord(0, now))
        record.count += 1
        record.seen_at = now

    def _choose_key(self, source: str, kind: AbuseKind, now: int) -> _Key:
        if (source, kind) in self._records or self._has_entry_for(source):
            return source, kind
        self._forget_quiet_sources(now)
        if self._has_entry_for(source):
            return source, kind
        return (STRANGERS if source.startswith(_ADDRESS) else OTHERS), kind

    def _has_entry_for(self, source: str) -> bool:
        if source.startswith(_ADDRESS):
            return sum(name.startswith(_ADDRESS) for name, _ in self._records) < _MAX_ADDRESSES
        # Two entries of each kind are kept free, for `OTHERS` and `STRANGERS`.
        return len(self._records) < MAX_ENTRIES - 2 * len(AbuseKind)

    def _forget_quiet_sources(self, now: int) -> None:
        for key, record in list(self._records.items()):
            if not now - INTERVAL_MS < record.seen_at <= now:
                self._records.pop(key, None)

    # -- which incident a report belongs to

    def _choose_incident(self, source: str, kind: AbuseKind, now: int) -> _Key:
        if source.startswith(_ADDRESS):
            return STRANGERS, kind
        if (known := self._reports.get((source, kind))) and known.is_current(now):
            return source, kind
        for key, report in list(self._reports.items()):
            if key not in self._unwritten and not report.is_current(now):
                self._reports.pop(key, None)
        named = sum(key[1] is kind and key[0] not in (OTHERS, STRANGERS) for key in self._reports)
        return (source if named < _MAX_NAMED else OTHERS), kind

    def _is_amendment_due(self, report: AbuseReport, now: int) -> bool:
        return len(report.sources) > 1 and now >= report.amended_at + _AMEND_AFTER_MS

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        for (source, kind), is_amendment in list(self._unwritten.items()):
            report = self._reports[source, kind]
            # Reports of one hour share an incident, also after a restart.
            hour = report.since // INTERVAL_MS * INTERVAL_MS
            write = self._incidents.amend if is_amendment else self._incidents.raise_
            write(tx, ABUSE, f"{source}/{kind}@{hour}", report.describe(kind))
            self._written.append((source, kind))

    def after_commit(self) -> list[JobOutcome]:
        for key in self._written:
            self._unwritten.pop(key)
            log.warning("%s", self._reports[key].describe(key[1]))
        self._written.clear()
        return []

    def rolled_back(self) -> None:
        self._written.clear()

    def next_due(self, tx: Tx) -> int | None:
        return None


def clean_text(text: str, limit: int) -> str:
    """Cut `text`, and replace the characters that a terminal or a log might act upon."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:limit])


def _wait_for_group() -> None:
    """The next commit group writes the incident."""
