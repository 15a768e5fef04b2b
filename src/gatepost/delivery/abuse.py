"""The abuse log: peers, token holders and strangers that did what their role does not allow.

Every report is counted by its source and kind. The first one of a source and kind, and then at most
one per hour, also becomes an incident that names the source, and a line in the gateway's log.

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
# Stands for the sources that are not counted one by one, because there are too many of them.
OTHERS = "others"
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
    FOREIGN_AGENT = "foreign_agent"
    FOREIGN_CAPABILITY = "foreign_capability"
    ROOM_COST = "room_cost"
    MESH_ROLE = "mesh_role"


class AbuseRecord(Struct):
    """`due_at` is the time from which the next report is an incident again."""

    count: int
    due_at: int
    seen_at: int


class AbuseLog:
    """`wake_writer` has to start a commit group soon, if none is running.

    Two threads may report at once without a lock. At worst one of two reports of the same source
    and kind is not counted.
    """

    def __init__(self, incidents: IncidentLog, clock: Clock) -> None:
        self._incidents = incidents
        self._clock = clock
        self._records: dict[tuple[str, AbuseKind], AbuseRecord] = {}
        self._unwritten: dict[tuple[str, AbuseKind], str] = {}
        self._written: list[tuple[str, AbuseKind]] = []
        self.wake_writer: Callable[[], None] = _wait_for_group

    def report_abuse(self, source: str, kind: AbuseKind, detail: str) -> None:
        """`source` is a node id, `agent:ID` for an external agent, or `address:IP` for a stranger.

        `detail` is a sentence that may quote the source; it is cleaned and cut here.
        """
        now = self._clock.now()
        key = self._choose_key(clean_text(source, _MAX_SOURCE_CHARS), kind, now)
        record = self._records.setdefault(key, AbuseRecord(0, 0, now))
        record.count += 1
        record.seen_at = now
        # The clock may have gone back: nothing waits longer than the interval.
        if record.due_at <= now or record.due_at > now + INTERVAL_MS:
            record.due_at = now + INTERVAL_MS
            self._unwritten[key] = clean_text(detail, _MAX_DETAIL_CHARS)
            self.wake_writer()

    def counts(self) -> dict[tuple[str, str], int]:
        """(Source, kind) → reports since the start, of at most `MAX_ENTRIES` entries."""
        return {key: record.count for key, record in list(self._records.items())}

    def _choose_key(self, source: str, kind: AbuseKind, now: int) -> tuple[str, AbuseKind]:
        key = (source, kind)
        # One entry of each kind is kept free for `OTHERS`.
        capacity = MAX_ENTRIES - len(AbuseKind)
        if key not in self._records and len(self._records) >= capacity:
            self._forget_quiet_sources(now)
            if len(self._records) >= capacity:
                return OTHERS, kind
        return key

    def _forget_quiet_sources(self, now: int) -> None:
        for key, record in list(self._records.items()):
            if not now - INTERVAL_MS < record.seen_at <= now:
                self._records.pop(key, None)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        for (source, kind), detail in list(self._unwritten.items()):
            # The same hour has the same incident, also after a restart.
            hour = tx.now // INTERVAL_MS * INTERVAL_MS
            subject = f"{source}/{kind}@{hour}"
            self._incidents.raise_(tx, ABUSE, subject, f"{source} was refused ({kind}): {detail}")
            self._written.append((source, kind))

    def after_commit(self) -> list[JobOutcome]:
        for key in self._written:
            detail = self._unwritten.pop(key)
            log.warning("%s was refused (%s): %s", *key, detail)
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
