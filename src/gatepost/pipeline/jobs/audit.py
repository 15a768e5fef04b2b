"""The `audit` job: checks that the archive keeps every promise of the protocol.

Every segment is read once. Its hash chain and signatures are checked where it is read. Then events
and receipts meet by the id they are about, and turns meet by their pair. The violations are written
where they are found.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.witnessed_heads import ARCHIVE_GRACE_MS
from gatepost.clock import SystemClock
from gatepost.errors import ArchiveError, ArchiveTooNew
from gatepost.ledger import Ledger
from gatepost.pipeline.audit import hash_chains, trust
from gatepost.pipeline.audit.completeness import (
    ArchiveEvidence,
    CompletenessFinding,
    check_completeness,
    latest_time,
)
from gatepost.pipeline.audit.hash_chains import SegmentLink
from gatepost.pipeline.audit.rules import RULE_ORDER, SENTENCES, UNJUDGED
from gatepost.pipeline.audit.segment_audit import AuditLimits, audit_segment
from gatepost.pipeline.audit.trust import FactsDoubt, KeyTrust
from gatepost.pipeline.delta_tables import begin_write, require_table
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.jobs.message_ledger import read_ledger
from gatepost.pipeline.jobs.shares import pack_shares
from gatepost.pipeline.kernels import evidence, promises
from gatepost.pipeline.kernels.blocks import decode_block, encode_block
from gatepost.pipeline.kernels.evidence import OutboxPart, found_table
from gatepost.pipeline.kernels.promises import UNREAD, OutboxKnowledge, UnreadSegments
from gatepost.pipeline.kernels.spans import ArchivedSpan, SpanIndex, archived_spans
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile
from gatepost.pipeline.small_tables import count_values
from gatepost.pipeline.table_files import write_rows
from gatepost.pipeline.tables.schemas import VIOLATIONS
from gatepost.pipeline.transport import RESULT_PART, Block, FoldStep, PartBlock, Transport

# About how many events one executor reads and compares at a time.
_READ_ROWS = 500_000
_COMPARED_ROWS = 1_000_000

Verdict = Literal["kept", "broken", "undecided"]
NamedTables = Iterable[tuple[str, pa.Table]]


class AuditResult(Struct, frozen=True):
    """The result of an audit.

    `violations` counts the violations of each broken rule, causes first. `unjudged` counts the
    reasons why the audit could not judge a node. No other node vouches for the keys of the
    `self_asserted` nodes. Their events are consistent, but anybody who can write to the whole
    archive could have written them. No other node has seen a head of the `unwitnessed` nodes, so
    nothing proves that their archives are the newest. `ledger` is that of the tables; None if there
    are none.
    """

    events: int
    violations: dict[str, int]
    unjudged: int = 0
    self_asserted: tuple[str, ...] = ()
    unwitnessed: tuple[str, ...] = ()
    ledger: Ledger | None = None

    @property
    def verdict(self) -> Verdict:
        if self.violations:
            return "broken"
        return "undecided" if self.unjudged else "kept"

    @property
    def keys(self) -> str:
        """The origin of the nodes' keys: the room, or `self-asserted` if any node's is."""
        return "self-asserted" if self.self_asserted else "room"


class AuditShare(Struct, frozen=True):
    """Some segments, with the facts about the outbox of each."""

    archive: str
    segments: list[tuple[SegmentLink, OutboxPart]]

    @property
    def rows(self) -> int:
        return sum(link.rows for link, _ in self.segments)


class _AuditInput(Struct, frozen=True):
    """An opened archive: its manifests, its trusted keys and its files."""

    archive: str
    listed: list[ArchiveManifest]
    trust: KeyTrust
    # Nodes without a usable manifest, and the reason.
    unlisted: list[FactsDoubt]
    # Nodes whose manifest a newer Gatepost wrote.
    too_new: list[FactsDoubt]
    evidence: ArchiveEvidence

    @property
    def rows(self) -> int:
        return sum(listed.rows for listed in self.listed)


def audit_archive(
    transport: Transport,
    archive: str,
    tables: str,
    objectives: Objectives | None = None,
    absent: Collection[str] = (),
) -> AuditResult:
    """Check the whole archive, and write the table `violations`.

    `absent` are the nodes of the room that are known to have no archive here.
    """
    case = _open_archive(archive, absent)
    agreed = BatchLedger(tables).agreed_objectives(objectives)
    path = f"{tables.rstrip('/')}/{VIOLATIONS.name}"
    writing = begin_write(path, VIOLATIONS.schema, mode="overwrite", comment=VIOLATIONS.meaning)
    files = _compare_events(transport, case, agreed, writing.path)
    files += _write_found([_archive_violations(case)], writing.path)
    writing.commit(files)
    found = count_values(require_table(path), "rule")
    unjudged = found.pop(UNJUDGED, 0)
    counts = dict(sorted(found.items(), key=lambda count: RULE_ORDER[count[0]]))
    seen = {node for node, _ in case.trust.heads}
    unwitnessed = tuple(each.node for each in case.listed if each.node not in seen)
    ledger = read_ledger(transport, tables)
    return AuditResult(case.rows, counts, unjudged, case.trust.self_asserted, unwitnessed, ledger)


def _open_archive(archive: str, absent: Collection[str]) -> _AuditInput:
    store = ArchiveStore.open(archive)
    listed, unlisted, too_new = [], [], []
    for node in manifest.archived_nodes(store):
        try:
            found = manifest.read_manifest(store, node)
        except ArchiveTooNew as error:
            too_new.append(FactsDoubt(node, 0, error.message))
            continue
        except ArchiveError as error:
            unlisted.append(FactsDoubt(node, 0, error.message))
            continue
        if found is None or found.node != node:
            unlisted.append(FactsDoubt(node, 0, "no manifest of its own lists its files"))
        else:
            listed.append(found)
    doubts: list[FactsDoubt] = []
    judged = trust.judge_room_facts(trust.read_room_facts(store, doubts), listed)
    judged.doubts.extend(doubts)
    without = {each.node for each in (*unlisted, *too_new)}
    known = ArchiveEvidence(listed, without, judged, frozenset(absent), SystemClock().now())
    return _AuditInput(archive, listed, judged, unlisted, too_new, known)


def _compare_events(
    transport: Transport, case: _AuditInput, objectives: Objectives, folder: str
) -> list[WrittenFile]:
    """Check all segments, and write the violations that they show to files in this folder."""
    spans = archived_spans(case.listed)
    known = OutboxKnowledge(
        SpanIndex.from_spans(spans, objectives.archiving * 1000),
        latest_time(case.evidence) - ARCHIVE_GRACE_MS,
    )
    limits = AuditLimits(objectives.max_inline, objectives.id_age, objectives.archiving * 1000)
    parts = max(1, -(-case.rows // _COMPARED_ROWS))
    made = transport.run(
        _plan_shares(case, spans, transport.slots),
        _read_kernel(parts, limits),
        FoldStep(parts, _compare_kernel(parts, known, limits.slack)),
        FoldStep(parts, _finish_kernel(case.evidence.known_nodes | case.trust.members, folder)),
    )
    return [WrittenFile.decode(file) for file in made]


def _plan_shares(case: _AuditInput, spans: Sequence[ArchivedSpan], slots: int) -> list[AuditShare]:
    valid = promises.last_valid_seqs(case.trust.facts)
    outboxes: dict[tuple[str, str], OutboxPart] = {}
    for listed in case.listed:
        for number, incarnation in enumerate(listed.incarnations):
            outboxes[listed.node, incarnation.id] = OutboxPart(
                listed.node, incarnation.id, number, None, valid.get(listed.node)
            )
    for span in spans:
        before = outboxes[span.node, span.incarnation]
        outboxes[span.node, span.incarnation] = OutboxPart(
            span.node, span.incarnation, before.number, span.forgotten, before.valid
        )
    # Events of nodes outside the room are not judged, and are not evidence against others.
    members = case.trust.members or frozenset(node.node for node in case.listed)
    links = [
        link
        for node in case.listed
        if node.node in members
        for link in hash_chains.segment_links(node, case.trust.keys, case.trust.heads)
    ]
    each = min(_READ_ROWS, -(-case.rows // slots))
    return [
        AuditShare(case.archive, [(link, _part_of(link, outboxes)) for link in share])
        for share in pack_shares(links, max(1, each))
    ]


def _part_of(link: SegmentLink, outboxes: Mapping[tuple[str, str], OutboxPart]) -> OutboxPart:
    known = outboxes.get((link.node, link.incarnation))
    return known or OutboxPart(link.node, link.incarnation, 0, None, None)


def _repeat_unread(named: NamedTables, parts: int) -> Iterator[tuple[str, pa.Table]]:
    """The tables with those of unread segments for each part: all of them have to know these."""
    for name, table in named:
        if name != UNREAD:
            yield name, table
            continue
        for part in range(parts):
            yield name, table.append_column("part", pa.array([part], pa.int64()))


def _read_kernel(parts: int, limits: AuditLimits) -> Callable[[AuditShare], Iterator[PartBlock]]:
    """Reads segments: their violations, and their evidence split by event id."""

    def read(share: AuditShare) -> Iterator[PartBlock]:
        store = ArchiveStore.open(share.archive)
        for link, part in share.segments:
            audited = audit_segment(link, part, store.read_file, limits)
            if audited.found:
                made = [(evidence.FOUND, _chain_violations(link, audited.found))]
                yield from _split_blocks(made, {}, parts)
            keys = {evidence.SENT: "low", evidence.RECEIPTS: "low", UNREAD: "part"}
            yield from _split_blocks(_repeat_unread(audited.named, parts), keys, parts)

    return read


def _compare_kernel(
    parts: int, known: OutboxKnowledge, slack: int
) -> Callable[[Iterator[Block]], Iterator[PartBlock]]:
    """Compares events with receipts; everything else passes through."""

    def compare(blocks: Iterator[Block]) -> Iterator[PartBlock]:
        named = _group_blocks(blocks)
        sent, receipts = named.pop(evidence.SENT, []), named.pop(evidence.RECEIPTS, [])
        unread = UnreadSegments.from_tables(named.get(UNREAD, []), slack)
        passed = ((name, table) for name, tables in named.items() for table in tables)
        yield from _split_blocks(passed, {UNREAD: "part"}, parts)
        if receipts:
            empty = pa.schema({"high": pa.uint64(), "low": pa.uint64(), "owner": pa.int64()})
            more = {"pair": pa.int64(), "pair_seq": pa.int64()}
            empty = pa.schema([*empty, *pa.schema(more)])
            made = promises.compare_outboxes(
                pa.concat_tables([empty.empty_table(), *sent]),
                _join_tables(receipts),
                known,
                unread,
            )
            yield from _split_blocks(made, {promises.TURNS: "pair"}, parts)

    return compare


def _finish_kernel(
    nodes: frozenset[str], folder: str
) -> Callable[[Iterator[Block]], Iterator[PartBlock]]:
    """Checks the order of turns, and writes all violations of this part."""

    def finish(blocks: Iterator[Block]) -> Iterator[PartBlock]:
        named = _group_blocks(blocks)
        found = named.get(evidence.FOUND, [])
        if turns := named.get(promises.TURNS):
            unread = UnreadSegments.from_tables(named.get(UNREAD, []), 0)
            found.append(promises.find_overtaken_turns(_join_tables(turns), unread))
        found.append(promises.describe_unarchived(named.get(promises.UNARCHIVED, [])))
        found.append(promises.describe_unknown(named.get(evidence.NAMED, []), nodes))
        for file in _write_found(found, folder):
            yield RESULT_PART, file.encode()

    return finish


def _split_blocks(tables: NamedTables, keys: Mapping[str, str], parts: int) -> Iterator[PartBlock]:
    """Blocks of tables that have a key, split by it, and of the others as they are."""
    for name, table in tables:
        if name not in keys or parts == 1:
            block = encode_block(name, table)
            # Violations may be numerous, and any part can write them.
            yield len(block) % parts if name == evidence.FOUND else RESULT_PART, block
            continue
        part = table[keys[name]].to_numpy().astype("uint64") % parts
        for number in range(parts):
            chosen = table.filter(pa.array(part == number))
            if chosen.num_rows:
                yield number, encode_block(name, chosen)


def _group_blocks(blocks: Iterable[Block]) -> dict[str, list[pa.Table]]:
    named: dict[str, list[pa.Table]] = {}
    for name, table in map(decode_block, blocks):
        named.setdefault(name, []).append(table)
    return named


def _join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """One table in one chunk, because taking a few rows of many chunks searches all of them."""
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _chain_violations(link: SegmentLink, found: Sequence[hash_chains.ChainViolation]) -> pa.Table:
    rows = [asdict(each) | {"node": link.node, "incarnation": link.incarnation} for each in found]
    return found_table({name: [row[name] for row in rows] for name in rows[0]})


def _archive_violations(case: _AuditInput) -> pa.Table:
    """The violations that show in manifests and room facts, beside the events."""
    found = [
        CompletenessFinding(
            "two_publishers",
            claims[-1][1],
            claims[-1][0],
            f"term {counter}: {', '.join(node for _, node in claims)}",
        )
        for counter, claims in promises.contested_terms(case.trust.facts)
    ]
    found += [
        _to_finding(UNJUDGED if doubt.too_new else "room_facts", doubt)
        for doubt in case.trust.doubts
    ]
    found += [_to_finding("unsigned_manifest", doubt) for doubt in case.unlisted]
    found += [_to_finding(UNJUDGED, doubt) for doubt in case.too_new]
    found += [
        CompletenessFinding(
            "unsigned_manifest", node.node, 0, "the manifest is not signed by the node's key"
        )
        for node in case.listed
        if node.public_key not in case.trust.keys[node.node]
        or not manifest.is_manifest_signed(node)
    ]
    found += check_completeness(case.evidence)
    columns = CompletenessFinding.__struct_fields__
    return found_table({name: [getattr(each, name) for each in found] for name in columns})


def _to_finding(rule: str, doubt: FactsDoubt) -> CompletenessFinding:
    return CompletenessFinding(rule, doubt.node, doubt.at, doubt.detail)


def _write_found(found: Sequence[pa.Table], folder: str) -> list[WrittenFile]:
    """Write violations with the sentences of their rules."""
    whole = pa.concat_tables(found) if found else None
    if whole is None or not whole.num_rows:
        return []
    sentences = [SENTENCES[rule] for rule in whole["rule"].to_pylist()]
    whole = whole.append_column("sentence", pa.array(sentences, pa.string()))
    return list(write_rows(VIOLATIONS, whole, folder))
