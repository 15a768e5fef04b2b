"""Tables on their way between the steps of an audit, and numbers that stand for texts."""

from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.columns import IdHalves, Numbers
from gatepost.pipeline.tables.arrow_schemas import arrow_schema
from gatepost.pipeline.tables.schemas import VIOLATIONS

# All columns of a violation but the sentence of its rule.
FOUND_SCHEMA: Final = pa.schema(
    [field for field in arrow_schema(VIOLATIONS) if field.name != "sentence"]
)

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_NAME = b"gatepost.block"


def encode_block(name: str, table: pa.Table) -> bytes:
    """A table with its name, as bytes."""
    named = table.replace_schema_metadata({_NAME: name.encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, named.schema, options=_OPTIONS) as stream:
        stream.write_table(named)
    return bytes(sink.getvalue())


def decode_block(block: bytes | memoryview) -> tuple[str, pa.Table]:
    with pa.ipc.open_stream(pa.py_buffer(block)) as stream:
        table = stream.read_all()
    return table.schema.metadata[_NAME].decode(), table.replace_schema_metadata(None)


def hash_text(text: str) -> int:
    """A number that differs for different texts, except for rare collisions."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def hash_texts(column: pa.ChunkedArray) -> Numbers:
    """The hash of each text; 0 for null."""
    whole = column.dictionary_encode().unify_dictionaries().combine_chunks()
    known = np.array([*map(hash_text, whole.dictionary.to_pylist()), 0], np.int64)
    found: Numbers = known[np.asarray(whole.indices.fill_null(-1))]
    return found


def mix_hashes(*columns: Numbers) -> Numbers:
    """One hash of several, row by row."""
    mixed: IdHalves = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed.astype(np.int64)


def join_ids(high: IdHalves, low: IdHalves) -> pa.Array:
    """The ids of 16 bytes from their halves."""
    halves = np.stack((high, low), axis=1).astype(">u8")
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(high), [None, pa.py_buffer(halves.tobytes())]
    )
    return fixed.cast(pa.binary())
