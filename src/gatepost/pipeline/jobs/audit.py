"""`audit`: does the archive keep every promise of the protocol?"""

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gatepost.archive import manifest, room_facts
from gatepost.archive.manifest import Manifest
from gatepost.archive.room_facts import RoomFacts
from gatepost.archive.store import Store
from gatepost.pipeline.audit import chains, promises
from gatepost.pipeline.audit.rules import RULES
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.sink import read_table, write_table
from gatepost.pipeline.source import spark_schema
from gatepost.pipeline.tables.schemas import VIOLATIONS

_COLUMNS = (
    *("node", "incarnation", "seq", "event_id", "kind", "source_agent", "to_node", "to_agent"),
    *("pair_seq", "corr_id", "ref_id", "created_at", "attempt", "payload_size"),
    *("status", "outcome"),
)


class Audited(Struct, frozen=True):
    """How many violations of each rule there are; an archive that keeps its word has none."""

    events: int
    violations: dict[str, int]

    @property
    def clean(self) -> bool:
        return not self.violations


def audit(
    spark: SparkSession, archive: str, tables: str, objectives: Objectives | None = None
) -> Audited:
    """Check everything, and write what was found to the table `violations`."""
    path = f"{tables.rstrip('/')}/{VIOLATIONS.name}"
    write_table(violations(spark, archive, objectives), path, mode="overwrite")
    counts = read_table(spark, path).groupBy("rule").count().collect()
    events = sum(listed.rows for listed in chains.manifests(archive))
    return Audited(events, {row["rule"]: row["count"] for row in counts})


def violations(
    spark: SparkSession, archive: str, objectives: Objectives | None = None
) -> DataFrame:
    """Every broken promise, with its sentence."""
    facts = room_facts.read_all(Store.open(archive))
    listed = chains.manifests(archive)
    limit = (objectives or Objectives()).max_inline
    found = promises.check(_events(spark, archive, listed), facts, limit)
    found = found.unionByName(
        chains.check(spark, archive, _keys(facts, listed)), allowMissingColumns=True
    )
    found = found.unionByName(_of_room(spark, facts, listed), allowMissingColumns=True)
    sentences = F.create_map(*(F.lit(text) for rule in RULES.items() for text in rule))
    return found.withColumn("sentence", sentences[F.col("rule")]).select(*VIOLATIONS.names)


def _events(spark: SparkSession, archive: str, listed: list[Manifest]) -> DataFrame:
    """What the manifests list, whether it is complete or not."""
    files = [
        f"{archive.rstrip('/')}/{manifest.folder_of(node.node)}/{segment.path}"
        for node in listed
        for segment in node.segments
    ]
    if not files:
        return spark.createDataFrame([], spark_schema()).select(*_COLUMNS)
    reader = spark.read.schema(spark_schema()).option("basePath", archive)
    return reader.parquet(*files).select(*_COLUMNS)


def _keys(facts: list[RoomFacts], listed: list[Manifest]) -> dict[str, tuple[bytes, ...]]:
    """By node: the key the room knows; the manifest's own only where no room knows the node."""
    keys: dict[str, set[bytes]] = {}
    for known in facts:
        for node in known.nodes:
            keys.setdefault(node.id, set()).add(node.public_key)
        for gone in known.revocations:
            keys.setdefault(gone.node, set()).add(gone.public_key)
    own = {node.node: {node.public_key} for node in listed}
    return {node: tuple(sorted(known)) for node, known in (own | keys).items()}


def _of_room(spark: SparkSession, facts: list[RoomFacts], listed: list[Manifest]) -> DataFrame:
    rows = [
        (
            "two_publishers",
            claims[-1][1],
            claims[-1][0],
            f"term {counter}: {', '.join(node for _, node in claims)}",
        )
        for counter, claims in promises.publishers(facts)
    ]
    rows += [
        ("altered_segment", node.node, 0, "the manifest is not signed by the node's key")
        for node in listed
        if not _signed(node, _keys(facts, listed)[node.node])
    ]
    return spark.createDataFrame(rows, "rule string, node string, at bigint, detail string")


def _signed(listed: Manifest, keys: tuple[bytes, ...]) -> bool:
    return listed.public_key in keys and manifest.is_signed(listed)
