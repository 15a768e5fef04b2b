"""The writer of one node's archive: it numbers, chains and signs events, and writes segments."""

from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost.archive import manifest, segment_encoding
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.events import extend_chain, format_event_id, genesis_chain, sign_head
from gatepost.pipeline.synth.event_records import (
    KIND_INDEX,
    KINDS,
    RECORD_TYPE,
    STEP_BITS,
    TEMPLATES,
    Records,
    record_times,
)
from gatepost.pipeline.synth.mesh import DAY, START, IntArray, SyntheticMesh
from gatepost.pipeline.synth.record_encoder import (
    RecordEncoder,
    event_table,
    fixed_width_binaries,
    id_texts,
)

MIN_GROUP_SIZE, MAX_GROUP_SIZE = 64, 512


class MarkedEvent(Struct, rename="camel"):
    """A planted event and its position in the archive."""

    mark: int
    node: str
    incarnation: str
    seq: int
    event_id: str
    kind: str
    # First and last seq of its commit group.
    group_first: int
    group_last: int


class ChainTampering(Struct):
    """The marks of events at which the chain itself is to be broken; -1 is none."""

    gap: int = -1
    fork: int = -1
    signature: int = -1


class WrittenNode(Struct, rename="camel"):
    """The content of one node's archive."""

    node: str
    events: int
    kinds: dict[str, int]
    marked: list[MarkedEvent]
    # The end of its outbox: incarnation, seq, time and chain.
    incarnation: str
    last_seq: int
    last_at: int
    chain: str


class NodeArchiveWriter:
    """Writes the archive of one node, segment by segment."""

    def __init__(
        self,
        mesh: SyntheticMesh,
        node: int,
        store: ArchiveStore,
        segment_rows: int,
        bodies: bool,
        tampering: ChainTampering,
    ) -> None:
        self._mesh = mesh
        self._node = node
        self._name = mesh.nodes[node]
        self._store = store
        self._segment_rows = segment_rows
        self._bodies = bodies
        self._tampering = tampering
        self._encoder = RecordEncoder(mesh, node)
        self._rng = np.random.default_rng([mesh.seed, 5, node])
        self._incarnation_number = 0
        self._seq = 0
        self._chain = b""
        self._last_seq_to = np.zeros(len(mesh.nodes) + 1, dtype=np.int64)
        self._pending_rows: list[Records] = []
        self._manifest = ArchiveManifest(node=self._name, public_key=mesh.keys[node].public)
        self._kind_counts = np.zeros(len(KINDS), dtype=np.int64)
        self._marked: list[MarkedEvent] = []
        self._begin_incarnation()

    def add_rows(self, rows: Records) -> None:
        """Add events in order, all later than those added before."""
        self._pending_rows.append(rows)
        if sum(map(len, self._pending_rows)) >= self._segment_rows:
            self._write_segments(final=False)

    def finish(self) -> WrittenNode:
        self._write_segments(final=True)
        manifest.write_manifest(
            self._store, manifest.sign_manifest(self._manifest, self._mesh.keys[self._node])
        )
        kinds = {kind: int(n) for kind, n in zip(KINDS, self._kind_counts, strict=True) if n}
        last = self._manifest.segments[-1] if self._manifest.segments else None
        return WrittenNode(
            self._name,
            int(self._kind_counts.sum()),
            kinds,
            self._marked,
            self._incarnation,
            last.last if last else 0,
            last.max_created_at if last else 0,
            last.chain if last else "",
        )

    def _write_segments(self, final: bool) -> None:
        rows = (
            np.concatenate(self._pending_rows) if self._pending_rows else np.zeros(0, RECORD_TYPE)
        )
        while len(rows):
            end, complete = self._find_segment_end(rows)
            if not (complete or final):
                break
            self._write_segment(rows[:end])
            rows = rows[end:]
        self._pending_rows = [rows]

    def _find_segment_end(self, rows: Records) -> tuple[int, bool]:
        """The end of the segment that begins with `rows`, and whether it is complete.

        A segment ends at midnight, at a new incarnation, or when it is full.
        """
        borders = [(int(rows["key"][0] >> STEP_BITS) + START) // DAY * DAY + DAY - START]
        if self._node == self._mesh.restored_node and not self._incarnation_number:
            if record_times(rows[:1])[0] >= self._mesh.restored_at:
                self._incarnation_number = 1
                self._begin_incarnation()
            else:
                borders.append(self._mesh.restored_at)
        border = int(np.searchsorted(rows["key"], min(borders) << STEP_BITS))
        return min(border, self._segment_rows), border < len(rows) or len(
            rows
        ) >= self._segment_rows

    def _begin_incarnation(self) -> None:
        self._incarnation = self._mesh.incarnation_id(self._node, self._incarnation_number)
        self._chain = genesis_chain(self._name, self._incarnation)
        self._first_seq = self._seq + 1

    def _write_segment(self, rows: Records) -> None:
        seqs = self._seq + 1 + np.arange(len(rows))
        self._seq += len(rows)
        previous = self._previous_seqs(rows, seqs)
        corr = id_texts(rows["corr"])
        bodies, sizes = self._encoder.encode_bodies(rows, seqs, previous, corr)
        digests = _event_digests(bodies)
        columns = self._encoder.event_columns(rows, seqs, previous, sizes, corr)
        columns["incarnation"] = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(len(rows), dtype=np.int32)), pa.array([self._incarnation])
        )
        columns["digest"] = fixed_width_binaries(digests, 32)
        columns["body"] = (
            bodies.cast(pa.binary()) if self._bodies else pa.nulls(len(rows), "binary")
        )
        columns |= self._sign_groups(rows, seqs, digests)
        self._store_segment(rows, event_table(columns))

    def _store_segment(self, rows: Records, events: pa.Table) -> None:
        kept = rows["mark"] != self._tampering.gap
        if not kept.all():
            rows, events = rows[kept], events.filter(pa.array(kept))
        self._kind_counts += np.bincount(KIND_INDEX[rows["template"]], minlength=len(KINDS))
        first, last = (events.column("seq")[place].as_py() for place in (0, -1))
        content = segment_encoding.encode_parquet(events)
        now = events.column("created_at")[-1].as_py() + 60_000
        segment = segment_encoding.describe_segment(events, content, first, last, now)
        self._store.write_file(f"{manifest.node_folder(self._name)}/{segment.path}", content)
        self._manifest = manifest.append_segment(self._manifest, segment, self._first_seq)

    def _previous_seqs(self, rows: Records, seqs: IntArray) -> IntArray:
        """The seq of the previous event for the same node; 0 for events that stay on this node."""
        to = rows["to_node"].astype(np.int64)
        to = np.where(to == self._node + 1, 0, to)
        by_node = np.argsort(to, kind="stable")
        sorted_to, sorted_seqs = to[by_node], seqs[by_node]
        before = np.empty_like(sorted_seqs)
        before[1:] = sorted_seqs[:-1]
        new = np.ones(len(to), dtype=bool)
        new[1:] = sorted_to[1:] != sorted_to[:-1]
        before[new] = self._last_seq_to[sorted_to[new]]
        last = np.append(np.flatnonzero(new)[1:], len(to)) - 1
        self._last_seq_to[sorted_to[last]] = sorted_seqs[last]
        previous = np.empty_like(before)
        previous[by_node] = before
        return np.where(to == 0, 0, previous)

    def _sign_groups(
        self, rows: Records, seqs: IntArray, digests: list[bytes]
    ) -> dict[str, pa.Array]:
        ends = self._group_ends(rows)
        firsts = np.append(0, ends[:-1] + 1)
        chains, signatures = [], []
        for first, last in zip(firsts.tolist(), ends.tolist(), strict=True):
            group = slice(first, last + 1)
            chain, signature = self._sign_group(rows[group], int(seqs[first]), digests[group])
            chains.append(chain)
            signatures.append(signature)
        index = np.full(len(rows), -1, dtype=np.int64)
        index[ends] = np.arange(len(ends))
        places = pa.array(index, mask=index < 0)
        self._note_marked_events(rows, seqs, firsts, ends)
        return {
            "group_first": pa.array(seqs[firsts]).take(places),
            "chain": pa.array(chains, pa.binary()).take(places),
            "signature": pa.array(signatures, pa.binary()).take(places),
        }

    def _sign_group(self, rows: Records, first: int, digests: list[bytes]) -> tuple[bytes, bytes]:
        marks = set(rows["mark"].tolist()) - {0}
        if self._tampering.fork in marks:
            self._chain = sha256(b"another past" + self._chain).digest()
        head = sign_head(
            self._mesh.keys[self._node],
            node=self._name,
            incarnation=self._incarnation,
            first=first,
            last=first + len(rows) - 1,
            chain=extend_chain(self._chain, digests),
        )
        self._chain = head.chain
        if self._tampering.signature in marks:
            return head.chain, bytes(b ^ 1 for b in head.signature)
        return head.chain, head.signature

    def _group_ends(self, rows: Records) -> IntArray:
        """The last rows of commit groups: by size, and around events that are to be missing."""
        sizes = self._rng.integers(
            MIN_GROUP_SIZE, MAX_GROUP_SIZE + 1, len(rows) // MIN_GROUP_SIZE + 1
        )
        ends = np.cumsum(sizes) - 1
        missing = np.flatnonzero(rows["mark"] == self._tampering.gap)
        around = np.concatenate((missing - 1, missing[-1:]))
        ends = np.concatenate((ends, around, [len(rows) - 1]))
        inside = (ends >= 0) & (ends < len(rows)) & ~np.isin(ends, missing[:-1])
        return np.unique(ends[inside])

    def _note_marked_events(
        self, rows: Records, seqs: IntArray, firsts: IntArray, ends: IntArray
    ) -> None:
        for place in np.flatnonzero(rows["mark"]).tolist():
            row: Any = rows[place]
            group = int(np.searchsorted(ends, place))
            self._marked.append(
                MarkedEvent(
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


def _event_digests(bodies: pa.Array) -> list[bytes]:
    """SHA-256 of every event, read directly from their shared buffer."""
    _, offsets, data = bodies.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[: len(bodies) + 1].tolist()
    view = memoryview(data)
    return [sha256(view[start:end]).digest() for start, end in pairwise(places)]
