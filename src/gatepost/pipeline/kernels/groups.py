"""Groups rows and aggregates their columns of numbers. Needs pyarrow and numpy, but not Spark."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from gatepost.pipeline.kernels.columns import (
    ABSENT,
    NONE,
    Codes,
    Flags,
    Numbers,
    Value,
    WordCodes,
    dense_ranks,
    mark_changes,
    to_numbers,
)

_MOST = 2**62

GroupKey = Numbers | Codes


class CodedColumns:
    """A table's columns as numbers: texts are codes of one list of words."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._words = WordCodes()
        self._codes: dict[str, Codes] = {}
        self._numbers: dict[str, Numbers] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def text_codes(self, name: str) -> Codes:
        if name not in self._codes:
            self._codes[name] = self._words.encode_column(self.table[name])
        return self._codes[name]

    def number_column(self, name: str) -> Numbers:
        if name not in self._numbers:
            self._numbers[name] = to_numbers(self.table[name])
        return self._numbers[name]

    def bool_column(self, name: str) -> Flags:
        return np.asarray(self.table[name].fill_null(False))

    def is_any(self, name: str, *texts: str) -> Flags:
        return self._words.matches_any(self.text_codes(name), texts)

    def map_texts(self, name: str, by: Mapping[str, int]) -> Codes:
        """The value that `by` has for each text, or NONE."""
        return self._words.map_codes(self.text_codes(name), by)

    def text_ranks(self, name: str, rows: Numbers) -> Numbers:
        """Numbers that compare as the texts of these rows do, nulls lowest."""
        return dense_ranks(self.table[name].take(pa.array(rows)))

    def decode_texts(self, codes: Codes) -> pa.Array:
        return self._words.word_array().take(pa.array(codes, mask=codes == NONE))

    def group_texts(self, groups: "Groups", keys: Sequence[Codes]) -> list[tuple[str | None, ...]]:
        """For each group the texts that all its rows have in these key columns."""
        return list(
            zip(
                *(self.decode_texts(groups.first_values(key)).to_pylist() for key in keys),
                strict=True,
            )
        )


class Groups(Struct, frozen=True):
    """Groups of rows: all rows in `order`, with a new group at each of `starts`.

    Aggregates ignore rows without a number (ABSENT).
    """

    order: Numbers
    starts: Numbers

    @classmethod
    def group_equal(cls, *keys: GroupKey) -> Self:
        """Group rows that are equal in all keys."""
        code = _combine_keys(keys)
        order = np.argsort(code, kind="stable")
        return cls(order, np.flatnonzero(mark_changes(code[order])))

    @classmethod
    def group_runs(cls, at: Numbers, gap: int, *keys: GroupKey) -> Self:
        """Group rows that are equal in all keys and follow each other with gaps up to `gap`."""
        code = _combine_keys(keys)
        order = np.lexsort((at, code))
        far = np.diff(at[order], prepend=at[order][:1]) > gap
        return cls(order, np.flatnonzero(mark_changes(code[order]) | far))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> Numbers:
        return np.diff(self.starts, append=len(self.order))

    @property
    def group_numbers(self) -> Numbers:
        """For each row the number of its group."""
        found: Numbers = np.empty(len(self.order), np.int64)
        found[self.order] = np.repeat(np.arange(len(self)), self.sizes)
        return found

    def first_values(self, column: NDArray[Value]) -> NDArray[Value]:
        """For each group the value of its first row."""
        return column[self.order[self.starts]]

    def sum_values(self, values: Numbers | Flags) -> Numbers:
        known = np.where(values == ABSENT, 0, values) if values.dtype != bool else values
        return self._reduce_groups(np.add, known.astype(np.int64))

    def min_values(self, values: Numbers) -> Numbers:
        largest = np.iinfo(np.int64).max
        found = self._reduce_groups(np.minimum, np.where(values == ABSENT, largest, values))
        return np.where(found == largest, ABSENT, found)

    def max_values(self, values: Numbers) -> Numbers:
        return self._reduce_groups(np.maximum, values)

    def _reduce_groups(self, function: np.ufunc, values: Numbers) -> Numbers:
        if not len(self):
            return np.zeros(0, np.int64)
        found: Numbers = function.reduceat(values[self.order], self.starts)
        return found

    def each_group(self) -> Iterator[Numbers]:
        """The rows of each group in turn."""
        return iter(np.split(self.order, self.starts[1:]) if len(self) else [])

    def sample_rows(self, most: int, *keys: Numbers) -> list[Numbers]:
        """The first `most` rows of each group, ordered by these keys."""
        order = np.lexsort((*reversed(keys), self.group_numbers))
        ends = self.starts + np.minimum(self.sizes, most)
        return [order[start:end] for start, end in zip(self.starts, ends, strict=True)]


class SortedGroups(Struct, frozen=True):
    """The sorted numbers of each group with cumulative counts, for percentiles."""

    values: Numbers
    until: Numbers
    sizes: Numbers

    @classmethod
    def from_groups(cls, groups: Groups, values: Numbers) -> Self:
        known = np.flatnonzero(values != ABSENT)
        once = np.ones(len(known), np.int64)
        return cls.from_counts(groups.group_numbers[known], values[known], once, len(groups))

    @classmethod
    def from_counts(cls, of: Numbers, values: Numbers, counts: Numbers, groups: int) -> Self:
        """Build from counted numbers; `of` is the group of each."""
        order = np.lexsort((values, of))
        sizes = np.bincount(of, counts, groups).astype(np.int64)
        return cls(values[order], np.cumsum(counts[order]), sizes)

    def percentile(self, share: float, among: Numbers | None = None) -> Numbers:
        """The smallest number that this share of a group does not exceed, or ABSENT.

        With `among` only that many of the smallest numbers of each group count.
        """
        sizes = self.sizes if among is None else among
        rank = np.cumsum(self.sizes) - self.sizes + np.ceil(sizes * share).astype(np.int64)
        found: Numbers = np.full(len(sizes), ABSENT, np.int64)
        filled = sizes > 0
        found[filled] = self.values[np.searchsorted(self.until, rank[filled])]
        return found


def _combine_keys(keys: Sequence[GroupKey]) -> Numbers:
    """Combine several keys into one number that is equal only where all of them are."""
    code, count = _dense_codes(keys[0])
    for key in keys[1:]:
        more, size = _dense_codes(key)
        if count * size > _MOST:
            code, count = _unique_codes(code)
        code, count = code * size + more, count * size
    return code


def _dense_codes(key: GroupKey) -> tuple[Numbers, int]:
    """Codes from 0, and their possible number; keys of a small range are only shifted."""
    least, most = (int(key.min()), int(key.max())) if len(key) else (0, 0)
    if most - least <= max(len(key), 2**16):
        return key.astype(np.int64) - least, most - least + 1
    return _unique_codes(key)


def _unique_codes(key: GroupKey) -> tuple[Numbers, int]:
    known, code = np.unique(key, return_inverse=True)
    return code, len(known)


def earliest_known(one: Numbers, other: Numbers) -> Numbers:
    """The lesser of two numbers, or the one that is not ABSENT."""
    lesser = np.minimum(one, other)
    return np.where(one == ABSENT, other, np.where(other == ABSENT, one, lesser))


def decode_dictionaries(table: pa.Table) -> pa.Table:
    """Turn dictionary-encoded columns into plain texts."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table[field.name].cast(pa.string()))
    return table


def columns_to_table(columns: Mapping[str, Any], names: Sequence[str]) -> pa.Table:
    """A table of these columns in the order of `names`; ABSENT becomes null."""
    return pa.table({name: _nullable_array(columns[name]) for name in names})


def _nullable_array(column: Any) -> Any:
    if isinstance(column, np.ndarray) and column.dtype == np.int64:
        return pa.array(column, mask=column == ABSENT)
    return column
