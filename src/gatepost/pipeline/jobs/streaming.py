"""Follows the archive with Structured Streaming, onto the same ledger of batches as `run`.

The stream says which events are new: node, incarnation and number, which manifests state, so that
its rows open no segment. `foreachBatch` takes these events in with the ledger, whose kernels read
each segment once, on executors. The offsets of a micro-batch are ranges of outboxes, as a batch of
the ledger is. So a micro-batch that is repeated after a kill, or that `run` has taken in meanwhile,
finds its events in the tables and changes nothing.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from gatepost.archive.storage_uri import is_local_uri
from gatepost.errors import PipelineError
from gatepost.pipeline.archive_source import read_stream
from gatepost.pipeline.jobs.batch_plan import ArchiveLag
from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary
from gatepost.pipeline.package_upload import is_connect
from gatepost.pipeline.read_plan import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_COLUMNS: Final = ("node", "incarnation", "seq")
_QUERY_NAME: Final = "gatepost"
_POLL_SECS: Final = 0.2


class StreamStep(Struct, frozen=True):
    """A micro-batch: Spark's progress report, the events taken in, and the lag of the tables.

    `progress` is Spark's StreamingQueryProgress; None if the ledger took these events in without a
    micro-batch, because the stream had passed them: what was set aside and is right again, or a
    batch that was not finished.
    """

    events: int
    batches: int
    lag: ArchiveLag
    progress: dict[str, Any] | None


class ArchiveStream:
    """One query that brings the tables of a pipeline up to date, again and again."""

    def __init__(self, spark: "SparkSession", pipeline: Pipeline, max_rows: int) -> None:
        if is_connect(spark):
            raise PipelineError(
                "stream needs a driver in this process, and Spark Connect has none:"
                " use --master spark://…, or run"
            )
        self._spark = spark
        self._pipeline = pipeline
        self._max_rows = max_rows
        self._lock = Lock()
        self._ran: dict[int, RunSummary] = {}
        self._failure: Exception | None = None
        self._aside = False

    def follow(
        self,
        *,
        every: float | None,
        checkpoint: str | None,
        stopping: Event,
        report: Callable[[StreamStep], object],
    ) -> None:
        """Trigger each `every` seconds until `stopping` is set; if None, until all is taken in."""
        with _open_checkpoint(checkpoint, self._pipeline.tables.root) as folder:
            self._take_passed(report)
            query = self._start_query(folder, every)
            try:
                self._watch(query, every, stopping, report)
            finally:
                _stop_query(query)
            self._report_new(query, report)

    def _start_query(self, checkpoint: str, every: float | None) -> "StreamingQuery":
        stream = read_stream(
            self._spark,
            self._pipeline.archive_uri,
            columns=_COLUMNS,
            max_rows=self._max_rows,
            # The ledger does not depend on nodes being read together in time.
            patience=0,
            starting_offsets=self._pipeline.taken_offsets(),
            # Segments that are no longer listed are holes, which the ledger notes.
            fail_on_data_loss=False,
        )
        writer = stream.writeStream.queryName(_QUERY_NAME).foreachBatch(self._take_batch)
        writer = (
            writer.trigger(availableNow=True)
            if every is None
            else writer.trigger(processingTime=f"{max(1, round(every * 1000))} milliseconds")
        )
        return writer.option("checkpointLocation", checkpoint).start()

    def _take_batch(self, events: "DataFrame", number: int) -> None:
        """Take in the events up to the end of this micro-batch."""
        from pyspark.sql import functions as F

        ends = events.groupBy("node", "incarnation").agg(F.max("seq").alias("seq")).collect()
        through: Offsets = {}
        for end in ends:
            through.setdefault(end.node, {})[end.incarnation] = end.seq
        try:
            with self._lock:
                self._note(number, self._pipeline.run(self._max_rows, through=through))
        except Exception as error:
            # Spark would only pass on its message.
            self._failure = error
            raise

    def _note(self, number: int, ran: RunSummary) -> None:
        self._ran[number] = ran
        self._aside = bool(ran.aside)

    def _watch(
        self,
        query: "StreamingQuery",
        every: float | None,
        stopping: Event,
        report: Callable[[StreamStep], object],
    ) -> None:
        idle = 0.0
        while query.isActive and not stopping.wait(_POLL_SECS):
            self._report_new(query, report)
            idle = 0.0 if query.status["isTriggerActive"] else idle + _POLL_SECS
            if every is not None and idle >= max(every, _POLL_SECS) and self._aside:
                self._take_passed(report)
                idle = 0.0
        self._raise_failure(query)

    def _take_passed(self, report: Callable[[StreamStep], object]) -> None:
        """Take in events that the stream has passed, so that no micro-batch has them."""
        with self._lock:
            ran = self._pipeline.run(self._max_rows, through=self._pipeline.passed_offsets())
            self._aside = bool(ran.aside)
        if ran.events:
            report(StreamStep(ran.events, ran.batches, self._pipeline.measure_lag(), None))

    def _raise_failure(self, query: "StreamingQuery") -> None:
        if self._failure is not None:
            raise self._failure
        failed = query.exception()
        if failed is not None:
            raise failed

    def _report_new(self, query: "StreamingQuery", report: Callable[[StreamStep], object]) -> None:
        """Report each micro-batch that took in events, with Spark's account of it."""
        for progress in query.recentProgress:
            ran = self._ran.pop(progress.batchId, None)
            if ran is not None and ran.batches:
                told = json.loads(progress.json)
                report(StreamStep(ran.events, ran.batches, self._pipeline.measure_lag(), told))


def _stop_query(query: "StreamingQuery") -> None:
    """Stop between two micro-batches, after finishing the current one."""
    while query.isActive and query.status["isTriggerActive"]:
        query.awaitTermination(1)
    query.stop()


@contextlib.contextmanager
def _open_checkpoint(given: str | None, tables: str) -> Iterator[str]:
    """The folder of the checkpoint: beside local tables, unless another one is given.

    Without one, as for tables in a bucket, the stream begins where the ledger ends.
    """
    if given is not None:
        yield given
    elif is_local_uri(tables):
        yield f"{tables.rstrip('/')}/_checkpoint"
    else:
        with tempfile.TemporaryDirectory(prefix="gatepost-stream-") as folder:
            yield folder
