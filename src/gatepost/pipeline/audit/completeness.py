"""Finds missing parts of the archive from the statements of other gateways.

A node can sign an archive without its latest events, and anyone with write access to the archive
can delete a node's folder. The room facts of the *other* gateways say which nodes there are, and
how far each outbox was read. An archive follows its outbox with a delay, and a node that is away
archives nothing. So events that others have read are missing only if the node itself has archived
since; otherwise the audit cannot judge.
"""

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.witnessed_heads import ARCHIVE_GRACE_MS, archived_through
from gatepost.pipeline.audit.rules import UNJUDGED
from gatepost.pipeline.audit.trust import KeyTrust, SeenHead


class CompletenessFinding(Struct, frozen=True):
    """A violation found in manifests and room facts, not in the events."""

    rule: str
    node: str | None
    at: int
    detail: str
    incarnation: str | None = None
    seq: int | None = None


class ArchiveEvidence(Struct, frozen=True):
    """The evidence beside the events. `unlisted` nodes have no manifest to read.

    `absent` are the nodes whose archive the operator does not expect. `now` is the time of the
    audit.
    """

    listed: Sequence[ArchiveManifest]
    unlisted: Collection[str]
    trust: KeyTrust
    absent: frozenset[str]
    now: int

    @property
    def known_nodes(self) -> frozenset[str]:
        """Nodes with a folder in the archive, and nodes that are expected to have none."""
        return frozenset(each.node for each in self.listed) | set(self.unlisted) | self.absent


def check_completeness(known: ArchiveEvidence) -> list[CompletenessFinding]:
    return [
        *_find_strangers(known),
        *_find_unarchived_nodes(known),
        *_find_short_outboxes(known),
        *_find_contradictions(known),
        *_find_lack_of_evidence(known),
    ]


def latest_time(known: ArchiveEvidence) -> int:
    """The end of the archive in time, which no single clock decides."""
    times: dict[str, int] = {each.node: _last_archived_at(each) for each in known.listed}
    for facts in known.trust.facts:
        times[facts.node] = max(times.get(facts.node, 0), facts.at)
    ordered = sorted(times.values())
    agreed = ordered[-2] if len(ordered) > 2 else max(ordered, default=0)
    return min(agreed, known.now)


def _find_strangers(known: ArchiveEvidence) -> Iterator[CompletenessFinding]:
    """Nodes with a folder that no gateway of the room knows."""
    if known.trust.members:
        folders = {each.node for each in known.listed} | set(known.unlisted)
        for node in sorted(folders - known.trust.members):
            yield CompletenessFinding(
                "unknown_node", node, 0, "no gateway of the room knows this node"
            )


def _find_unarchived_nodes(known: ArchiveEvidence) -> Iterator[CompletenessFinding]:
    """Nodes of the room without an archive; a node that others have read must have one."""
    furthest: dict[str, SeenHead] = {}
    for (node, _), heads in known.trust.heads.items():
        if node not in furthest or heads[0].head.seq > furthest[node].head.seq:
            furthest[node] = heads[0]
    # A machine that was lost for good is revoked, and no longer archives.
    revoked = {fact.node for facts in known.trust.facts for fact in facts.revocations}
    for node in sorted(known.trust.members - known.known_nodes):
        if node in furthest and node not in revoked:
            seen = furthest[node]
            detail = f"{seen.by} has read its events up to {seen.head.seq}"
            yield CompletenessFinding(
                "missing_archive", node, seen.head.at, detail, seen.head.incarnation, seen.head.seq
            )
        else:
            detail = f"the node has no archive; if that is right, say --absent {node}"
            yield CompletenessFinding(UNJUDGED, node, 0, detail)


def _find_short_outboxes(known: ArchiveEvidence) -> Iterator[CompletenessFinding]:
    """Outboxes of which others have read more than is archived; one finding for each."""
    active_at = {each.node: _last_archived_at(each) for each in known.listed}
    for facts in known.trust.facts:
        active_at[facts.node] = max(active_at.get(facts.node, 0), facts.at)
    listed, as_of = {each.node: each for each in known.listed}, latest_time(known)
    found: dict[str, CompletenessFinding] = {}
    for seen in (each for heads in known.trust.heads.values() for each in heads):
        node, head = seen.head.node, seen.head
        if node not in listed or node in known.absent:
            continue
        archived = archived_through(listed[node], head)
        if archived is not None and head.at + ARCHIVE_GRACE_MS <= as_of:
            finding = _short_outbox(seen, archived, active_at[node])
            if node not in found or found[node].rule == UNJUDGED:
                found[node] = finding
    yield from (found[node] for node in sorted(found))


def _short_outbox(seen: SeenHead, archived: int, active_at: int) -> CompletenessFinding:
    head = seen.head
    detail = f"{seen.by} has read up to {head.seq}, the archive ends with {archived}"
    # The node wrote its archive long after the event was read, without this event.
    if active_at >= head.at + ARCHIVE_GRACE_MS:
        rule = "missing_events"
    else:
        rule, detail = UNJUDGED, f"{detail}; the node has not archived since"
    return CompletenessFinding(rule, head.node, head.at, detail, head.incarnation, archived + 1)


def _find_contradictions(known: ArchiveEvidence) -> Iterator[CompletenessFinding]:
    """Manifests whose segments do not begin at the stated beginning of the outbox."""
    for listed in known.listed:
        begins = {each.id: each.first_seq for each in listed.incarnations}
        for incarnation in dict.fromkeys(each.incarnation for each in listed.segments):
            first = min(s.first for s in listed.segments if s.incarnation == incarnation)
            stated = begins.get(incarnation)
            if stated != first:
                at = "does not name it" if stated is None else f"begins it with {stated}"
                detail = f"the manifest lists events from {first} on, and {at}"
                yield CompletenessFinding(UNJUDGED, listed.node, 0, detail, incarnation, stated)


def _find_lack_of_evidence(known: ArchiveEvidence) -> Iterator[CompletenessFinding]:
    yield from _find_silent_gateways(known)
    for node in known.trust.lone_keys:
        detail = "only one gateway knows this node by the key of its manifest"
        yield CompletenessFinding(UNJUDGED, node, 0, detail)
    if not any(each.rows for each in known.listed):
        yield CompletenessFinding(UNJUDGED, None, 0, "the archive holds no events")
    alone = [node for node in known.trust.self_asserted if node not in known.absent]
    # A gateway without peers has no witness.
    if alone and len(known.listed) > 1:
        names = f"{', '.join(alone[:5])}{' and others' if len(alone) > 5 else ''}"
        yield CompletenessFinding(
            UNJUDGED, None, 0, f"no room facts of another gateway vouch for the keys of {names}"
        )


def _find_silent_gateways(known: ArchiveEvidence) -> Iterator[CompletenessFinding]:
    """Nodes with an archive but without room facts, although a gateway writes both.

    Their facts may have been deleted, and with them the heads that they saw.
    """
    if not known.trust.facts:
        return
    doubted = {doubt.node for doubt in known.trust.doubts}
    told = {facts.node for facts in known.trust.facts} | doubted | known.absent
    silent = known.trust.members - told
    for each in known.listed:
        if each.node in silent:
            detail = "its room facts are missing, with the heads of other outboxes that it saw"
            yield CompletenessFinding(UNJUDGED, each.node, 0, detail)


def _last_archived_at(listed: ArchiveManifest) -> int:
    return max((each.archived_at for each in listed.segments), default=0)
