"""Misfires of capabilities: each class of failure under one pair of skill versions is one review.

The pipeline derives the same id from the events, so a misfire that both find is one item.
"""

from collections import deque
from hashlib import sha256
from typing import Literal

import msgspec

from gatepost.events import TaskInfo, format_event_id
from gatepost.journal.transaction import Tx

MisfireClass = Literal["eta_breach", "terminal_error", "contract_mismatch", "routing_miss"]

_MAX_SAMPLES = 8
_REPEATED_MISSES = 3
_MISS_WINDOW_MS = 600_000
_MAX_CAPABILITIES = 10_000
_SELECT = "SELECT count, corr_ids, event_ids, status FROM review WHERE id = ?"
_INSERT = """
INSERT INTO review (id, capability_id, delegation_skill_version, executor_skill_version,
    failure_class, count, corr_ids, event_ids, raised_at, status)
VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?, 'open')
"""
_UPDATE = "UPDATE review SET count = count + 1, corr_ids = ?, event_ids = ? WHERE id = ?"
_WITHDRAW = """
UPDATE review SET count = count - 1, corr_ids = ?, event_ids = ? WHERE id = ? AND status = 'open'
"""
_DELETE_EMPTY = "DELETE FROM review WHERE id = ? AND count <= 0"
_SELECT_LATE = """
SELECT id, info FROM task WHERE requester_node IS NULL AND ended_at IS NULL AND late_at IS NULL
    AND eta_at < ? LIMIT ?
"""
_MARK_LATE = "UPDATE task SET late_at = ? WHERE id = ?"
_decode_info = msgspec.json.Decoder(TaskInfo).decode
_decode_samples = msgspec.json.Decoder(list[str]).decode


class RoutingMisses:
    """Counts the requests for a capability that found no agent. Several of them are a misfire."""

    def __init__(self) -> None:
        self._times: dict[str, deque[int]] = {}

    def count_miss(self, capability: str, now: int) -> bool:
        """Count one miss; returns whether enough of them are recent for a misfire."""
        if len(self._times) >= _MAX_CAPABILITIES and capability not in self._times:
            self._times.clear()
        times = self._times.setdefault(capability, deque(maxlen=_REPEATED_MISSES))
        times.append(now)
        return len(times) == _REPEATED_MISSES and times[0] > now - _MISS_WINDOW_MS


def review_id(info: TaskInfo, failure: MisfireClass) -> str:
    """The id of a review, derived from its capability, versions and class alone."""
    parts = (
        info.capability_id,
        info.capability_version,
        info.delegation_skill_version,
        info.executor_skill_version,
        failure,
    )
    joined = "\x1f".join("" if part is None else part for part in parts)
    return sha256(joined.encode()).hexdigest()[:32]


def note_misfire(tx: Tx, info: TaskInfo, failure: MisfireClass, task_id: str | None) -> bool:
    """Count a misfire; returns whether this opened a review.

    A task without a capability or without skill versions opens no review. A closed review stays
    closed, because its misfire was settled for these versions.
    """
    versions = (info.delegation_skill_version, info.executor_skill_version)
    if info.capability_id is None or None in versions:
        return False
    id = review_id(info, failure)
    row = tx.fetch_one(_SELECT, (id,))
    if row is None:
        samples = msgspec.json.encode([task_id] if task_id else []).decode()
        head = (id, info.capability_id, *versions, failure)
        tx.execute(_INSERT, (*head, samples, samples, tx.now))
        return True
    if row[3] == "open":
        corr_ids, event_ids = (_add_sample(samples, task_id) for samples in row[1:3])
        tx.execute(_UPDATE, (corr_ids, event_ids, id))
    return False


def withdraw_misfire(tx: Tx, info: TaskInfo, failure: MisfireClass, task_id: str) -> None:
    """Withdraw a misfire that was counted wrongly. A review without misfires is deleted."""
    id = review_id(info, failure)
    row = tx.fetch_one(_SELECT, (id,))
    if row is not None and row[3] == "open":
        corr_ids, event_ids = (_remove_sample(samples, task_id) for samples in row[1:3])
        tx.execute(_WITHDRAW, (corr_ids, event_ids, id))
        tx.execute(_DELETE_EMPTY, (id,))


def note_late_tasks(tx: Tx, limit: int = 100) -> list[str]:
    """Note the tasks requested here that missed their ETA, each once; returns their ids."""
    found = tx.fetch_all(_SELECT_LATE, (tx.now, limit))
    for id, info in found:
        tx.execute(_MARK_LATE, (tx.now, id))
        note_misfire(tx, _decode_info(info), "eta_breach", format_event_id(id))
    return [format_event_id(id) for id, _ in found]


def _add_sample(samples: str, task_id: str | None) -> str:
    known = _decode_samples(samples)
    if task_id is not None and task_id not in known and len(known) < _MAX_SAMPLES:
        known.append(task_id)
    return msgspec.json.encode(known).decode()


def _remove_sample(samples: str, task_id: str) -> str:
    known = [each for each in _decode_samples(samples) if each != task_id]
    return msgspec.json.encode(known).decode()


def review_states(tx: Tx, capability: str) -> dict[str, str]:
    """Review → its status, of a capability."""
    rows = tx.fetch_all("SELECT id, status FROM review WHERE capability_id = ?", (capability,))
    return {row[0]: row[1] for row in rows}
