"""Verifies that an archive is complete and genuine, from its files alone and without Spark."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from typing import Final

import pyarrow as pa
from msgspec import Struct

from gatepost.archive import manifest, room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest, ArchiveSegment
from gatepost.archive.room_facts import RoomFacts
from gatepost.archive.segment_table import read_segment_table
from gatepost.archive.witnessed_heads import WitnessedReach, find_reaches
from gatepost.errors import ArchiveError, ChainError
from gatepost.events import ChainHead, extend_chain, genesis_chain, verify_head

_READ_COLUMNS: Final = ["seq", "incarnation", "digest", "group_first", "chain", "signature", "body"]

# Receives the number of events checked since its last call.
ProgressCallback = Callable[[int], None]


class ArchiveRule(StrEnum):
    """The rules an archive must satisfy. A finding names the broken one."""

    MANIFEST_MISSING = "manifest_missing"
    MANIFEST_UNREADABLE = "manifest_unreadable"
    MANIFEST_SIGNATURE = "manifest_signature"
    WRONG_KEY = "wrong_key"
    FACTS_UNREADABLE = "facts_unreadable"
    FACTS_SIGNATURE = "facts_signature"
    SEGMENT_MISSING = "segment_missing"
    SEGMENT_CHANGED = "segment_changed"
    SEGMENT_UNREADABLE = "segment_unreadable"
    SEGMENT_MISLABELLED = "segment_mislabelled"
    CHAIN_GAP = "chain_gap"
    CHAIN_FORK = "chain_fork"
    BAD_SIGNATURE = "bad_signature"
    OPEN_GROUP = "open_group"
    BODY_CHANGED = "body_changed"
    NOT_NEWEST = "not_newest"


class ArchiveFinding(Struct, frozen=True, kw_only=True):
    """One broken rule and its location."""

    rule: ArchiveRule
    node: str
    incarnation: str | None = None
    seq: int | None = None
    detail: str


def verify_archive(
    store: ArchiveStore,
    progress: ProgressCallback | None = None,
    heads: Sequence[RoomFacts] = (),
) -> Iterator[ArchiveFinding]:
    """Check the whole archive and yield every broken rule.

    `heads` are room facts of other gateways from elsewhere: this archive may lack them.
    """
    keys, facts, findings = _known_keys(store, heads)
    yield from findings
    for reach in find_reaches(_readable_manifests(store), facts):
        if reach.missing is not None:
            yield ArchiveFinding(
                rule=ArchiveRule.NOT_NEWEST,
                node=reach.node,
                incarnation=reach.incarnation,
                seq=reach.missing[0],
                detail=reach.describe(),
            )
    for node in manifest.archived_nodes(store):
        try:
            listed = manifest.read_manifest(store, node)
        except ArchiveError as error:
            yield ArchiveFinding(
                rule=ArchiveRule.MANIFEST_UNREADABLE, node=node, detail=error.message
            )
            continue
        if listed is None:
            yield ArchiveFinding(
                rule=ArchiveRule.MANIFEST_MISSING, node=node, detail="no manifest lists its files"
            )
            continue
        yield from _check_manifest(node, listed, keys.get(node, set()))
        yield from _OutboxVerifier(
            store, node, listed, progress or _ignore_progress
        ).check_segments()


def _ignore_progress(count: int) -> None:
    """Discard progress reports."""


def verified_reaches(store: ArchiveStore, heads: Sequence[RoomFacts] = ()) -> list[WitnessedReach]:
    """The end of each archive, and how far others have read it, from signed facts."""
    _, facts, _ = _known_keys(store, heads)
    return list(find_reaches(_readable_manifests(store), facts))


def _readable_manifests(store: ArchiveStore) -> list[ArchiveManifest]:
    found = []
    for node in manifest.archived_nodes(store):
        with suppress(ArchiveError):
            found.append(manifest.read_manifest(store, node))
    return [listed for listed in found if listed is not None]


def _known_keys(
    store: ArchiveStore, heads: Sequence[RoomFacts]
) -> tuple[dict[str, set[bytes]], list[RoomFacts], list[ArchiveFinding]]:
    """The public keys of each node by all room facts; the facts that are signed, and the others."""
    findings, every = [], list(heads)
    try:
        every += room_facts.read_all_facts(store)
    except ArchiveError as error:
        found = ArchiveFinding(rule=ArchiveRule.FACTS_UNREADABLE, node="", detail=error.message)
        findings.append(found)
    keys: dict[str, set[bytes]] = {}
    believed: list[RoomFacts] = []
    for facts in every:
        own = facts.public_key_of(facts.node)
        if own is None or not room_facts.are_facts_signed(facts, own):
            why = "its room facts are not signed with its key"
            findings.append(
                ArchiveFinding(rule=ArchiveRule.FACTS_SIGNATURE, node=facts.node, detail=why)
            )
            continue
        believed.append(facts)
        known = [(fact.node, fact.public_key) for fact in facts.revocations]
        for name, key in [*known, *((fact.id, fact.public_key) for fact in facts.nodes)]:
            keys.setdefault(name, set()).add(key)
    return keys, believed, findings


def _check_manifest(
    node: str, listed: ArchiveManifest, keys: set[bytes]
) -> Iterator[ArchiveFinding]:
    if not manifest.is_manifest_signed(listed) or listed.node != node:
        yield ArchiveFinding(
            rule=ArchiveRule.MANIFEST_SIGNATURE,
            node=node,
            detail="the manifest is not signed by its node",
        )
    if keys and listed.public_key not in keys:
        yield ArchiveFinding(
            rule=ArchiveRule.WRONG_KEY,
            node=node,
            detail="other gateways know this node by another key",
        )


class _OutboxVerifier:
    """Checks one node's segments in order, from the genesis of each incarnation."""

    def __init__(
        self, store: ArchiveStore, node: str, listed: ArchiveManifest, progress: ProgressCallback
    ) -> None:
        self._store = store
        self._node = node
        self._manifest = listed
        self._progress = progress
        self._incarnation = ""
        self._next_seq = 0
        self._chain = b""

    def check_segments(self) -> Iterator[ArchiveFinding]:
        for segment in self._manifest.segments:
            yield from self._check_segment(segment)
            self._progress(segment.rows)

    def _check_segment(self, segment: ArchiveSegment) -> Iterator[ArchiveFinding]:
        if segment.incarnation != self._incarnation:
            self._start_incarnation(segment)
        content = self._store.read_file(f"{manifest.node_folder(self._node)}/{segment.path}")
        events, problem = _read_segment(segment, content)
        if problem is not None:
            rule, detail = problem
            yield self._new_finding(rule, segment.first, f"{segment.path}: {detail}")
        if events is None:
            self._next_seq, self._chain = segment.last + 1, bytes.fromhex(segment.chain)
            return
        yield from self._check_events(segment, events)

    def _start_incarnation(self, segment: ArchiveSegment) -> None:
        """Start the hash chain of a new incarnation."""
        starts = {each.id: each.first_seq for each in self._manifest.incarnations}
        self._incarnation = segment.incarnation
        self._next_seq = starts.get(segment.incarnation, 1)
        self._chain = genesis_chain(self._node, segment.incarnation)

    def _check_events(self, segment: ArchiveSegment, events: pa.Table) -> Iterator[ArchiveFinding]:
        columns = {name: events.column(name).to_pylist() for name in _READ_COLUMNS}
        yield from self._check_bodies(columns["seq"], columns["digest"], columns["body"])
        start = 0
        for end, group_first in enumerate(columns["group_first"]):
            if group_first is None:
                continue
            digests = columns["digest"][start : end + 1]
            head = ChainHead(
                self._node,
                columns["incarnation"][end],
                group_first,
                columns["seq"][end],
                columns["chain"][end] or b"",
                columns["signature"][end] or b"",
            )
            yield from self._check_group(head, columns["seq"][start : end + 1], digests)
            start = end + 1
        if start < events.num_rows:
            why = "no signed head covers the events at the end of a segment"
            yield self._new_finding(ArchiveRule.OPEN_GROUP, columns["seq"][start], why)
        if not self._matches_manifest(segment, columns["seq"]):
            why = f"{segment.path}: its events differ from the manifest"
            yield self._new_finding(ArchiveRule.SEGMENT_MISLABELLED, segment.first, why)

    def _matches_manifest(self, segment: ArchiveSegment, seqs: list[int]) -> bool:
        listed = (segment.rows, segment.first, segment.last, segment.chain)
        return bool(seqs) and listed == (len(seqs), seqs[0], seqs[-1], self._chain.hex())

    def _check_bodies(
        self, seqs: list[int], digests: list[bytes], bodies: list[bytes | None]
    ) -> Iterator[ArchiveFinding]:
        for seq, digest, body in zip(seqs, digests, bodies, strict=True):
            if body is not None and sha256(body).digest() != digest:
                yield self._new_finding(
                    ArchiveRule.BODY_CHANGED, seq, "its body does not match its digest"
                )

    def _check_group(
        self, head: ChainHead, seqs: list[int], digests: list[bytes]
    ) -> Iterator[ArchiveFinding]:
        if missing := self._missing_seqs(head, seqs):
            first, last = missing
            yield self._new_finding(
                ArchiveRule.CHAIN_GAP, first, f"seq {first} to {last} are missing"
            )
        elif not self._continues_chain(head, seqs, digests):
            why = f"seq {seqs[0]} to {head.last} do not continue the chain before them"
            yield self._new_finding(ArchiveRule.CHAIN_FORK, seqs[0], why)
        elif head.first != seqs[0]:
            why = f"no signed head covers seq {seqs[0]} to {head.first - 1}"
            yield self._new_finding(ArchiveRule.OPEN_GROUP, seqs[0], why)
        try:
            verify_head(head, self._manifest.public_key)
        except ChainError as error:
            yield self._new_finding(ArchiveRule.BAD_SIGNATURE, head.last, error.message)
        self._next_seq, self._chain = head.last + 1, head.chain

    def _continues_chain(self, head: ChainHead, seqs: list[int], digests: list[bytes]) -> bool:
        # Check the length first, so that a forged range is never enumerated.
        if head.last - self._next_seq + 1 != len(seqs):
            return False
        if seqs != list(range(self._next_seq, head.last + 1)):
            return False
        return extend_chain(self._chain, digests) == head.chain

    def _missing_seqs(self, head: ChainHead, seqs: list[int]) -> tuple[int, int] | None:
        """The first and last missing seq; None if none is missing."""
        if head.last <= self._next_seq:
            return None
        present = {seq for seq in seqs if self._next_seq <= seq < head.last}
        marks = sorted({self._next_seq - 1, *present, head.last})
        gaps = [(one + 1, other - 1) for one, other in pairwise(marks) if other - one > 1]
        return (gaps[0][0], gaps[-1][1]) if gaps else None

    def _new_finding(self, rule: ArchiveRule, seq: int, detail: str) -> ArchiveFinding:
        return ArchiveFinding(
            rule=rule, node=self._node, incarnation=self._incarnation, seq=seq, detail=detail
        )


def _read_segment(
    segment: ArchiveSegment, content: bytes | None
) -> tuple[pa.Table | None, tuple[ArchiveRule, str] | None]:
    """Read the events of a file, None if unreadable, and the rule it breaks, if any."""
    if content is None:
        return None, (ArchiveRule.SEGMENT_MISSING, "the file is missing")
    changed = None
    if manifest.content_digest(content) != segment.sha256 or len(content) != segment.bytes:
        changed = (ArchiveRule.SEGMENT_CHANGED, "the file is not the one that was archived")
    try:
        table = read_segment_table(pa.BufferReader(content), _READ_COLUMNS, segment.path)
    except ArchiveError as error:
        return None, changed or (ArchiveRule.SEGMENT_UNREADABLE, error.message)
    return table, changed
