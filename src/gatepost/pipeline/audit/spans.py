"""The archived part of each outbox, and the events that a restored journal forgot.

An archive may begin in the middle of a journal, and ends a little before now. A journal restored
from a backup does not know its events since that backup. Checks use these spans so that they report
no violation where the evidence may be missing.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct
from pyspark.sql import Column
from pyspark.sql import functions as F

from gatepost.archive.manifest import ArchiveManifest

_SEQ_BITS = 48


class ArchivedSpan(Struct, frozen=True):
    """All events of one incarnation of a journal from `begin` to `end`, by its own clock."""

    node: str
    incarnation: str
    begin: int
    end: int
    # The first seq that later incarnations do not know; None for the latest incarnation.
    forgotten: int | None


def archived_spans(listed: Sequence[ArchiveManifest]) -> list[ArchivedSpan]:
    return [span for node in listed for span in _node_spans(node)]


def _node_spans(listed: ArchiveManifest) -> Iterator[ArchivedSpan]:
    for index, incarnation in enumerate(listed.incarnations):
        segments = [each for each in listed.segments if each.incarnation == incarnation.id]
        if not segments:
            continue
        complete = index == 0 and segments[0].first == 1
        yield ArchivedSpan(
            listed.node,
            incarnation.id,
            0 if complete else min(segment.min_created_at for segment in segments),
            max(segment.max_created_at for segment in segments),
            min((later.first_seq for later in listed.incarnations[index + 1 :]), default=None),
        )


def event_position(known: Sequence[ArchivedSpan]) -> Column:
    """One number that orders all events of a node: the incarnation's number, then the seq."""
    incarnation = F.lit(0).cast("bigint")
    for _, spans_of_node in groupby(known, lambda span: span.node):
        for number, span in enumerate(spans_of_node):
            if number:
                written = (F.col("incarnation") == span.incarnation) & (F.col("node") == span.node)
                incarnation = F.when(written, F.lit(number).cast("bigint")).otherwise(incarnation)
    return F.shiftleft(incarnation, _SEQ_BITS) + F.col("seq")


def incarnation_number(position: Column) -> Column:
    """The number of the incarnation in an event's position."""
    return F.shiftright(position, _SEQ_BITS)


def drawn_at(id: Column) -> Column:
    """When an event id was drawn, by its sender's clock."""
    return F.conv(F.hex(F.substring(id, 1, 6)), 16, 10).cast("bigint")


def archived_since(known: Sequence[ArchivedSpan], node: Column, slack: int) -> Column:
    """The moment from which on all events of a node are archived."""
    moments = {span.node: span.begin for span in reversed(known)}
    found = F.lit(0).cast("bigint")
    for name, begin in moments.items():
        if begin:
            found = F.when(node == name, F.lit(begin + slack)).otherwise(found)
    return found


def is_archived(known: Sequence[ArchivedSpan], node: Column, at: Column, slack: int) -> Column:
    """Whether an event that a node wrote at that moment would be archived."""
    found = F.lit(False)
    for span in known:
        inside = at.between(span.begin + (slack if span.begin else 0), span.end - slack)
        found = found | ((node == span.node) & inside)
    return found


def forgotten_incarnation(known: Sequence[ArchivedSpan]) -> Column:
    """The incarnation of an event that later incarnations do not know; empty if they know it."""
    found = F.lit("")
    for span in known:
        if span.forgotten is not None:
            written = (F.col("incarnation") == span.incarnation) & (F.col("node") == span.node)
            found = F.when(
                written & (F.col("seq") >= span.forgotten), F.lit(span.incarnation)
            ).otherwise(found)
    return found
