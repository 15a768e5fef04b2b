"""Archives for tests, made by the archive's contract without a gateway."""

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gatepost.archive.manifest import decode_manifest, encode_manifest, sign_manifest
from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.errors import ArchiveError
from gatepost.events import NodeKey

DAY = 86_400_000
# 2026-01-05, a Monday, at noon.
NOON = 1_767_614_400_000

KINDS = np.array(["message", "ack", "reply", "signal"])


def write_node(
    root: Path,
    node: str,
    created_at: Sequence[int] | np.ndarray[Any, Any],
    *,
    first: int = 1,
    incarnation: str = "a1",
    segment_rows: int = 1000,
    archived_at: int = NOON,
) -> None:
    """Append events created at these times to the node's archive, and list them."""
    times = np.asarray(created_at, np.int64)
    folder = root / f"node={node}"
    folder.mkdir(parents=True, exist_ok=True)
    listed = read_manifest(root, node)["segments"] if manifest_path(root, node).exists() else []
    for start, stop in _cuts(times, segment_rows):
        entry = _segment(folder, times[start:stop], first + start, incarnation)
        listed.append(entry | {"archivedAt": archived_at})
    write_manifest(root, node, listed)


def manifest_path(root: Path, node: str) -> Path:
    return root / f"node={node}" / "_manifest.json"


def read_manifest(root: Path, node: str) -> Any:
    return json.loads(manifest_path(root, node).read_bytes())


def write_manifest(root: Path, node: str, segments: list[dict[str, Any]]) -> None:
    firsts: dict[str, int] = {}
    for entry in segments:
        firsts.setdefault(entry["incarnation"], entry["first"])
    manifest = {
        "version": 1,
        "node": node,
        "publicKey": "",
        "incarnations": [{"id": key, "firstSeq": first} for key, first in firsts.items()],
        "segments": segments,
        "archivedThrough": segments[-1]["last"] if segments else 0,
        "signature": "",
    }
    content = json.dumps(manifest).encode()
    manifest_path(root, node).write_bytes(_sign(node, content))


def _sign(node: str, content: bytes) -> bytes:
    """Signed by the node's key, unless it is no manifest at all."""
    try:
        listed = decode_manifest(content, node)
    except ArchiveError:
        return content
    key = NodeKey(hashlib.sha256(node.encode()).digest())
    return encode_manifest(sign_manifest(listed, key))


def _cuts(times: np.ndarray[Any, Any], most: int) -> Iterator[tuple[int, int]]:
    """A segment ends where it is full, the day ends or the clock goes back."""
    start = 0
    for index in range(1, len(times) + 1):
        if (
            index == len(times)
            or index - start == most
            or times[index] < times[index - 1]
            or times[index] // DAY != times[start] // DAY
        ):
            yield start, index
            start = index


def _segment(
    folder: Path, times: np.ndarray[Any, Any], first: int, incarnation: str
) -> dict[str, Any]:
    last = first + len(times) - 1
    day = datetime.fromtimestamp(int(times[0]) / 1000, UTC).date().isoformat()
    path = f"date={day}/{first:020}-{last:020}.parquet"
    target = folder / path
    target.parent.mkdir(exist_ok=True)
    pq.write_table(
        events(folder.name, times, first, incarnation),
        target,
        compression="zstd",
        row_group_size=128 * 1024,
    )
    content = target.read_bytes()
    return {
        "path": path,
        "incarnation": incarnation,
        "first": first,
        "last": last,
        "rows": len(times),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "minCreatedAt": int(times.min()),
        "maxCreatedAt": int(times.max()),
        "chain": "0" * 64,
    }


def events(salt: str, times: np.ndarray[Any, Any], first: int, incarnation: str = "a1") -> pa.Table:
    """Rows that differ from each other and are the same every time."""
    rows = len(times)
    seqs = np.arange(first, first + rows, dtype=np.int64)
    base = uuid.uuid5(uuid.NAMESPACE_OID, f"{salt}/{incarnation}").bytes[:8]
    ids = pa.array([base + int(seq).to_bytes(8, "big") for seq in seqs], pa.binary())
    zeros = np.zeros(rows, np.int32)
    given: dict[str, Any] = {
        "incarnation": np.repeat(incarnation, rows),
        "seq": seqs,
        "event_id": ids,
        "kind": KINDS[seqs % len(KINDS)],
        "source_agent": np.char.add("agent-", (seqs % 7).astype(str)),
        "to_node": np.char.add("n", (seqs % 3).astype(str)),
        "to_agent": np.char.add("agent-", (seqs % 5).astype(str)),
        "pair_seq": seqs,
        "pair_base": seqs,
        "prev_seq_to": seqs - 1,
        "corr_id": seqs.astype(str),
        "ref_id": ids,
        "created_at": times,
        "attempt": zeros + 1,
        "priority": zeros,
        "offer": zeros > 0,
        "payload_size": zeros + 286,
        "digest": pa.array([hashlib.sha256(id.as_py()).digest() for id in ids], pa.binary()),
    }
    columns = [
        pa.array(given[f.name], f.type) if f.name in given else pa.nulls(rows, f.type)
        for f in EVENT_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA)
