"""The archived part of each outbox, and the events that a restored journal forgot.

An archive may begin in the middle of a journal, and ends a little before now. A journal restored
from a backup does not know its events since that backup. Checks use these spans so that they report
no violation where the evidence may be missing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import numpy as np
from msgspec import Struct

from gatepost.archive.manifest import ArchiveManifest
from gatepost.pipeline.kernels.blocks import hash_text
from gatepost.pipeline.kernels.columns import Flags, Numbers


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


class SpanIndex(Struct, frozen=True):
    """Spans by the hash of their node, sorted, to look up many nodes at once.

    A span reaches from `since` to `until`: nearer to its ends an event may not be archived.
    """

    nodes: Numbers
    since: Numbers
    until: Numbers

    @classmethod
    def from_spans(cls, spans: Sequence[ArchivedSpan], slack: int) -> Self:
        return cls.from_rows(
            (hash_text(span.node), span.begin + (slack if span.begin else 0), span.end - slack)
            for span in spans
        )

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, int]]) -> Self:
        """Spans as (hash of the node, since, until)."""
        columns = np.array(sorted(rows), np.int64).reshape(-1, 3)
        return cls(columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy())

    def begins(self, nodes: Numbers) -> Numbers:
        """The moment since which all events of each node are archived; 0 if nothing is known."""
        first = np.searchsorted(self.nodes, nodes)
        known = self._is_at(first, nodes)
        found: Numbers = np.zeros(len(nodes), np.int64)
        found[known] = self.since[first[known]]
        return found

    def contain(self, nodes: Numbers, at: Numbers) -> Flags:
        """Whether an event that each node wrote at that moment would be archived."""
        inside: Flags = np.zeros(len(nodes), bool)
        place = np.searchsorted(self.nodes, nodes)
        while (here := self._is_at(place, nodes)).any():
            span = place[here]
            inside[here] |= (at[here] >= self.since[span]) & (at[here] <= self.until[span])
            place = place + 1
        return inside

    def end_before(self, nodes: Numbers, at: Numbers) -> Flags:
        """Whether all spans of each node end before that moment."""
        later: Flags = np.ones(len(nodes), bool)
        place = np.searchsorted(self.nodes, nodes)
        while (here := self._is_at(place, nodes)).any():
            later[here] &= at[here] > self.until[place[here]]
            place = place + 1
        return later

    def _is_at(self, place: Numbers, nodes: Numbers) -> Flags:
        """Whether the span at each index belongs to that node."""
        inside = place < len(self.nodes)
        found: Flags = np.zeros(len(nodes), bool)
        found[inside] = self.nodes[place[inside]] == nodes[inside]
        return found
