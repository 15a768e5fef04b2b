"""The `audit` job: checks that the archive keeps every promise of the protocol."""

from collections.abc import Sequence

from msgspec import Struct
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.errors import ArchiveError
from gatepost.pipeline.archive_source import spark_schema
from gatepost.pipeline.audit import hash_chains, promises, trust
from gatepost.pipeline.audit.rules import RULES
from gatepost.pipeline.audit.spans import archived_spans
from gatepost.pipeline.audit.trust import FactsDoubt, KeyTrust
from gatepost.pipeline.delta_tables import read_table, write_table
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.schemas import VIOLATIONS

_COLUMNS = (
    *("node", "incarnation", "seq", "event_id", "kind", "source_agent", "to_node", "to_agent"),
    *("pair_seq", "corr_id", "ref_id", "created_at", "attempt", "payload_size"),
    *("status", "outcome"),
)
_ROOM_VIOLATIONS = "rule string, node string, at bigint, detail string"


class AuditResult(Struct, frozen=True):
    """The result of an audit; `violations` counts the violations of each broken rule.

    No other node vouches for the keys of the `self_asserted` nodes. Their events are consistent,
    but anybody who can write to the whole archive could have written them.
    """

    events: int
    violations: dict[str, int]
    self_asserted: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.violations

    @property
    def keys(self) -> str:
        """The origin of the nodes' keys: the room, or `self-asserted` if any node's is."""
        return "self-asserted" if self.self_asserted else "room"


class _AuditInput(Struct, frozen=True):
    """An opened archive: its manifests, and the keys to believe."""

    archive: str
    listed: list[ArchiveManifest]
    trust: KeyTrust
    # Nodes without a usable manifest, and the reason.
    unlisted: list[FactsDoubt]


def audit_archive(
    spark: SparkSession, archive: str, tables: str, objectives: Objectives | None = None
) -> AuditResult:
    """Check the whole archive, and write the table `violations`."""
    case = _open_archive(archive)
    path = f"{tables.rstrip('/')}/{VIOLATIONS.name}"
    agreed = BatchLedger(tables).agreed_objectives(objectives)
    write_table(_find_violations(spark, case, agreed), path, mode="overwrite")
    counts = read_table(spark, path).groupBy("rule").count().collect()
    events = sum(listed.rows for listed in case.listed)
    found = {row["rule"]: row["count"] for row in counts}
    return AuditResult(events, found, case.trust.self_asserted)


def find_violations(
    spark: SparkSession, archive: str, objectives: Objectives | None = None
) -> DataFrame:
    """Every violation, with the sentence of its rule."""
    return _find_violations(spark, _open_archive(archive), objectives or Objectives())


def _find_violations(spark: SparkSession, case: _AuditInput, objectives: Objectives) -> DataFrame:
    listed, keys = case.listed, case.trust.keys
    events = _read_events(spark, case)
    found = promises.check_promises(events, case.trust.facts, archived_spans(listed), objectives)
    for more in (
        hash_chains.check_chains(spark, case.archive, listed, keys),
        _room_violations(spark, case),
    ):
        found = found.unionByName(more, allowMissingColumns=True)
    sentences = F.create_map(*(F.lit(text) for rule in RULES.items() for text in rule))
    return found.withColumn("sentence", sentences[F.col("rule")]).select(*VIOLATIONS.names)


def _open_archive(archive: str) -> _AuditInput:
    store = ArchiveStore.open(archive)
    listed, unlisted = [], []
    for node in manifest.archived_nodes(store):
        try:
            found = manifest.read_manifest(store, node)
        except ArchiveError as error:
            unlisted.append(FactsDoubt(node, 0, error.message))
            continue
        if found is None or found.node != node:
            unlisted.append(FactsDoubt(node, 0, "no manifest of its own lists its files"))
        else:
            listed.append(found)
    facts, doubts = trust.read_room_facts(store)
    judged = trust.judge_room_facts(facts, listed)
    judged.doubts.extend(doubts)
    return _AuditInput(archive, listed, judged, unlisted)


def _read_events(spark: SparkSession, case: _AuditInput) -> DataFrame:
    """The events of all listed files that exist, whether the archive is complete or not."""
    names = [
        f"{manifest.node_folder(node.node)}/{segment.path}"
        for node in case.listed
        for segment in node.segments
    ]
    files = _existing_files(case.archive, names)
    if not files:
        return spark.createDataFrame([], spark_schema()).select(*_COLUMNS)
    reader = spark.read.schema(spark_schema()).option("basePath", case.archive)
    # Unreadable files are reported by the chain check, and must not stop the checks of the rest.
    return reader.option("ignoreCorruptFiles", "true").parquet(*files).select(*_COLUMNS)


def _existing_files(archive: str, names: Sequence[str]) -> list[str]:
    store = ArchiveStore.open(archive)
    found = store.filesystem.get_file_info([store.full_path(name) for name in names])
    return [
        f"{archive.rstrip('/')}/{name}"
        for name, info in zip(names, found, strict=True)
        if info.type == fs.FileType.File
    ]


def _room_violations(spark: SparkSession, case: _AuditInput) -> DataFrame:
    """The violations that show in manifests and room facts, beside the events."""
    rows = [
        (
            "two_publishers",
            claims[-1][1],
            claims[-1][0],
            f"term {counter}: {', '.join(node for _, node in claims)}",
        )
        for counter, claims in promises.contested_terms(case.trust.facts)
    ]
    rows += [("room_facts", doubt.node, doubt.at, doubt.detail) for doubt in case.trust.doubts]
    rows += [("unsigned_manifest", node.node, node.at, node.detail) for node in case.unlisted]
    rows += [
        ("unsigned_manifest", node.node, 0, "the manifest is not signed by the node's key")
        for node in case.listed
        if node.public_key not in case.trust.keys[node.node]
        or not manifest.is_manifest_signed(node)
    ]
    return spark.createDataFrame(rows, _ROOM_VIOLATIONS)
