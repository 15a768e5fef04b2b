"""Which part of an outbox the archive knows, and what a restored journal forgot.

An archive may begin in the middle of a journal, ends a little before now, and a journal that came
back from a backup does not know what it did since. Nobody is blamed for what cannot be known.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct
from pyspark.sql import Column
from pyspark.sql import functions as F

from gatepost.archive.manifest import Manifest

_SEQ_BITS = 48


class Span(Struct, frozen=True):
    """One life of a journal: what it wrote between two moments, by its own clock, is there."""

    node: str
    incarnation: str
    begin: int
    end: int
    # Later lives do not know what was written from here on; None for the latest life.
    forgotten: int | None


def spans(listed: Sequence[Manifest]) -> list[Span]:
    return [span for node in listed for span in _of(node)]


def _of(listed: Manifest) -> Iterator[Span]:
    for place, life in enumerate(listed.incarnations):
        mine = [segment for segment in listed.segments if segment.incarnation == life.id]
        if not mine:
            continue
        first = place == 0 and mine[0].first == 1
        yield Span(
            listed.node,
            life.id,
            0 if first else min(segment.min_created_at for segment in mine),
            max(segment.max_created_at for segment in mine),
            min((later.first_seq for later in listed.incarnations[place + 1 :]), default=None),
        )


def place(known: Sequence[Span]) -> Column:
    """Where an event stands among all of its node, whichever life wrote it: one number."""
    age = F.lit(0).cast("bigint")
    for _, lives in groupby(known, lambda span: span.node):
        for number, span in enumerate(lives):
            if number:
                written = (F.col("incarnation") == span.incarnation) & (F.col("node") == span.node)
                age = F.when(written, F.lit(number).cast("bigint")).otherwise(age)
    return F.shiftleft(age, _SEQ_BITS) + F.col("seq")


def life(place: Column) -> Column:
    return F.shiftright(place, _SEQ_BITS)


def drawn_at(id: Column) -> Column:
    """When an event id was drawn, by its sender's clock."""
    return F.conv(F.hex(F.substring(id, 1, 6)), 16, 10).cast("bigint")


def begun(known: Sequence[Span], node: Column, slack: int) -> Column:
    """From which moment on everything a node wrote is there."""
    moments = {span.node: span.begin for span in reversed(known)}
    found = F.lit(0).cast("bigint")
    for name, begin in moments.items():
        if begin:
            found = F.when(node == name, F.lit(begin + slack)).otherwise(found)
    return found


def covered(known: Sequence[Span], node: Column, at: Column, slack: int) -> Column:
    """Whether what a node wrote at that moment would be there."""
    found = F.lit(False)
    for span in known:
        inside = at.between(span.begin + (slack if span.begin else 0), span.end - slack)
        found = found | ((node == span.node) & inside)
    return found


def forgotten(known: Sequence[Span]) -> Column:
    """The life that wrote an event which later lives do not know of; empty if they do."""
    found = F.lit("")
    for span in known:
        if span.forgotten is not None:
            written = (F.col("incarnation") == span.incarnation) & (F.col("node") == span.node)
            found = F.when(
                written & (F.col("seq") >= span.forgotten), F.lit(span.incarnation)
            ).otherwise(found)
    return found
