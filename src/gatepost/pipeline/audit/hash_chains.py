"""Checks the hash chain and the signatures of one segment.

A segment ends with a signed head, and the manifest lists the chain value of that head. So each
segment is checked on its own, starting from the chain value at the end of the one before it.
"""

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from hashlib import sha256
from typing import Final, Self

import pyarrow as pa
from msgspec import Struct

from gatepost.archive import manifest
from gatepost.archive.manifest import ArchiveManifest
from gatepost.errors import ChainError
from gatepost.events.chain import ChainHead, extend_chain, genesis_chain, verify_head
from gatepost.pipeline.audit.trust import SeenHeads
from gatepost.pipeline.read_plan import FileVersion, SegmentFile, make_segment

CHAIN_COLUMNS: Final = (
    *("seq", "digest", "group_first", "chain", "signature", "body", "created_at"),
)


class SegmentLink(Struct, frozen=True):
    """One segment, and the end of the one before it; `chain` is None if that end is unknown."""

    node: str
    incarnation: str
    path: str
    sha256: str
    bytes: int
    rows: int
    first: int
    last: int
    min_created_at: int
    max_created_at: int
    after: int
    chain: builtins.bytes | None
    last_chain: str
    keys: tuple[builtins.bytes, ...]
    # (seq, chain, gateway): chains in this segment that other gateways have verified.
    seen: tuple[tuple[int, builtins.bytes, str], ...] = ()

    @property
    def listed_file(self) -> SegmentFile:
        """The segment as `run` knows it; its date does not matter to an audit."""
        return make_segment(
            self.node,
            date.min,
            self.incarnation,
            (self.first, self.last),
            (self.min_created_at, self.max_created_at),
            FileVersion(builtins.bytes.fromhex(self.sha256), self.bytes, 0),
            self.path.partition("/")[2],
        )


class ChainViolation(Struct, frozen=True):
    rule: str
    seq: int | None
    at: int | None
    detail: str


class ChainRows(Struct, frozen=True):
    """The columns of a segment over which its chain is computed."""

    seq: list[int]
    digest: list[bytes]
    group_first: list[int | None]
    chain: list[bytes | None]
    signature: list[bytes | None]
    body: list[bytes | None]
    created_at: list[int]

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        return cls(**{name: table.column(name).to_pylist() for name in CHAIN_COLUMNS})


def segment_links(
    listed: ArchiveManifest,
    keys: Mapping[str, tuple[bytes, ...]],
    seen: SeenHeads,
) -> Iterator[SegmentLink]:
    """The segments of one node in order, each with the end of the one before."""
    first_seqs = {known.id: known.first_seq for known in listed.incarnations}
    ends: dict[str, tuple[int, bytes]] = {}
    for segment in listed.segments:
        incarnation = segment.incarnation
        if incarnation in ends:
            after, chain = ends[incarnation]
        else:
            after = segment.first - 1
            begins = segment.first == first_seqs.get(incarnation)
            chain = genesis_chain(listed.node, incarnation) if begins else b""
        yield SegmentLink(
            listed.node,
            incarnation,
            f"{manifest.node_folder(listed.node)}/{segment.path}",
            segment.sha256,
            segment.bytes,
            segment.rows,
            segment.first,
            segment.last,
            segment.min_created_at,
            segment.max_created_at,
            after,
            chain or None,
            segment.chain,
            keys[listed.node],
            tuple(
                (each.head.seq, bytes.fromhex(each.head.chain), each.by)
                for each in seen.get((listed.node, incarnation), ())
                if each.head.chain and segment.first <= each.head.seq <= segment.last
            ),
        )
        ends[incarnation] = segment.last, bytes.fromhex(segment.chain)


def check_chain(link: SegmentLink, rows: ChainRows) -> Iterator[ChainViolation]:
    """All violations in the chain of a segment, which must have rows."""
    yield from _check_bodies(rows)
    yield from _check_groups(link, rows)
    yield from _check_seen_chains(link, rows)


def _check_bodies(rows: ChainRows) -> Iterator[ChainViolation]:
    for row, body in enumerate(rows.body):
        if body is not None and sha256(body).digest() != rows.digest[row]:
            yield ChainViolation(
                "altered_event",
                rows.seq[row],
                rows.created_at[row],
                "the event's bytes do not have its digest",
            )


def _check_groups(link: SegmentLink, rows: ChainRows) -> Iterator[ChainViolation]:
    """Check group by group, head to head. After a gap the chain resumes at the next head."""
    after, chain, start = link.after, link.chain, 0
    heads = [row for row, chain in enumerate(rows.chain) if chain is not None]
    for end in heads:
        group = range(start, end + 1)
        gaps = list(_find_gaps(after, [rows.seq[row] for row in group], rows.created_at[start]))
        yield from gaps
        yield from _check_signature(link, rows, end)
        head = rows.chain[end] or b""
        known = chain is not None and not gaps
        if known and extend_chain(chain or b"", (rows.digest[row] for row in group)) != head:
            yield ChainViolation(
                "chain_fork",
                rows.seq[end],
                rows.created_at[end],
                f"the group {rows.seq[start]} to {rows.seq[end]} does not continue"
                " the chain of the events before it",
            )
        after, chain, start = rows.seq[end], head, end + 1
    if start < len(rows.seq):
        yield ChainViolation(
            "bad_signature",
            rows.seq[-1],
            rows.created_at[-1],
            f"no signed head covers {rows.seq[start]} to {rows.seq[-1]}",
        )
    elif (chain or b"").hex() != link.last_chain:
        yield ChainViolation(
            "chain_fork",
            rows.seq[-1],
            rows.created_at[-1],
            "the manifest lists another chain for the end of this segment",
        )


def _check_seen_chains(link: SegmentLink, rows: ChainRows) -> Iterator[ChainViolation]:
    """Compare the archived chain with the one that other gateways saw at the same event."""
    archived = dict(zip(rows.seq, rows.chain, strict=True))
    for seq, chain, gateway in link.seen:
        if archived.get(seq) is not None and archived[seq] != chain:
            detail = f"{gateway} saw another chain up to this event"
            yield ChainViolation("chain_fork", seq, None, detail)


def _find_gaps(after: int, seqs: Sequence[int], at: int) -> Iterator[ChainViolation]:
    expected = after + 1
    for seq in seqs:
        if seq != expected:
            detail = f"{expected} to {seq - 1} are missing" if seq > expected else "numbers go back"
            yield ChainViolation("chain_gap", min(expected, seq), at, detail)
        expected = seq + 1


def _check_signature(link: SegmentLink, rows: ChainRows, end: int) -> Iterable[ChainViolation]:
    head = ChainHead(
        link.node,
        link.incarnation,
        rows.group_first[end] or 0,
        rows.seq[end],
        rows.chain[end] or b"",
        rows.signature[end] or b"",
    )
    for key in link.keys:
        try:
            verify_head(head, key)
        except ChainError:
            continue
        return ()
    detail = f"the head over {head.first} to {head.last} is not signed by the node's key"
    return (ChainViolation("bad_signature", head.last, rows.created_at[end], detail),)
