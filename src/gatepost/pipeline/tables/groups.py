"""Rows that belong together, a column of numbers at a time. Needs numpy, and nothing of Spark."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost.pipeline.tables.facts import (
    ABSENT,
    NONE,
    Column,
    Words,
    changes,
    numbers,
    ranks,
)

_MOST = 2**62


class Columns:
    """A table's columns as numbers: texts are places in one list of words."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._words = Words()
        self._seen: dict[str, Column] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def text(self, name: str) -> Column:
        return self._once(name, self._words.of)

    def number(self, name: str) -> Column:
        return self._once(name, numbers)

    def truth(self, name: str) -> Column:
        return np.asarray(self.table[name].fill_null(False))

    def is_any(self, name: str, *texts: str) -> Column:
        return self._words.any_of(self.text(name), texts)

    def chosen(self, name: str, by: Mapping[str, int]) -> Column:
        """What `by` has for each text, or NONE."""
        return self._words.chosen(self.text(name), by)

    def rank(self, name: str, rows: Column) -> Column:
        """Numbers that compare as the texts of these rows do."""
        return ranks(self.table[name].take(pa.array(rows)))

    def texts(self, places: Column) -> pa.Array:
        return self._words.all().take(pa.array(places, mask=places == NONE))

    def names(self, groups: "Groups", keys: Sequence[Column]) -> list[tuple[str | None, ...]]:
        """In which texts each of the groups is alike."""
        return list(zip(*(self.texts(groups.first(key)).to_pylist() for key in keys), strict=True))

    def _once(self, name: str, made: Any) -> Column:
        if name not in self._seen:
            self._seen[name] = made(self.table[name])
        return self._seen[name]


class Groups(Struct, frozen=True):
    """Rows in an order, cut where another group begins.

    A row without a number (ABSENT) counts for nothing.
    """

    order: Column
    starts: Column

    @classmethod
    def alike(cls, *keys: Column) -> Self:
        """Those that are equal in all keys."""
        code = _code(keys)
        order = np.argsort(code, kind="stable")
        return cls(order, np.flatnonzero(changes(code[order])))

    @classmethod
    def runs(cls, at: Column, gap: int, *keys: Column) -> Self:
        """Those that are equal in all keys and follow each other with no gap longer than this."""
        code = _code(keys)
        order = np.lexsort((at, code))
        far = np.diff(at[order], prepend=at[order][:1]) > gap
        return cls(order, np.flatnonzero(changes(code[order]) | far))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> Column:
        return np.diff(self.starts, append=len(self.order))

    @property
    def of(self) -> Column:
        """Which group each row is in."""
        found: Column = np.empty(len(self.order), np.int64)
        found[self.order] = np.repeat(np.arange(len(self)), self.sizes)
        return found

    def first(self, column: Column) -> Column:
        """What a group has in a column in which it is alike."""
        found: Column = column[self.order[self.starts]]
        return found

    def sum(self, values: Column) -> Column:
        known = np.where(values == ABSENT, 0, values) if values.dtype != bool else values
        return self._reduced(np.add, known.astype(np.int64))

    def least(self, values: Column) -> Column:
        last = np.iinfo(np.int64).max
        found = self._reduced(np.minimum, np.where(values == ABSENT, last, values))
        return np.where(found == last, ABSENT, found)

    def most(self, values: Column) -> Column:
        return self._reduced(np.maximum, values)

    def _reduced(self, how: np.ufunc, values: Column) -> Column:
        if not len(self):
            return np.zeros(0, np.int64)
        found: Column = how.reduceat(values[self.order], self.starts)
        return found

    def each(self) -> Iterator[Column]:
        """The rows of one group after the other."""
        return iter(np.split(self.order, self.starts[1:]) if len(self) else [])

    def samples(self, most: int, *keys: Column) -> list[Column]:
        """The first few rows of each group, by these keys."""
        order = np.lexsort((*reversed(keys), self.of))
        ends = self.starts + np.minimum(self.sizes, most)
        return [order[start:end] for start, end in zip(self.starts, ends, strict=True)]


class Sorted(Struct, frozen=True):
    """The numbers of each group in order, and how many there are up to each: for percentiles."""

    values: Column
    until: Column
    sizes: Column

    @classmethod
    def of(cls, groups: Groups, values: Column) -> Self:
        known = np.flatnonzero(values != ABSENT)
        once = np.ones(len(known), np.int64)
        return cls.counted(groups.of[known], values[known], once, len(groups))

    @classmethod
    def counted(cls, of: Column, values: Column, counts: Column, groups: int) -> Self:
        """Of numbers that are there several times, each with the group that it is in."""
        order = np.lexsort((values, of))
        sizes = np.bincount(of, counts, groups).astype(np.int64)
        return cls(values[order], np.cumsum(counts[order]), sizes)

    def percentile(self, share: float, among: Column | None = None) -> Column:
        """The number that this share of a group is not above, or ABSENT.

        With `among` only that many of the smallest are looked at.
        """
        sizes = self.sizes if among is None else among
        rank = np.cumsum(self.sizes) - self.sizes + np.ceil(sizes * share).astype(np.int64)
        found: Column = np.full(len(sizes), ABSENT, np.int64)
        some = sizes > 0
        found[some] = self.values[np.searchsorted(self.until, rank[some])]
        return found


def _code(keys: Sequence[Column]) -> Column:
    """One number for several that are equal only where all of them are."""
    code, many = _dense(keys[0])
    for key in keys[1:]:
        more, size = _dense(key)
        if many * size > _MOST:
            code, many = _numbered(code)
        code, many = code * size + more, many * size
    return code


def _dense(key: Column) -> tuple[Column, int]:
    """Numbers from 0, as they are if they are small, and how many there may be."""
    least, most = (int(key.min()), int(key.max())) if len(key) else (0, 0)
    if most - least <= max(len(key), 2**16):
        return key.astype(np.int64) - least, most - least + 1
    return _numbered(key)


def _numbered(key: Column) -> tuple[Column, int]:
    known, code = np.unique(key, return_inverse=True)
    return code, len(known)


def earlier(one: Column, other: Column) -> Column:
    """The lesser of two numbers, or the one there is."""
    lesser = np.minimum(one, other)
    return np.where(one == ABSENT, other, np.where(other == ABSENT, one, lesser))


def listed(columns: Mapping[str, Any], names: Sequence[str]) -> pa.Table:
    """These columns in this order; numbers that are ABSENT are null."""
    return pa.table({name: _array(columns[name]) for name in names})


def _array(column: Any) -> Any:
    if isinstance(column, np.ndarray) and column.dtype == np.int64:
        return pa.array(column, mask=column == ABSENT)
    return column
