"""Describes the engine of a job, its session, and the work that it executed."""

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from gatepost.pipeline.package_upload import is_connect
from gatepost.pipeline.transport import SparkTransport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EngineName = Literal["spark", "local"]


class EngineUse(Struct, frozen=True, omit_defaults=True):
    """`input_rows`: rows of archived events and of tables that the jobs read.

    The rest is about Spark. `session_seconds` is what its session took to start; little, if it ran
    already. `executors` is None where Spark does not tell it: through Spark Connect.
    `sql_executions` counts the queries in Spark's own SQL store, or those that were sent to
    Spark Connect.
    """

    engine: EngineName
    input_rows: int
    version: str | None = None
    master: str | None = None
    cores: int | None = None
    executors: int | None = None
    session_seconds: float | None = None
    sql_executions: int | None = None

    def describe(self) -> str:
        """One line: `Spark 4.3.0 on local[*]: 1 executor, …`."""
        rows = f"{self.input_rows:,} input rows"
        if self.engine == "local":
            return f"in this process, without Spark: {rows}"
        parts = [
            "" if self.executors is None else _count_noun(self.executors, "executor"),
            _count_noun(self.cores or 0, "core"),
            f"session start {self.session_seconds:.1f} s",
            _count_noun(self.sql_executions or 0, "SQL execution"),
            rows,
        ]
        return f"Spark {self.version} on {self.master}: {', '.join(filter(None, parts))}"


def _count_noun(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class SparkUse:
    """Observes a session from now on."""

    def __init__(self, transport: SparkTransport, session_seconds: float) -> None:
        self._transport = transport
        self._session_seconds = session_seconds
        self._connected = is_connect(transport.spark)
        self._before = 0 if self._connected else _last_execution(transport.spark)

    def measure(self) -> EngineUse:
        """The use of the session since then."""
        spark, connected = self._transport.spark, self._connected
        return EngineUse(
            "spark",
            self._transport.input_rows,
            version=spark.version,
            master=spark.conf.get("spark.master", None) or "Spark Connect",
            cores=self._transport.slots,
            executors=None if connected else _count_executors(spark),
            session_seconds=round(self._session_seconds, 2),
            sql_executions=(
                self._transport.queries if connected else _last_execution(spark) - self._before
            ),
        )


def _last_execution(spark: "SparkSession") -> int:
    """The number of queries that Spark's SQL store has seen: it numbers them from 0."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    count = store.executionsCount()
    if not count:
        return 0
    # Only the newest queries are kept, so counting them is not enough.
    newest = store.executionsList(count - 1, 1)
    return int(newest.apply(0).executionId()) + 1


def _count_executors(spark: "SparkSession") -> int:
    """The number of executors; in local mode the driver is the only one."""
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    names = [listed.apply(index).id() for index in range(listed.size())]
    return len([name for name in names if name != "driver"]) or 1
