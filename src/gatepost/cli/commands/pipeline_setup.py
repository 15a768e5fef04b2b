"""`gatepost pipeline prepare` and `synth`: faster starts of Spark, and archives for trials."""

from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.progress_bar import ProgressBar
from gatepost.cli.spark_jobs import PositiveCount, open_spark, require_pipeline, run_in_thread


class PreparedDocument(Struct):
    """`prepared`: whether the JVM class cache exists now; not every Java can create it."""

    prepared: bool


def prepare_spark(*, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """Create a JVM class cache, so that later jobs on this machine start faster.

    Takes a minute and about 190 MB in ~/.cache/gatepost. Repeat it after an update of
    Java or Spark.

    For example:

      gatepost pipeline prepare
    """
    from gatepost.pipeline.jvm_class_cache import has_class_cache

    with TemporaryDirectory(prefix="gatepost-") as folder:
        archive, tables = f"{folder}/archive", f"{folder}/tables"
        with open_spark(None, options, "running every job once", True, keep_classes=True) as spark:
            from gatepost.pipeline.jobs.audit import audit_archive as check
            from gatepost.pipeline.jobs.pipeline import update_tables as bring
            from gatepost.pipeline.report.gatherer import gather_report
            from gatepost.pipeline.synth import SynthOptions as Synth
            from gatepost.pipeline.synth import generate_archive
            from gatepost.pipeline.transport import SparkTransport

            generate_archive(archive, Synth(events=5_000))
            transport = SparkTransport(spark)
            run_in_thread(spark, lambda: bring(transport, archive, tables))
            run_in_thread(spark, lambda: check(transport, archive, tables))
            run_in_thread(spark, lambda: gather_report(transport, tables))
    done = has_class_cache()
    text = "later jobs start faster now" if done else "this Java cannot create a class cache"
    output.print_result(options, PreparedDocument(done), lambda: output.print_line(text))


def package_jobs(folder: Path, /, *, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """Write the files that spark-submit needs to run the jobs.

    For example:

      gatepost pipeline package /tmp/jobs
      spark-submit --master yarn --py-files /tmp/jobs/gatepost.zip \\
        /tmp/jobs/gatepost_job.py run --archive s3://bucket/archive --tables s3://bucket/tables

    Parameters
    ----------
    folder
        The folder for gatepost.zip and gatepost_job.py.
    """
    with require_pipeline():
        from gatepost.pipeline.package_upload import write_package

        files = [str(path) for path in write_package(folder)]
    output.print_result(options, files, lambda: output.print_line("\n".join(files)))


def write_synthetic_archive(
    folder: str,
    /,
    *,
    events: PositiveCount = 100_000,
    nodes: PositiveCount = 4,
    seed: int = 0,
    jobs: PositiveCount = 1,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Write a synthetic archive for trials, with a file of its true figures.

    For example:

      gatepost pipeline synth /tmp/archive
      gatepost pipeline synth /tmp/archive --events 1000000 --nodes 6

    Parameters
    ----------
    folder
        The folder to write to; it must be empty.
    events
        Approximate number of events.
    nodes
        Number of nodes.
    seed
        The same seed gives the same archive.
    jobs
        Number of writing processes.
    """
    with require_pipeline():
        from gatepost.pipeline.session import require_spark

        require_spark()
        from gatepost.pipeline.synth import SynthOptions as Synth
        from gatepost.pipeline.synth import generate_archive
    shape = Synth(events=events, nodes=nodes, seed=seed, jobs=jobs)
    with ProgressBar("writing", events, options, "messages") as progress:
        truth = generate_archive(folder, shape, progress.advance)
    text = f"{output.format_count(truth.events, 'event')} of {nodes} nodes in {folder}"
    output.print_result(options, truth, lambda: output.print_line(text))
