"""Audits one segment: its chain, its values, and its evidence for comparisons with others.

A faulty segment does not end the audit of the others. A segment that cannot be read is a finding,
and its range counts as not archived: no other node is accused of what it may hold.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256

import pyarrow as pa
from msgspec import Struct

from gatepost.archive.segment_table import read_segment_table
from gatepost.errors import ArchiveError, ArchiveTooNew
from gatepost.pipeline.audit.hash_chains import (
    CHAIN_COLUMNS,
    ChainRows,
    ChainViolation,
    SegmentLink,
    check_chain,
)
from gatepost.pipeline.audit.rules import UNJUDGED
from gatepost.pipeline.kernels import evidence
from gatepost.pipeline.kernels.evidence import EVIDENCE_COLUMNS, OutboxPart
from gatepost.pipeline.kernels.promises import UNREAD, describe_unread
from gatepost.pipeline.segment_check import check_content

_COLUMNS = list(dict.fromkeys((*CHAIN_COLUMNS, *EVIDENCE_COLUMNS)))

NamedTable = tuple[str, pa.Table]


class AuditLimits(Struct, frozen=True):
    """The limits of events, in bytes and ms.

    The times of an event and of its id differ by `slack` at most.
    """

    max_inline: int
    id_age: int
    slack: int


class SegmentAudit(Struct, frozen=True):
    """The findings of a segment; `named` are its tables of evidence, or the unreadable range."""

    found: list[ChainViolation]
    named: list[NamedTable]


def audit_segment(
    link: SegmentLink,
    part: OutboxPart,
    read_file: Callable[[str], bytes | None],
    limits: AuditLimits,
) -> SegmentAudit:
    """Audit one segment; `read_file` returns None if there is no file at this path."""
    found: list[ChainViolation] = []
    try:
        content = read_file(link.path)
        found.extend(_find_wrong_file(link, content))
        table = None if content is None else _read_table(link, content, found)
        if content is not None and table is not None:
            found.extend(check_chain(link, ChainRows.from_table(table)))
            if not found:
                found.extend(_find_odd_values(link, content, limits))
            named = evidence.collect_evidence(table, part, limits.max_inline)
            return SegmentAudit(found, list(named))
    except Exception as error:
        # Any other error that a file can cause.
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        found.append(_unjudged(link, f"{link.path} cannot be judged: {reason}"))
    unread = describe_unread(part, link.after + 1, link.min_created_at, link.max_created_at)
    return SegmentAudit(found, [(UNREAD, unread)])


def _find_wrong_file(link: SegmentLink, content: bytes | None) -> Iterator[ChainViolation]:
    if content is None:
        detail = f"the listed file {link.path} is missing"
        yield ChainViolation("chain_gap", link.after + 1, None, detail)
    elif sha256(content).hexdigest() != link.sha256:
        yield _altered(f"{link.path} has another SHA-256 than listed")


def _read_table(link: SegmentLink, content: bytes, found: list[ChainViolation]) -> pa.Table | None:
    """The columns of a segment; None with the reason in `found` if they cannot be read."""
    try:
        table = read_segment_table(pa.BufferReader(content), _COLUMNS, link.path)
    except ArchiveTooNew as error:
        found.append(_unjudged(link, error.message))
        return None
    except ArchiveError as error:
        found.append(_altered(error.message))
        return None
    if table.num_rows != link.rows:
        rows = f"{table.num_rows} events, the manifest lists {link.rows}"
        found.append(_altered(f"{link.path} has {rows}"))
        return None
    return table


def _find_odd_values(
    link: SegmentLink, content: bytes, limits: AuditLimits
) -> Iterator[ChainViolation]:
    """The reason why `run` sets a segment aside although its chain is valid."""
    fault = check_content(pa.py_buffer(content), link.listed_file, limits.id_age).fault
    if fault is not None:
        yield _unjudged(link, f"{link.path}: {fault}")


def _altered(detail: str) -> ChainViolation:
    return ChainViolation("altered_segment", None, None, detail)


def _unjudged(link: SegmentLink, detail: str) -> ChainViolation:
    return ChainViolation(UNJUDGED, link.after + 1, None, detail)
