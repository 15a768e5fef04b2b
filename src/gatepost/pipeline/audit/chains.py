"""Hash chains and signatures of all segments, checked in parallel.

A segment ends with a signed head, and the manifest says which; so each segment is checked on its
own, from the chain the one before it ended in.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from gatepost.archive import manifest
from gatepost.archive.manifest import Manifest
from gatepost.archive.store import Store
from gatepost.errors import ChainError
from gatepost.events.chain import Head, extend, genesis, verify_head

_COLUMNS = ["seq", "digest", "group_first", "chain", "signature", "body", "created_at"]
FOUND = "rule string, node string, incarnation string, seq bigint, at bigint, detail string"


class Link(Struct, frozen=True):
    """One segment, and where the one before it ended; `chain` is None if nobody knows."""

    root: str
    node: str
    incarnation: str
    path: str
    sha256: str
    after: int
    chain: bytes | None
    last_chain: str
    keys: tuple[bytes, ...]


class Found(Struct, frozen=True):
    rule: str
    seq: int | None
    at: int | None
    detail: str


class Rows(Struct, frozen=True):
    """What of a segment its chain is made of."""

    seq: list[int]
    digest: list[bytes]
    group_first: list[int | None]
    chain: list[bytes | None]
    signature: list[bytes | None]
    body: list[bytes | None]
    created_at: list[int]


def check(
    spark: SparkSession, root: str, listed: Sequence[Manifest], keys: dict[str, tuple[bytes, ...]]
) -> DataFrame:
    """All violations of chains and signatures in the archive."""
    links = [link for node in listed for link in links_of(root, node, keys)]
    data = [(msgspec.msgpack.encode(link),) for link in links]
    slots = max(1, min(len(data), 4 * spark.sparkContext.defaultParallelism))
    frame = spark.createDataFrame(data, "link binary").repartition(slots)
    return frame.mapInArrow(_checked, FOUND)


def links_of(root: str, listed: Manifest, keys: dict[str, tuple[bytes, ...]]) -> Iterator[Link]:
    """The segments of one node in order, each with the end of the one before."""
    firsts = {life.id: life.first_seq for life in listed.incarnations}
    ends: dict[str, tuple[int, bytes]] = {}
    for segment in listed.segments:
        life = segment.incarnation
        if life in ends:
            after, chain = ends[life]
        else:
            after = segment.first - 1
            begins = segment.first == firsts.get(life)
            chain = genesis(listed.node, life) if begins else b""
        yield Link(
            root,
            listed.node,
            life,
            f"{manifest.folder_of(listed.node)}/{segment.path}",
            segment.sha256,
            after,
            chain or None,
            segment.chain,
            keys[listed.node],
        )
        ends[life] = segment.last, bytes.fromhex(segment.chain)


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for data in batch.column(0).to_pylist():
            link = msgspec.msgpack.decode(data, type=Link)
            found = [
                (f.rule, link.node, link.incarnation, f.seq, f.at, f.detail)
                for f in check_segment(link)
            ]
            yield _batch(found)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    names = [column.split(" ")[0] for column in FOUND.split(", ")]
    types = [pa.int64() if c.endswith("bigint") else pa.string() for c in FOUND.split(", ")]
    columns = zip(*rows, strict=True) if rows else [[] for _ in names]
    arrays = [pa.array(list(c), t) for c, t in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def check_segment(link: Link) -> Iterator[Found]:
    content = Store.open(link.root).read(link.path)
    if content is None:
        yield Found("chain_gap", link.after + 1, None, f"the listed file {link.path} is missing")
        return
    if sha256(content).hexdigest() != link.sha256:
        yield Found("altered_segment", None, None, f"{link.path} has another SHA-256 than listed")
    try:
        rows = _read(content)
    except (pa.ArrowException, OSError, KeyError) as error:
        yield Found("altered_segment", None, None, f"{link.path} cannot be read: {error}")
        return
    yield from _bodies(rows)
    yield from _groups(link, rows)


def _read(content: bytes) -> Rows:
    table = pq.read_table(pa.BufferReader(content), columns=_COLUMNS)
    return Rows(**{name: table.column(name).to_pylist() for name in _COLUMNS})


def _bodies(rows: Rows) -> Iterator[Found]:
    for place, body in enumerate(rows.body):
        if body is not None and sha256(body).digest() != rows.digest[place]:
            yield Found(
                "altered_event",
                rows.seq[place],
                rows.created_at[place],
                "the event's bytes do not have its digest",
            )


def _groups(link: Link, rows: Rows) -> Iterator[Found]:
    """Walk from head to head. After a gap the chain is taken up again at the next head."""
    after, chain, start = link.after, link.chain, 0
    heads = [place for place, chain in enumerate(rows.chain) if chain is not None]
    for place in heads:
        group = range(start, place + 1)
        gaps = list(_gaps(after, [rows.seq[p] for p in group], rows.created_at[start]))
        yield from gaps
        yield from _signature(link, rows, place)
        head = rows.chain[place] or b""
        known = chain is not None and not gaps
        if known and extend(chain or b"", (rows.digest[p] for p in group)) != head:
            yield Found(
                "chain_fork",
                rows.seq[place],
                rows.created_at[place],
                f"the group {rows.seq[start]} to {rows.seq[place]} continues"
                " another past than the events before it",
            )
        after, chain, start = rows.seq[place], head, place + 1
    if start < len(rows.seq):
        yield Found(
            "bad_signature",
            rows.seq[-1],
            rows.created_at[-1],
            f"no signed head covers {rows.seq[start]} to {rows.seq[-1]}",
        )
    elif (chain or b"").hex() != link.last_chain:
        yield Found(
            "chain_fork",
            rows.seq[-1],
            rows.created_at[-1],
            "the manifest lists another chain for the end of this segment",
        )


def _gaps(after: int, seqs: Sequence[int], at: int) -> Iterator[Found]:
    expected = after + 1
    for seq in seqs:
        if seq != expected:
            detail = f"{expected} to {seq - 1} are missing" if seq > expected else "numbers go back"
            yield Found("chain_gap", min(expected, seq), at, detail)
        expected = seq + 1


def _signature(link: Link, rows: Rows, place: int) -> Iterable[Found]:
    head = Head(
        link.node,
        link.incarnation,
        rows.group_first[place] or 0,
        rows.seq[place],
        rows.chain[place] or b"",
        rows.signature[place] or b"",
    )
    for key in link.keys:
        try:
            verify_head(head, key)
        except ChainError:
            continue
        return ()
    detail = f"the head over {head.first} to {head.last} is not signed by the node's key"
    return (Found("bad_signature", head.last, rows.created_at[place], detail),)
