"""What breaks a promise between outboxes, and what only looks like it."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from gatepost.archive.manifest import ArchivedIncarnation, ArchiveManifest
from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.pipeline.kernels import evidence, promises
from gatepost.pipeline.kernels.evidence import EVIDENCE_COLUMNS, OutboxPart
from gatepost.pipeline.kernels.promises import UnreadSegments
from gatepost.pipeline.kernels.spans import ArchivedSpan, SpanIndex, archived_spans
from gatepost.pipeline.objectives import Objectives
from tests.pipeline.manifests import archived_segment

HOUR = 3_600_000
START = 1_772_490_600_000 // HOUR * HOUR

# a and b are archived from their first event; `late` only from its seq 1000 on. `old` was restored:
# its second incarnation begins at seq 50, and forgot all that the first one did from there on.
SPANS = [
    ArchivedSpan("a", "a1", 0, START + 10 * HOUR, None),
    ArchivedSpan("b", "b1", 0, START + 10 * HOUR, None),
    ArchivedSpan("c", "c1", 0, START + 10 * HOUR, None),
    ArchivedSpan("late", "l1", START + 4 * HOUR, START + 10 * HOUR, None),
    ArchivedSpan("old", "o1", 0, START + 3 * HOUR, 50),
    ArchivedSpan("old", "o2", START + 5 * HOUR, START + 10 * HOUR, None),
]
INCARNATIONS = {span.node: span.incarnation for span in reversed(SPANS)}


class Story:
    """Events of some outboxes, told line by line."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.names: dict[bytes, str] = {}
        self._seqs: dict[str, int] = defaultdict(lambda: 10)

    def id(self, name: str, hour: float = 2) -> bytes:
        """An id drawn `hour` hours after the start."""
        found = int(START + hour * HOUR).to_bytes(6, "big") + name.encode().ljust(10, b".")[:10]
        self.names[found] = name
        return found

    def event(self, node: str, **fields: Any) -> None:
        self._seqs[node] += 1
        row = dict.fromkeys(EVIDENCE_COLUMNS) | {"node": node, "incarnation": INCARNATIONS[node]}
        row |= {"seq": self._seqs[node], "event_id": b"e", "pair_seq": 0, "attempt": 1}
        row |= {"created_at": START, "payload_size": 0} | fields
        self.rows.append(row)

    def message(self, name: str, node: str = "a", number: int = 0, **fields: Any) -> bytes:
        id = self.id(name, fields.pop("hour", 2))
        sender = {
            "kind": "message",
            "source_agent": f"of-{name.split('-', maxsplit=1)[0]}",
            "to_agent": "bob",
        }
        self.event(node, event_id=id, pair_seq=number, **sender | {"to_node": "b"} | fields)
        return id

    def told(self, node: str, about: bytes, *what: str, **fields: Any) -> None:
        """Receipts: accepted, or an outcome."""
        for each in what:
            done = each not in ("accepted", "refused")
            said = {"status": "processed", "outcome": each} if done else {"status": each}
            self.event(node, **{"kind": "ack", "ref_id": about, "to_node": "a"} | said | fields)


def _doubled(story: Story) -> None:
    told, message = story.told, story.message
    told("b", message("repeated"), "accepted", "accepted", "ok", "accepted", "ok")
    both = message("both-nodes")
    told("b", both, "accepted", "ok")
    told("c", both, "accepted", "ok")
    told("b", message("two-ends"), "accepted", "ok", "dead_letter")
    offer = message("fallback")
    told("b", offer, "accepted")
    story.message("fallback", to_node="c", attempt=2)
    told("c", offer, "accepted", "ok")
    local = message("local", to_node="a")
    told("a", local, "accepted", "ok", to_node=None)


def _restored(story: Story) -> None:
    told, message = story.told, story.message
    first, second = {"incarnation": "o1"}, {"incarnation": "o2"}
    forgotten = message("given-up", to_node="old")
    told("old", forgotten, "accepted", **first)
    told("old", forgotten, "ok", **first, seq=60)
    told("old", forgotten, "dead_letter", **second, seq=70)
    again = message("done-again", to_node="old")
    told("old", again, "accepted", **first)
    told("old", again, "ok", **first, seq=61)
    told("old", again, "ok", **second, seq=71)
    known = message("remembered", to_node="old")
    told("old", known, "accepted", "ok", **first)
    told("old", known, "ok", **second, seq=72)
    # A restored sender gives out the numbers of its pairs anew, a restored owner its own.
    for number, incarnation, seq in ((5, "o1", 80), (6, "o2", 75)):
        id = message(f"journal-{number}", number=number, to_node="old")
        told("old", id, "accepted", incarnation=incarnation, seq=seq)
        told("old", id, "ok", incarnation=incarnation, seq=seq + 1)
    for number in (1, 2):
        id = message(f"told-again-{number}", number=number, to_node="old")
        told("old", id, "accepted", "ok", **(second if number == 2 else first))
    told("old", story.id("told-again-1"), "ok", **second, seq=90)
    for number, incarnation in ((9, "o1"), (3, "o2")):
        id = message(f"renumbered-{number}", "old", number, incarnation=incarnation)
        told("b", id, "accepted", "ok", to_node="old")


def _hasty(story: Story) -> None:
    told, message = story.told, story.message
    told("b", message("hasty"), "ok", "accepted")
    told("b", message("never-accepted"), "ok")
    told("late", message("before-archive", to_node="late"), "ok")
    told("late", message("after-begin", to_node="late", hour=6), "ok")


def _orphaned(story: Story) -> None:
    told, id = story.told, story.id
    told("b", id("orphan"), "accepted", "ok")
    told("b", id("too-new", 9.99), "accepted")
    told("b", id("refused"), "refused")
    told("b", id("before-late", 2), "accepted", to_node="late")
    told("b", id("since-late", 6), "accepted", to_node="late")
    told("b", id("in-hole", 4), "accepted", to_node="old")
    told("b", id("in-incarnation", 6), "accepted", to_node="old")
    told("b", id("not-archived"), "accepted", to_node="elsewhere")


def _overtaken(story: Story) -> None:
    ids = [story.message(f"fifo-{number}", number=number) for number in (1, 2, 3, 4)]
    for id in ids:
        story.told("b", id, "accepted")
    for place, outcome in ((0, "ok"), (2, "ok"), (1, "ok"), (0, "ok"), (3, "expired")):
        story.told("b", ids[place], outcome)
    # Whoever expired waits for nobody, and a second receipt is not a second turn.
    late = [story.message(f"gap-{number}", number=number) for number in (1, 2)]
    for id in late:
        story.told("b", id, "accepted")
    story.told("b", late[1], "ok")
    story.told("b", late[0], "expired")


def _found(story: Story, unread: UnreadSegments = promises.NOTHING_UNREAD) -> set[tuple[str, str]]:
    named: dict[str, list[pa.Table]] = defaultdict(list)
    for part, events in _outboxes(story):
        for name, table in evidence.collect_evidence(events, part, Objectives().max_inline):
            named[name].append(table)
    known = promises.OutboxKnowledge(SpanIndex.from_spans(SPANS, 120_000), START + 20 * HOUR)
    sent, receipts = (
        pa.concat_tables(named.pop(name)).unify_dictionaries().combine_chunks()
        for name in (evidence.SENT, evidence.RECEIPTS)
    )
    for name, table in promises.compare_outboxes(sent, receipts, known, unread):
        named[name].append(table)
    nodes = frozenset({"a", "b", "c", "late", "old"})
    tables = [
        *named[evidence.FOUND],
        promises.find_overtaken_turns(pa.concat_tables(named[promises.TURNS]), unread),
        promises.describe_unarchived(named[promises.UNARCHIVED]),
        promises.describe_unknown(named[evidence.NAMED], nodes),
    ]
    rows = pa.concat_tables(tables).to_pylist()
    return {(row["rule"], story.names.get(row["event_id"], row["node"])) for row in rows}


def _outboxes(story: Story) -> Iterable[tuple[OutboxPart, pa.Table]]:
    schema = pa.schema([EVENT_SCHEMA.field(name) for name in EVIDENCE_COLUMNS])
    spans = {(span.node, span.incarnation): span for span in SPANS}
    for (node, incarnation), span in spans.items():
        rows = [
            row for row in story.rows if (row["node"], row["incarnation"]) == (node, incarnation)
        ]
        part = OutboxPart(node, incarnation, int(incarnation == "o2"), span.forgotten, None)
        yield part, pa.Table.from_pylist(rows, schema)


def test_what_is_broken_is_found_and_what_only_looks_like_it_is_not() -> None:
    story = Story()
    for tell in (_doubled, _restored, _hasty, _orphaned, _overtaken):
        tell(story)
    assert _found(story) == {
        ("doubled_turn", "both-nodes"),
        ("doubled_turn", "two-ends"),
        ("doubled_turn", "done-again"),
        ("processed_before_accepted", "hasty"),
        ("processed_before_accepted", "never-accepted"),
        ("processed_before_accepted", "after-begin"),
        ("receipt_without_message", "orphan"),
        ("receipt_without_message", "since-late"),
        ("receipt_without_message", "in-incarnation"),
        ("fifo_broken", "fifo-2"),
        # Others have events of these nodes that are not archived, or write to them.
        ("unjudged", "too-new"),
        ("unjudged", "not-archived"),
        ("unjudged", "elsewhere"),
    }


def test_what_may_be_in_an_unread_segment_accuses_nobody() -> None:
    story = Story()
    for tell in (_hasty, _orphaned, _overtaken):
        tell(story)
    segments = [
        # Events of a that others confirmed, and receipts of b before those that can be read.
        promises.describe_unread(
            OutboxPart("a", "a1", 0, None, None), 900, START + HOUR, START + 3 * HOUR
        ),
        promises.describe_unread(OutboxPart("b", "b1", 0, None, None), 1, START, START + HOUR),
    ]
    unread = UnreadSegments.from_tables(segments, 120_000)
    everything = _found(story)
    assert everything - _found(story, unread) == {
        ("processed_before_accepted", "hasty"),
        ("processed_before_accepted", "never-accepted"),
        ("receipt_without_message", "orphan"),
        ("fifo_broken", "fifo-2"),
    }
    later = promises.describe_unread(OutboxPart("b", "b1", 0, None, None), 900, START, START)
    assert _found(story, UnreadSegments.from_tables([later], 0)) == everything


def _listed(*segments: tuple[str, int, int, int]) -> ArchiveManifest:
    """Segments by incarnation, first, last and the time of all their events."""
    incarnations = dict.fromkeys(each for each, *_ in segments)
    firsts = {"o1": 1, "o2": 50}
    return ArchiveManifest(
        node="n",
        public_key=b"",
        incarnations=tuple(ArchivedIncarnation(each, firsts[each]) for each in incarnations),
        segments=tuple(
            archived_segment(incarnation, first, last, at)
            for incarnation, first, last, at in segments
        ),
    )


def test_spans_say_what_of_each_life_is_there() -> None:
    listed = _listed(("o1", 1, 60, 5), ("o1", 61, 90, 9), ("o2", 50, 70, 20))
    assert archived_spans([listed]) == [
        ArchivedSpan("n", "o1", 0, 9, 50),
        ArchivedSpan("n", "o2", 20, 20, None),
    ]
    assert archived_spans([_listed(("o1", 40, 60, 5))]) == [ArchivedSpan("n", "o1", 5, 5, None)]
