"""Columns of numbers, one for each row, and their conversion from Arrow.

A text is a code, which is its index in a list of words; an id is two halves.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
"""Whole numbers, times in epoch milliseconds or indexes of rows."""
Codes = NDArray[np.int32]
"""Codes of words, or small numbers."""
IdHalves = NDArray[np.uint64]
"""The first or the last eight bytes of ids."""
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Column = Numbers | Codes | IdHalves | Flags | Floats
Value = TypeVar("Value", bound=np.generic)

NONE: Final = -1
"""The code of a missing text; also the index of a missing row."""
_DAY_MS: Final = 24 * 3_600_000
ABSENT: Final = np.iinfo(np.int64).min
"""A missing number; less than any other."""


class WordCodes:
    """Assigns codes to texts, in the order they are first seen."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code_of(self, word: str) -> int:
        return self._codes.setdefault(word, len(self._codes))

    def encode_column(self, column: pa.ChunkedArray) -> Codes:
        """The column as codes."""
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        whole = column.unify_dictionaries().combine_chunks()
        known = [self.code_of(word) for word in whole.dictionary.to_pylist()]
        # NONE is -1, so a null picks the last entry.
        codes: Codes = np.array([*known, NONE], np.int32)
        found: Codes = codes[np.asarray(whole.indices.fill_null(NONE))]
        return found

    def matches_any(self, codes: Codes, words: Iterable[str]) -> Flags:
        """Whether each code is that of one of these words."""
        found: Flags = self.map_codes(codes, dict.fromkeys(words, 1)) == 1
        return found

    def map_codes(self, codes: Codes, by: Mapping[str, int]) -> Codes:
        """The value that `by` has for the word of each code, or NONE."""
        values = {self.code_of(word): value for word, value in by.items()}
        table: Codes = np.full(len(self._codes) + 1, NONE, np.int32)
        table[list(values)] = list(values.values())
        return table[codes]

    def word_array(self) -> pa.Array:
        return pa.array(self._codes, pa.string())


def drawn_at(high: IdHalves) -> Numbers:
    """The time an id carries, in epoch milliseconds."""
    return (high >> np.uint64(16)).astype(np.int64)


def split_ids(ids: pa.Array) -> tuple[IdHalves, IdHalves]:
    """Split ids of 16 bytes each into two halves, which compare as the ids do."""
    start = int(np.frombuffer(ids.buffers()[1], np.int32)[ids.offset]) if len(ids) else 0
    data = np.frombuffer(ids.buffers()[2] or b"", ">u8", 2 * len(ids), start)
    pairs = data.reshape(-1, 2).astype(np.uint64)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def is_id(ids: pa.ChunkedArray) -> Flags:
    """Whether each row has an id; rows without one make no facts."""
    return np.asarray(pc.equal(pc.binary_length(ids), 16).fill_null(False))


def is_near_id(ids: pa.ChunkedArray, at: Numbers, most_age: int) -> Flags:
    """Whether each row has an id that was drawn near the time `at` of its event.

    That is at most `most_age` before it, and at most a day after it, which allows for a clock that
    is wrong. Ids decide which hours are written, so a forged id must not name an arbitrary hour.
    """
    found = is_id(ids)
    rows = np.flatnonzero(found)
    chosen = ids if len(rows) == len(found) else ids.filter(pa.array(found))
    age = at[rows] - drawn_at(split_ids(chosen.combine_chunks())[0])
    found[rows] = (age >= -_DAY_MS) & (age <= most_age)
    return found


def to_numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    return np.asarray(column.cast(pa.int64()).fill_null(ABSENT))


def dense_ranks(column: pa.ChunkedArray | pa.Array) -> Numbers:
    """Numbers that compare as the values do, nulls lowest."""
    ranks = pc.rank(column, [("", "ascending", "at_start")], tiebreaker="dense")
    return np.asarray(ranks).astype(np.int64)


def mark_changes(column: Column) -> Flags:
    """Whether each value differs from the one before it; true for the first."""
    marks = np.ones(len(column), bool)
    np.not_equal(column[1:], column[:-1], out=marks[1:])
    return marks
