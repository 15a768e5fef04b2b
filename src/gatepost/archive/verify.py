"""Verifies that an archive is complete and genuine, from its files alone and without Spark."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from hashlib import sha256
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from gatepost.archive import manifest, room_facts
from gatepost.archive.manifest import Manifest, Segment
from gatepost.archive.store import Store
from gatepost.errors import ArchiveError, ChainError
from gatepost.events import ChainHead, extend_chain, genesis_chain, verify_head

_COLUMNS: Final = ["seq", "incarnation", "digest", "group_first", "chain", "signature", "body"]

# Receives the number of events checked since its last call.
Progress = Callable[[int], None]


class Rule(StrEnum):
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


class Finding(Struct, frozen=True, kw_only=True):
    """One broken rule and its location."""

    rule: Rule
    node: str
    incarnation: str | None = None
    seq: int | None = None
    detail: str


def verify(store: Store, progress: Progress | None = None) -> Iterator[Finding]:
    """Check the whole archive and yield every broken rule."""
    keys, findings = _known_keys(store)
    yield from findings
    for node in manifest.nodes(store):
        try:
            listed = manifest.read(store, node)
        except ArchiveError as error:
            yield Finding(rule=Rule.MANIFEST_UNREADABLE, node=node, detail=error.message)
            continue
        if listed is None:
            yield Finding(
                rule=Rule.MANIFEST_MISSING, node=node, detail="no manifest lists its files"
            )
            continue
        yield from _check_manifest(node, listed, keys.get(node, set()))
        yield from _Outbox(store, node, listed, progress or _ignore).check()


def _ignore(count: int) -> None:
    """Discard progress reports."""


def _known_keys(store: Store) -> tuple[dict[str, set[bytes]], list[Finding]]:
    """The public keys of each node according to all gateways' room facts, and broken facts."""
    try:
        every = room_facts.read_all(store)
    except ArchiveError as error:
        found = Finding(rule=Rule.FACTS_UNREADABLE, node="", detail=error.message)
        return {}, [found]
    keys: dict[str, set[bytes]] = {}
    findings = []
    for facts in every:
        own = facts.key_of(facts.node)
        if own is None or not room_facts.is_signed(facts, own):
            why = "its room facts are not signed with its key"
            findings.append(Finding(rule=Rule.FACTS_SIGNATURE, node=facts.node, detail=why))
            continue
        known = [(fact.node, fact.public_key) for fact in facts.revocations]
        for name, key in [*known, *((fact.id, fact.public_key) for fact in facts.nodes)]:
            keys.setdefault(name, set()).add(key)
    return keys, findings


def _check_manifest(node: str, listed: Manifest, keys: set[bytes]) -> Iterator[Finding]:
    if not manifest.is_signed(listed) or listed.node != node:
        yield Finding(
            rule=Rule.MANIFEST_SIGNATURE, node=node, detail="the manifest is not signed by its node"
        )
    if keys and listed.public_key not in keys:
        yield Finding(
            rule=Rule.WRONG_KEY, node=node, detail="other gateways know this node by another key"
        )


class _Outbox:
    """Checks one node's segments in order, from the genesis of each incarnation."""

    def __init__(self, store: Store, node: str, listed: Manifest, progress: Progress) -> None:
        self._store = store
        self._node = node
        self._listed = listed
        self._progress = progress
        self._incarnation = ""
        self._next = 0
        self._chain = b""

    def check(self) -> Iterator[Finding]:
        for segment in self._listed.segments:
            yield from self._segment(segment)
            self._progress(segment.rows)

    def _segment(self, segment: Segment) -> Iterator[Finding]:
        if segment.incarnation != self._incarnation:
            self._begin(segment)
        content = self._store.read(f"{manifest.folder_of(self._node)}/{segment.path}")
        events, problem = _read(segment, content)
        if problem is not None:
            rule, detail = problem
            yield self._finding(rule, segment.first, f"{segment.path}: {detail}")
        if events is None:
            self._next, self._chain = segment.last + 1, bytes.fromhex(segment.chain)
            return
        yield from self._events(segment, events)

    def _begin(self, segment: Segment) -> None:
        """Start the hash chain of a new incarnation."""
        starts = {each.id: each.first_seq for each in self._listed.incarnations}
        self._incarnation = segment.incarnation
        self._next = starts.get(segment.incarnation, 1)
        self._chain = genesis_chain(self._node, segment.incarnation)

    def _events(self, segment: Segment, events: pa.Table) -> Iterator[Finding]:
        columns = {name: events.column(name).to_pylist() for name in _COLUMNS}
        yield from self._bodies(columns["seq"], columns["digest"], columns["body"])
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
                columns["chain"][end],
                columns["signature"][end],
            )
            yield from self._group(head, columns["seq"][start : end + 1], digests)
            start = end + 1
        if start < events.num_rows:
            why = "no signed head covers the events at the end of a segment"
            yield self._finding(Rule.OPEN_GROUP, columns["seq"][start], why)
        if not self._fits(segment, columns["seq"]):
            why = f"{segment.path}: its events differ from the manifest"
            yield self._finding(Rule.SEGMENT_MISLABELLED, segment.first, why)

    def _fits(self, segment: Segment, seqs: list[int]) -> bool:
        listed = (segment.rows, segment.first, segment.last, segment.chain)
        return bool(seqs) and listed == (len(seqs), seqs[0], seqs[-1], self._chain.hex())

    def _bodies(
        self, seqs: list[int], digests: list[bytes], bodies: list[bytes | None]
    ) -> Iterator[Finding]:
        for seq, digest, body in zip(seqs, digests, bodies, strict=True):
            if body is not None and sha256(body).digest() != digest:
                yield self._finding(Rule.BODY_CHANGED, seq, "its body does not match its digest")

    def _group(self, head: ChainHead, seqs: list[int], digests: list[bytes]) -> Iterator[Finding]:
        if missing := self._missing(head, seqs):
            first, last = missing
            yield self._finding(Rule.CHAIN_GAP, first, f"seq {first} to {last} are missing")
        elif not self._continues(head, seqs, digests):
            why = f"seq {seqs[0]} to {head.last} do not continue the chain before them"
            yield self._finding(Rule.CHAIN_FORK, seqs[0], why)
        elif head.first != seqs[0]:
            why = f"no signed head covers seq {seqs[0]} to {head.first - 1}"
            yield self._finding(Rule.OPEN_GROUP, seqs[0], why)
        try:
            verify_head(head, self._listed.public_key)
        except ChainError as error:
            yield self._finding(Rule.BAD_SIGNATURE, head.last, error.message)
        self._next, self._chain = head.last + 1, head.chain

    def _continues(self, head: ChainHead, seqs: list[int], digests: list[bytes]) -> bool:
        if seqs != list(range(self._next, head.last + 1)):
            return False
        return extend_chain(self._chain, digests) == head.chain

    def _missing(self, head: ChainHead, seqs: list[int]) -> tuple[int, int] | None:
        """The first and last missing seq; None if none is missing."""
        present = set(seqs)
        missing = [seq for seq in range(self._next, head.last) if seq not in present]
        return (missing[0], missing[-1]) if missing else None

    def _finding(self, rule: Rule, seq: int, detail: str) -> Finding:
        return Finding(
            rule=rule, node=self._node, incarnation=self._incarnation, seq=seq, detail=detail
        )


def _read(
    segment: Segment, content: bytes | None
) -> tuple[pa.Table | None, tuple[Rule, str] | None]:
    """Read the events of a file, None if unreadable, and the rule it breaks, if any."""
    if content is None:
        return None, (Rule.SEGMENT_MISSING, "the file is missing")
    changed = None
    if manifest.digest(content) != segment.sha256 or len(content) != segment.bytes:
        changed = (Rule.SEGMENT_CHANGED, "the file is not the one that was archived")
    try:
        return pq.read_table(pa.BufferReader(content), columns=_COLUMNS), changed
    except (pa.ArrowException, OSError, KeyError) as error:
        return None, changed or (Rule.SEGMENT_UNREADABLE, str(error))
