"""Decides which nodes and segments of an archive are admitted, and sets the others aside.

A node is admitted if its manifest is readable and signed with a key that the room has for it, and
if it is a member of the room. A segment is admitted if its file is the one that the manifest lists,
and its columns and values are those of an archive. All others are set aside with a reason until
they are repaired; nothing else waits for them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import RoomFacts
from gatepost.pipeline.archive_reader import ArchiveReader, NodeListing
from gatepost.pipeline.audit import trust
from gatepost.pipeline.audit.trust import FactsDoubt, KeyTrust
from gatepost.pipeline.file_check import check_files, read_trial
from gatepost.pipeline.read_plan import LaneKey, SegmentFile, SetAside
from gatepost.pipeline.segment_check import SegmentCheck
from gatepost.pipeline.transport import Transport

# The facts of this many gateways determine the members of the room; an audit reads all of them.
_FACTS_READ: Final = 64
_CLOCK_SLACK_MS: Final = 5 * 60_000
_DAY_MS: Final = 24 * 3_600_000
_NOTHING_FOUND: Final = SegmentCheck()


class AdmittedArchive(Struct, frozen=True):
    segments: list[SegmentFile]
    aside: list[SetAside]


class ArchiveGate:
    """Admits nodes and segments; a file that was found valid is not read again."""

    def __init__(self, reader: ArchiveReader) -> None:
        self._reader = reader
        self._store = ArchiveStore.open(reader.uri)
        # Segments whose file was found valid, and those of them with ids far from the time of their
        # events.
        self._right: set[SegmentFile] = set()
        self._odd: dict[SegmentFile, SegmentCheck] = {}

    def admit_nodes(self) -> AdmittedArchive:
        """The segments of all nodes that belong to the room."""
        listings = self._reader.list_nodes()
        signed = [each.manifest for each in listings if each.manifest is not None]
        judged = trust.judge_room_facts(_sample_facts(self._store), signed)
        segments: list[SegmentFile] = []
        aside: list[SetAside] = []
        for listing in listings:
            reason = _find_objection(listing, judged)
            if reason is None:
                segments += listing.segments
            else:
                at = max((each.max_created_at for each in listing.segments), default=0)
                aside.append(SetAside(listing.node, reason, at))
        return AdmittedArchive(segments, aside)

    def check_segments(
        self, transport: Transport, segments: Sequence[SegmentFile], id_age: int
    ) -> dict[str, SegmentCheck]:
        """Path → the finding, for segments with a fault or odd events."""
        unknown = [each for each in segments if each not in self._right]
        found = check_files(transport, self._reader.uri, unknown, id_age)
        self._remember(unknown, found)
        return found | {each.path: self._odd[each] for each in segments if each in self._odd}

    def try_segments(
        self, transport: Transport, segments: Sequence[SegmentFile], id_age: int
    ) -> dict[str, SegmentCheck]:
        """Like `check_segments`, but reads all segments again, in the way of a batch."""
        found = read_trial(transport, self._reader.uri, segments, id_age)
        self._remember(segments, found)
        return found

    def _remember(self, segments: Iterable[SegmentFile], found: Mapping[str, SegmentCheck]) -> None:
        """A file that was found right is not read again; one with a fault may be repaired."""
        for each in segments:
            check = found.get(each.path, _NOTHING_FOUND) if found else _NOTHING_FOUND
            self._odd.pop(each, None)
            self._right.discard(each)
            if check.fault is None:
                self._right.add(each)
                if check != _NOTHING_FOUND:
                    self._odd[each] = check


def _sample_facts(store: ArchiveStore) -> Iterator[RoomFacts]:
    ignored: list[FactsDoubt] = []
    return trust.read_room_facts(store, ignored, most=_FACTS_READ)


def _find_objection(listing: NodeListing, judged: KeyTrust) -> str | None:
    """The reason not to take in a node's events, if there is one."""
    if listing.problem is not None or listing.manifest is None:
        return listing.problem or "it has no manifest"
    if judged.members and listing.node not in judged.members:
        return "no gateway of the room knows this node"
    if not listing.is_signed:
        return "its manifest is not signed"
    if not _is_known_key(listing.manifest, judged):
        return "its manifest is not signed by the key that the room knows"
    return None


def _is_known_key(manifest: ArchiveManifest, judged: KeyTrust) -> bool:
    return manifest.public_key in judged.keys.get(manifest.node, (manifest.public_key,))


def describe_far_ids(
    segments: Iterable[SegmentFile],
    found: Mapping[str, SegmentCheck],
    before: Iterable[SetAside],
) -> list[SetAside]:
    """Describe single events that are not counted, in addition to those of `before`."""
    sums = {(each.node, each.incarnation): each for each in before if each.events}
    for segment in segments:
        count = found.get(segment.path, _NOTHING_FOUND).far_ids
        if not count:
            continue
        known = sums.get(segment.lane)
        sums[segment.lane] = SetAside(
            segment.node,
            "an id was drawn too long before or after its event, or is not 16 bytes long",
            max(segment.max_created_at, known.at if known else 0),
            segment.incarnation,
            min(segment.first, known.first or 0) if known else segment.first,
            max(segment.last, known.last or 0) if known else segment.last,
            count + (known.events if known else 0),
        )
    return list(sums.values())


def describe_holes(
    holes: Iterable[tuple[LaneKey, int, int]],
    listed: Sequence[SegmentFile],
    bad: dict[str, str],
) -> list[SetAside]:
    """What is missing between the admitted segments, each with the reason."""
    by_lane: dict[LaneKey, list[SegmentFile]] = {}
    for segment in listed:
        if segment.path in bad:
            by_lane.setdefault(segment.lane, []).append(segment)
    return [_describe_hole(key, first, last, by_lane, bad) for key, first, last in holes]


def _describe_hole(
    key: LaneKey,
    first: int,
    last: int,
    by_lane: dict[LaneKey, list[SegmentFile]],
    bad: dict[str, str],
) -> SetAside:
    inside = [each for each in by_lane.get(key, []) if each.first <= last and each.last >= first]
    reasons = [f"{each.path}: {bad[each.path]}" for each in inside]
    reason = "; ".join(reasons[:3]) or "no segment lists these events"
    at = max((each.max_created_at for each in inside), default=0)
    return SetAside(key.node, reason, at, key.incarnation, first, last)


def agree_on_time(segments: Iterable[SegmentFile], now: int) -> int:
    """The end of the archive in time, which no single clock decides.

    Events and segments of the future are ignored, and no node is more than a day ahead of all
    others.
    """
    latest: dict[str, int] = {}
    for segment in segments:
        at = min(segment.max_created_at, segment.archived_at)
        latest[segment.node] = max(latest.get(segment.node, 0), at)
    times = sorted((at for at in latest.values() if at <= now + _CLOCK_SLACK_MS), reverse=True)
    if not times:
        return now if latest else 0
    return times[0] if len(times) == 1 else min(times[0], times[1] + _DAY_MS)
