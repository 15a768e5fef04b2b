"""The tables once more, from the archive's files, in plain Python: slow, simple and independent."""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Event = dict[str, Any]
Row = dict[str, Any]

TRACKED = ("message", "reply", "task_create", "task_cancel")
WINDOW, HOUR = 300_000, 3_600_000
ONLINE, OBJECTIVE = 60_000, 5_000


def events(archive: str) -> list[Event]:
    rows = []
    for path in sorted(Path(archive).glob("node=*/date=*/*.parquet")):
        node = path.parent.parent.name.removeprefix("node=")
        rows += [row | {"node": node} for row in pq.ParquetFile(path).read().to_pylist()]
    return rows


class Lifecycle:
    """All that was said about one event of one node."""

    def __init__(self) -> None:
        self.sent: list[Event] = []
        self.told: dict[str, list[Event]] = defaultdict(list)
        self.given_up: list[Event] = []

    def row(self, node: str, id: bytes) -> Row:
        first = min(self.sent, key=lambda e: e["created_at"], default=None)
        asked = {e["to_node"] for e in self.sent} - {None}
        accepts = sorted((e["created_at"], p) for p, e in self._said("accepted") if p in asked)
        ends = self._ends(asked)
        replies = [e["created_at"] for p, e in self._said("reply") if p in asked]
        refusals = sorted(
            (e["created_at"], e["reason"]) for p, e in self._said("refused") if p in asked
        )
        dead = sorted((e["created_at"], e["reason"]) for e in self.given_up)
        undone = sorted(
            (e["created_at"], e["reason"])
            for p, e in self._said("processed")
            if p in asked and e["reason"] is not None and e["outcome"] != "ok"
        )
        last = max(self.sent, key=lambda e: e["attempt"], default=None)
        answered = bool(ends or replies)
        row = {
            "node": node,
            "event_id": id,
            "kind": first and first["kind"],
            "from_agent": first and first["source_agent"],
            "to_agent": first and first["to_agent"],
            "to_node": _first(ends, 2) or _first(accepts, 1) or self._last_asked(last),
            "sent_at": first and first["created_at"],
            "size": first and (first["blob_size"] or first["payload_size"]),
            "forwarded": bool(first and first["origin_id"]),
            "attempts": last and last["attempt"],
            "routes": len(asked),
            "accepted_at": _first(accepts, 0),
            "processed_at": _first(ends, 0),
            "replied_at": min(replies, default=None),
            "dead_at": _first(dead, 0),
            "outcome": _first(ends, 1),
            "reason": _first(dead, 1) or _first(undone, 1) or _first(refusals, 1),
            "duplicates": self._duplicates(),
            "strangers": len(self._answered() - asked),
            "turns": sum(end[1] == "ok" for end in ends),
            "amended": bool(dead) and answered,
            "closed": bool(dead) or answered,
        }
        return row | {"state": _state(row)}

    def _last_asked(self, last: Event | None) -> Any:
        """Of an event that is not there, only who answered is known."""
        return last["to_node"] if last else max(self.told, default=None)

    def _said(self, what: str) -> list[tuple[str, Event]]:
        every = [(peer, e) for peer, told in self.told.items() for e in told]
        return [(peer, e) for peer, e in every if what in (e["status"], e["kind"])]

    def _ends(self, asked: set[str]) -> list[tuple[int, str, str]]:
        """The first word of each node that was asked and ended it."""
        found: dict[str, tuple[int, str, str]] = {}
        for peer, e in self._said("processed"):
            end = (e["created_at"], e["outcome"], peer)
            found[peer] = min(found.get(peer, end), end)
        return sorted(end for peer, end in found.items() if peer in asked)

    def _answered(self) -> set[str]:
        return {p for what in ("accepted", "processed") for p, _ in self._said(what)}

    def _duplicates(self) -> int:
        said = [(p, what) for what in ("accepted", "processed") for p, _ in self._said(what)]
        return len(said) - len(set(said))


def _first(rows: list[Any], place: int) -> Any:
    return rows[0][place] if rows else None


def _state(row: Row) -> str:
    if row["kind"] is None:
        return "orphan"
    for name, column in (
        ("replied", "replied_at"),
        ("processed", "processed_at"),
        ("dead_letter", "dead_at"),
        ("accepted", "accepted_at"),
    ):
        if row[column] is not None:
            return name
    return "retry_pending" if row["attempts"] > 1 else "emitted"


def deliveries(every: Iterable[Event]) -> dict[tuple[str, bytes], Row]:
    lifecycles: dict[tuple[str, bytes], Lifecycle] = defaultdict(Lifecycle)
    for e in every:
        node, ref, to = e["node"], e["ref_id"], e["to_node"]
        if e["kind"] in TRACKED:
            lifecycles[node, e["event_id"]].sent.append(e)
        if e["kind"] in ("ack", "reply") and ref:
            lifecycles[to or node, ref].told[node].append(e)
        elif e["kind"] == "dead_letter":
            lifecycles[node, ref].given_up.append(e)
    return {key: lifecycle.row(*key) for key, lifecycle in lifecycles.items()}


def tasks(every: Iterable[Event]) -> dict[tuple[str, bytes], Row]:
    """What owners told about tasks, beyond receipts."""
    found: dict[tuple[str, bytes], Row] = {}
    every = list(every)
    for e in every:
        if e["kind"] == "task_create" and e["attempt"] == 1:
            found[e["node"], e["event_id"]] = {"first": e, "etas": [], "completed": None}
    for e in every:
        task = found.get((e["to_node"] or e["node"], e["ref_id"]))
        if task is not None and e["kind"] != "task_create":
            task["etas"] += [e["eta_at"]] if e["eta_at"] else []
            if e["kind"] == "task_complete":
                task["completed"] = e["created_at"]
    return found


# -- gold


def window_of(row: Row) -> int:
    return int(row["sent_at"] // WINDOW * WINDOW)


def percentile(values: Iterable[int], share: float) -> int | None:
    known = sorted(values)
    return known[math.ceil(share * len(known)) - 1] if known else None


def _ended(row: Row) -> int | None:
    """When it was done, if anybody did it."""
    if row["outcome"] in ("dead_letter", "expired"):
        return None
    return min((t for t in (row["processed_at"], row["replied_at"]) if t is not None), default=None)


def _dead(row: Row) -> bool:
    given_up = row["dead_at"] is not None and not row["amended"]
    return given_up or row["outcome"] in ("dead_letter", "expired")


def levels(group: list[Row]) -> Row:
    """One row of `slo`, all of its columns but the key."""
    sent, end = len(group), window_of(group[0]) + WINDOW
    accept = [r["accepted_at"] - r["sent_at"] for r in group if r["accepted_at"] is not None]
    process = [ended - r["sent_at"] for r in group if (ended := _ended(r)) is not None]
    online = percentile((ms for ms in accept if ms <= ONLINE), 0.95)
    counts = {
        "sent": sent,
        "accepted": len(accept),
        "processed": len(process),
        "dead": sum(map(_dead, group)),
        "amended": sum(r["amended"] for r in group),
        "retried": sum(r["attempts"] > 1 for r in group),
        "duplicates": sum(r["duplicates"] for r in group),
        "open": sum(not r["closed"] for r in group),
        "ack_lag": sum(_waited_beyond(r, end) for r in group),
        "bytes": sum(r["size"] for r in group),
    }
    points = {
        f"{name}_{point}": percentile(values, share)
        for name, values in (("accept", accept), ("process", process))
        for point, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    return {
        **counts,
        **points,
        "window_ms": WINDOW,
        "per_second": round(sent / (WINDOW / 1000), 6),
        "retry_rate": round(counts["retried"] / sent, 6),
        "duplicate_rate": round(counts["duplicates"] / sent, 6),
        "dead_rate": round(counts["dead"] / sent, 6),
        "online_p95": online,
        "objective_ms": OBJECTIVE,
        "met": None if online is None else online < OBJECTIVE,
    }


def _waited_beyond(row: Row, end: int) -> bool:
    left = [t for t in (row["accepted_at"], row["dead_at"]) if t is not None]
    return min(left, default=end) >= end


def exchanged(group: list[Row]) -> Row:
    """One row of `traffic`, all of its columns but the key."""
    accept = [r["accepted_at"] - r["sent_at"] for r in group if r["accepted_at"] is not None]
    process = [ended - r["sent_at"] for r in group if (ended := _ended(r)) is not None]
    return {
        "sent": len(group),
        "bytes": sum(r["size"] for r in group),
        "ok": sum(r["replied_at"] is not None or r["outcome"] == "ok" for r in group),
        "dead": sum(map(_dead, group)),
        "open": sum(not r["closed"] for r in group),
        "accept_ms": round(sum(accept) / len(accept), 6) if accept else None,
        "process_ms": round(sum(process) / len(process), 6) if process else None,
        "process_max": max(process, default=None),
    }


def three_digits(ms: int) -> int:
    """Rounded up."""
    unit = int(10 ** max(0, len(str(ms)) - 3))
    return math.ceil(ms / unit) * unit


def advice(group: list[Row]) -> Row:
    """One row of `eta` from completed tasks, all of its columns but the key."""
    took = [three_digits(task["completed"] - task["first"]["created_at"]) for task in group]
    etas = [(min(task["etas"]), task) for task in group if task["etas"]]
    kept = [task["completed"] <= eta for eta, task in etas]
    promises = [three_digits(eta - task["first"]["created_at"]) for eta, task in etas]
    promised = percentile(promises, 0.5)
    points = {
        f"{name}_seconds": (percentile(took, share) or 0) / 1000
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
    }
    return {
        "completed": len(group),
        **points,
        "promised_seconds": None if promised is None else promised / 1000,
        "kept_rate": round(sum(kept) / len(kept), 6) if kept else None,
        "recommended_eta_seconds": math.ceil(points["p95_seconds"]),
    }
