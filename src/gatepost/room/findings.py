"""Reports in the room: reviews, incidents and advice. Several nodes may make a claim about one.

The room has every claim that counts (record_tables.py). The one that is shown depends on the time
too, so it is chosen here, by callers with a clock: a claim that is dated more than ten minutes
ahead waits until then. Only the newest reports of each writer are shown, and writers share each
page, so that a busy writer cannot hide the reports of others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Any, Generic, TypeVar

from msgspec import Struct

from gatepost.room.records import EtaAdviceRecord, IncidentRecord, ReviewRecord

MAX_AHEAD_MS = 600_000
MAX_OF_WRITER = 500

R = TypeVar("R", ReviewRecord, IncidentRecord, EtaAdviceRecord)
S = TypeVar("S", ReviewRecord, IncidentRecord)
T = TypeVar("T")


class FindingClaim(Struct, Generic[R], frozen=True):
    """A claim that counts. `is_trusted`: its writer may settle and advise on what others raised."""

    writer: str
    is_trusted: bool
    record: R


def choose_report(claims: Iterable[FindingClaim[S]], now: int) -> FindingClaim[S] | None:
    """The claim that shows a review or an incident; None while all of them are dated ahead.

    The first to settle it has decided. Otherwise the claim of a backbone node is shown, or else the
    latest claim.
    """
    past = [claim for claim in claims if claim.record.raised_at <= now + MAX_AHEAD_MS]
    settled = [claim for claim in past if claim.record.status != "open"]
    if settled:
        return min(settled, key=lambda c: (c.record.settled_at or 0, c.record.settled_by or ""))
    return min(past, key=lambda c: (not c.is_trusted, -c.record.raised_at), default=None)


def choose_advice(
    claims: Iterable[FindingClaim[EtaAdviceRecord]], now: int
) -> EtaAdviceRecord | None:
    """The latest advice on a capability; None while all of it is dated ahead."""
    past = [claim.record for claim in claims if claim.record.at <= now + MAX_AHEAD_MS]
    return max(past, key=lambda record: record.at, default=None)


def choose_reports(
    found: Mapping[str, tuple[FindingClaim[S], ...]], now: int
) -> dict[str, FindingClaim[S]]:
    """Key → the claim that shows it: the newest reports of each writer."""
    by_writer: defaultdict[str, list[tuple[int, str, FindingClaim[S]]]] = defaultdict(list)
    for key, claims in found.items():
        claim = choose_report(claims, now)
        if claim is not None:
            by_writer[claim.writer].append((-claim.record.raised_at, key, claim))
    return {
        key: claim
        for claims in by_writer.values()
        for _, key, claim in nsmallest(MAX_OF_WRITER, claims, key=lambda each: each[:2])
    }


def share_page(found: Iterable[tuple[str, T]], limit: int, order: Callable[[T], Any]) -> list[T]:
    """A page of (writer, report), in this order. Writers take turns until it is full."""
    by_writer: defaultdict[str, list[T]] = defaultdict(list)
    for writer, report in found:
        by_writer[writer].append(report)
    turns = (
        (turn, order(report), report)
        for reports in by_writer.values()
        for turn, report in enumerate(sorted(reports, key=order))
    )
    page = nsmallest(limit, turns, key=lambda each: each[:2])
    return sorted((report for _, _, report in page), key=order)
