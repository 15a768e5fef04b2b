"""Computes the findings of the last days over all nodes: incidents, reviews and ETA advice.

One executor suffices while all is well: there are few cases, and an hour has few paces however many
tasks they sum up. Many cases are divided. Cases come together by the node that was sent to, dead
letters by the node that gave up, tasks by capability. So no executor needs more than the cases of
some nodes. Only cases that show a wrong clock come together on one: it compares all nodes.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.pipeline.delta_tables import StoredFile
from gatepost.pipeline.jobs.executors import write_on_executors
from gatepost.pipeline.jobs.shares import pack_shares
from gatepost.pipeline.kernels import advice, incidents
from gatepost.pipeline.kernels.blocks import decode_block, encode_block, hash_texts
from gatepost.pipeline.kernels.groups import CodedColumns
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile
from gatepost.pipeline.read_plan import SetAside
from gatepost.pipeline.table_files import at_least, read_files, write_rows
from gatepost.pipeline.tables.arrow_schemas import arrow_schema
from gatepost.pipeline.tables.schemas import (
    ACTIVITY,
    CASES,
    ETA,
    HOUR_MS,
    INCIDENTS,
    PACES,
    REVIEWS,
    TableSpec,
)
from gatepost.pipeline.transport import RESULT_PART, Block, FoldStep, PartBlock, Transport

# About how many cases one executor holds.
_AT_ONCE = 500_000

_RECEIVED, _GIVEN_UP, _SKEWED, _TASKS = "received", "given up", "skewed", "tasks"
_PACES, _ACTIVITY, _ASIDE = "paces", "activity", "aside"


class FindingsInput(Struct, frozen=True):
    """The period that findings cover, and the files of each table they are made of."""

    since: int
    as_of: int
    activity: list[StoredFile]
    cases: list[StoredFile]
    paces: list[StoredFile]
    # What was set aside, including segments that are repaired now.
    aside: tuple[SetAside, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in (*self.activity, *self.cases, *self.paces))


def write_findings(
    transport: Transport,
    known: FindingsInput,
    folders: Mapping[TableSpec, str],
    objectives: Objectives,
) -> dict[TableSpec, list[WrittenFile]]:
    """Write these tables, each into its folder."""
    parts = -(-sum(file.rows for file in known.cases) // _AT_ONCE)
    if parts > 1:
        return _write_divided(transport, known, folders, objectives, parts)
    tables = list(folders)

    def make_tables(known: FindingsInput) -> list[tuple[TableSpec, pa.Table]]:
        made = _build_findings(known, objectives)
        return [(table, made[table]) for table in tables]

    return write_on_executors(transport, [known], make_tables, folders)


def _write_divided(
    transport: Transport,
    known: FindingsInput,
    folders: Mapping[TableSpec, str],
    objectives: Objectives,
    parts: int,
) -> dict[TableSpec, list[WrittenFile]]:
    kernel = _DividedFindings(dict(folders), objectives, known.since, known.as_of, parts)
    files = {CASES: known.cases, PACES: known.paces, ACTIVITY: known.activity}
    shares: list[_FindingsShare | tuple[SetAside, ...]] = [known.aside]
    for table, stored in files.items():
        packed = pack_shares(stored, _AT_ONCE)
        shares += [
            _FindingsShare(table.name, _uris(share), sum(file.rows for file in share))
            for share in packed
        ]
    made: dict[TableSpec, list[WrittenFile]] = {table: [] for table in folders}
    by_name = {table.name: table for table in folders}
    for block in transport.run(shares, kernel.read_share, FoldStep(parts, kernel.fold_blocks)):
        name, file = pickle.loads(block)
        made[by_name[name]].append(WrittenFile.decode(file))
    return made


class _FindingsShare(Struct, frozen=True):
    """Files of one table."""

    table: str
    files: list[str]
    rows: int


class _DividedFindings:
    """Reads cases, paces and activity, and computes the findings of each part."""

    def __init__(
        self,
        folders: dict[TableSpec, str],
        objectives: Objectives,
        since: int,
        as_of: int,
        parts: int,
    ) -> None:
        self._folders = folders
        self._objectives = objectives
        self._since, self._as_of = since, as_of
        self._parts = parts

    def read_share(self, share: "_FindingsShare | tuple[SetAside, ...]") -> Iterator[PartBlock]:
        if not isinstance(share, _FindingsShare):
            yield (
                RESULT_PART,
                encode_block(
                    _ASIDE, incidents.describe_aside(share, self._as_of, self._objectives)
                ),
            )
        elif share.table == CASES.name:
            yield from self._split_cases(read_files(CASES, share.files, _recent_hours(self._since)))
        elif share.table == PACES.name:
            rows = read_files(PACES, share.files, _recent_hours(self._since))
            yield from self._split_rows(_PACES, rows, "capability_id")
        else:
            rows = read_files(ACTIVITY, share.files, at_least("last_at", self._since))
            yield from self._split_rows(_ACTIVITY, rows, "node")

    def _split_cases(self, rows: pa.Table) -> Iterator[PartBlock]:
        yield from self._split_rows(_RECEIVED, rows.filter(rows["to_node"].is_valid()), "to_node")
        yield from self._split_rows(_GIVEN_UP, rows.filter(rows["dead_at"].is_valid()), "node")
        tasks = rows.filter(rows["task_state"].is_valid())
        yield from self._split_rows(_TASKS, tasks, "capability_id")
        skewed = incidents.is_skewed(CodedColumns(rows), self._objectives)
        if skewed.any():
            yield RESULT_PART, encode_block(_SKEWED, rows.filter(pa.array(skewed)))

    def _split_rows(self, name: str, rows: pa.Table, key: str) -> Iterator[PartBlock]:
        """The rows by the hash of a text."""
        part = hash_texts(rows[key]) % self._parts if rows.num_rows else np.zeros(0, np.int64)
        for number in np.unique(part).tolist():
            yield number, encode_block(name, rows.filter(pa.array(part == number)))

    def fold_blocks(self, blocks: Iterator[Block]) -> Iterator[PartBlock]:
        """Write the findings of all blocks of a part."""
        found: dict[str, list[pa.Table]] = {}
        for name, table in map(decode_block, blocks):
            found.setdefault(name, []).append(table)
        for table, rows in self._build_tables(found).items():
            if table in self._folders:
                for file in write_rows(table, rows, self._folders[table]):
                    yield RESULT_PART, pickle.dumps((table.name, file.encode()))

    def _build_tables(self, found: Mapping[str, list[pa.Table]]) -> dict[TableSpec, pa.Table]:
        def joined(name: str, table: TableSpec) -> CodedColumns:
            parts = found.get(name) or [arrow_schema(table).empty_table()]
            return CodedColumns(pa.concat_tables(parts).combine_chunks())

        as_of, objectives = self._as_of, self._objectives
        paces, activity = joined(_PACES, PACES), joined(_ACTIVITY, ACTIVITY)
        received, given_up = joined(_RECEIVED, CASES), joined(_GIVEN_UP, CASES)
        seen = [
            incidents.find_receiver_incidents(received, activity, as_of, objectives),
            incidents.find_sender_incidents(given_up, as_of, objectives),
            incidents.find_clock_skews(joined(_SKEWED, CASES), as_of, objectives),
            *found.get(_ASIDE, []),
        ]
        return {
            ETA: advice.compute_eta_advice(paces),
            REVIEWS: advice.find_reviews(joined(_TASKS, CASES), paces, as_of, objectives),
            INCIDENTS: pa.concat_tables(seen),
        }


def _build_findings(known: FindingsInput, objectives: Objectives) -> dict[TableSpec, pa.Table]:
    recent = _recent_hours(known.since)
    cases, paces = (
        CodedColumns(read_files(CASES, _uris(known.cases), recent)),
        CodedColumns(read_files(PACES, _uris(known.paces), recent)),
    )
    activity = CodedColumns(
        read_files(ACTIVITY, _uris(known.activity), at_least("last_at", known.since))
    )
    return {
        ETA: advice.compute_eta_advice(paces),
        REVIEWS: advice.find_reviews(cases, paces, known.as_of, objectives),
        INCIDENTS: pa.concat_tables(
            [
                incidents.find_incidents(cases, activity, known.as_of, objectives),
                incidents.describe_aside(known.aside, known.as_of, objectives),
            ]
        ),
    }


def _uris(files: Sequence[StoredFile]) -> list[str]:
    return [file.uri for file in files]


def _recent_hours(since: int) -> pc.Expression:
    """The condition that a row is of this hour or later; a day's file may begin before it."""
    return pc.field("hour") >= since // HOUR_MS
