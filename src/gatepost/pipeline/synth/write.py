"""One node's outbox on its way into the archive: numbered, chained, signed, cut into segments."""

from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost.archive import manifest, segments
from gatepost.archive.manifest import Manifest
from gatepost.archive.store import Store
from gatepost.events import extend, format_event_id, genesis, sign_head
from gatepost.pipeline.synth.encode import Encoder, binaries, id_texts, table
from gatepost.pipeline.synth.records import (
    KIND_OF,
    KINDS,
    RECORD,
    STEPS,
    TEMPLATES,
    Records,
    times_of,
)
from gatepost.pipeline.synth.world import DAY, START, Ints, World

GROUP_MIN, GROUP_MAX = 64, 512


class Marked(Struct, rename="camel"):
    """A planted event, where it came to lie."""

    mark: int
    node: str
    incarnation: str
    seq: int
    event_id: str
    kind: str
    # The commit group it is in.
    group_first: int
    group_last: int


class Tampering(Struct):
    """Which marks mean that the chain itself is to be broken."""

    gap: int = -1
    fork: int = -1
    signature: int = -1


class Written(Struct, rename="camel"):
    """What one node's archive holds."""

    node: str
    events: int
    kinds: dict[str, int]
    marked: list[Marked]


class NodeWriter:
    def __init__(
        self,
        world: World,
        node: int,
        store: Store,
        segment_rows: int,
        bodies: bool,
        tampering: Tampering,
    ) -> None:
        self._world = world
        self._node = node
        self._name = world.nodes[node]
        self._store = store
        self._rows = segment_rows
        self._bodies = bodies
        self._tampering = tampering
        self._encoder = Encoder(world, node)
        self._rng = np.random.default_rng([world.seed, 5, node])
        self._life = 0
        self._seq = 0
        self._chain = b""
        self._last_to = np.zeros(len(world.nodes) + 1, dtype=np.int64)
        self._waiting: list[Records] = []
        self._manifest = Manifest(node=self._name, public_key=world.keys[node].public)
        self._kinds = np.zeros(len(KINDS), dtype=np.int64)
        self._marked: list[Marked] = []
        self._begin_life()

    def add(self, rows: Records) -> None:
        """Events in order, all later than those before."""
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= self._rows:
            self._write_full(final=False)

    def finish(self) -> Written:
        self._write_full(final=True)
        manifest.write(self._store, manifest.sign(self._manifest, self._world.keys[self._node]))
        kinds = {kind: int(n) for kind, n in zip(KINDS, self._kinds, strict=True) if n}
        return Written(self._name, int(self._kinds.sum()), kinds, self._marked)

    def _write_full(self, final: bool) -> None:
        rows = np.concatenate(self._waiting) if self._waiting else np.zeros(0, RECORD)
        while len(rows):
            end, complete = self._cut(rows)
            if not (complete or final):
                break
            self._segment(rows[:end])
            rows = rows[end:]
        self._waiting = [rows]

    def _cut(self, rows: Records) -> tuple[int, bool]:
        """Where a segment that begins here ends, and whether it can grow no more."""
        borders = [(int(rows["key"][0] >> STEPS) + START) // DAY * DAY + DAY - START]
        if self._node == self._world.restored and not self._life:
            if times_of(rows[:1])[0] >= self._world.restored_at:
                self._life = 1
                self._begin_life()
            else:
                borders.append(self._world.restored_at)
        border = int(np.searchsorted(rows["key"], min(borders) << STEPS))
        return min(border, self._rows), border < len(rows) or len(rows) >= self._rows

    def _begin_life(self) -> None:
        self._incarnation = self._world.incarnation(self._node, self._life)
        self._chain = genesis(self._name, self._incarnation)
        self._first_seq = self._seq + 1

    def _segment(self, rows: Records) -> None:
        seqs = self._seq + 1 + np.arange(len(rows))
        self._seq += len(rows)
        previous = self._previous(rows, seqs)
        corr = id_texts(rows["corr"])
        bodies, sizes = self._encoder.bodies(rows, seqs, previous, corr)
        digests = _digests(bodies)
        columns = self._encoder.columns(rows, seqs, previous, sizes, corr)
        columns["incarnation"] = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(len(rows), dtype=np.int32)), pa.array([self._incarnation])
        )
        columns["digest"] = binaries(digests, 32)
        columns["body"] = (
            bodies.cast(pa.binary()) if self._bodies else pa.nulls(len(rows), "binary")
        )
        columns |= self._heads(rows, seqs, digests)
        self._store_segment(rows, table(columns))

    def _store_segment(self, rows: Records, events: pa.Table) -> None:
        kept = rows["mark"] != self._tampering.gap
        if not kept.all():
            rows, events = rows[kept], events.filter(pa.array(kept))
        self._kinds += np.bincount(KIND_OF[rows["template"]], minlength=len(KINDS))
        first, last = (events.column("seq")[place].as_py() for place in (0, -1))
        content = segments.to_parquet(events)
        now = events.column("created_at")[-1].as_py() + 60_000
        segment = segments.describe(events, content, first, last, now)
        self._store.write(f"{manifest.folder_of(self._name)}/{segment.path}", content)
        self._manifest = manifest.extended(self._manifest, segment, self._first_seq)

    def _previous(self, rows: Records, seqs: Ints) -> Ints:
        """The seq of the previous event for the same node; what stays here has none."""
        to = rows["to_node"].astype(np.int64)
        to = np.where(to == self._node + 1, 0, to)
        by_node = np.argsort(to, kind="stable")
        sorted_to, sorted_seqs = to[by_node], seqs[by_node]
        before = np.empty_like(sorted_seqs)
        before[1:] = sorted_seqs[:-1]
        new = np.ones(len(to), dtype=bool)
        new[1:] = sorted_to[1:] != sorted_to[:-1]
        before[new] = self._last_to[sorted_to[new]]
        last = np.append(np.flatnonzero(new)[1:], len(to)) - 1
        self._last_to[sorted_to[last]] = sorted_seqs[last]
        previous = np.empty_like(before)
        previous[by_node] = before
        return np.where(to == 0, 0, previous)

    def _heads(self, rows: Records, seqs: Ints, digests: list[bytes]) -> dict[str, pa.Array]:
        ends = self._group_ends(rows)
        firsts = np.append(0, ends[:-1] + 1)
        chains, signatures = [], []
        for first, last in zip(firsts.tolist(), ends.tolist(), strict=True):
            group = slice(first, last + 1)
            chain, signature = self._head(rows[group], int(seqs[first]), digests[group])
            chains.append(chain)
            signatures.append(signature)
        index = np.full(len(rows), -1, dtype=np.int64)
        index[ends] = np.arange(len(ends))
        places = pa.array(index, mask=index < 0)
        self._note(rows, seqs, firsts, ends)
        return {
            "group_first": pa.array(seqs[firsts]).take(places),
            "chain": pa.array(chains, pa.binary()).take(places),
            "signature": pa.array(signatures, pa.binary()).take(places),
        }

    def _head(self, rows: Records, first: int, digests: list[bytes]) -> tuple[bytes, bytes]:
        marks = set(rows["mark"].tolist()) - {0}
        if self._tampering.fork in marks:
            self._chain = sha256(b"another past" + self._chain).digest()
        head = sign_head(
            self._world.keys[self._node],
            node=self._name,
            incarnation=self._incarnation,
            first=first,
            last=first + len(rows) - 1,
            chain=extend(self._chain, digests),
        )
        self._chain = head.chain
        if self._tampering.signature in marks:
            return head.chain, bytes(b ^ 1 for b in head.signature)
        return head.chain, head.signature

    def _group_ends(self, rows: Records) -> Ints:
        """Where commit groups end: by size, and around what is to be missing."""
        sizes = self._rng.integers(GROUP_MIN, GROUP_MAX + 1, len(rows) // GROUP_MIN + 1)
        ends = np.cumsum(sizes) - 1
        missing = np.flatnonzero(rows["mark"] == self._tampering.gap)
        around = np.concatenate((missing - 1, missing[-1:]))
        ends = np.concatenate((ends, around, [len(rows) - 1]))
        inside = (ends >= 0) & (ends < len(rows)) & ~np.isin(ends, missing[:-1])
        return np.unique(ends[inside])

    def _note(self, rows: Records, seqs: Ints, firsts: Ints, ends: Ints) -> None:
        for place in np.flatnonzero(rows["mark"]).tolist():
            row: Any = rows[place]
            group = int(np.searchsorted(ends, place))
            self._marked.append(
                Marked(
                    int(row["mark"]),
                    self._name,
                    self._incarnation,
                    int(seqs[place]),
                    format_event_id(row["id"].astype(">u8").tobytes()),
                    TEMPLATES[row["template"]].kind,
                    int(seqs[firsts[group]]),
                    int(seqs[ends[group]]),
                )
            )


def _digests(bodies: pa.Array) -> list[bytes]:
    """SHA-256 of every event, straight from the one buffer they lie in."""
    _, offsets, data = bodies.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[: len(bodies) + 1].tolist()
    view = memoryview(data)
    return [sha256(view[start:end]).digest() for start, end in pairwise(places)]
