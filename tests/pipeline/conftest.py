"""A synthetic archive with its tables, and a cluster, for all tests of the pipeline."""

from collections.abc import Iterator

import pytest

from gatepost.pipeline.synth import SynthOptions
from tests.conftest import choose
from tests.pipeline.cluster import standalone_cluster
from tests.pipeline.spark_settings import QUICK_JVM
from tests.pipeline.worlds import PLANTED, World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """20,000 events with everything planted that can be read, and their tables."""
    options = SynthOptions(events=20_000, seed=4, segment_rows=1500)
    return World(tmp_path_factory.mktemp("world"), options, PLANTED)


@pytest.fixture(scope="session")
def master() -> Iterator[str]:
    """A cluster of two workers, or in a reduced run of one that has as many cores."""
    workers = choose(1, 2)
    quick = f"-XX:TieredStopAtLevel=1 {QUICK_JVM}"
    with standalone_cluster(workers, cores=2 // workers, memory="600m", java_options=quick) as url:
        yield url
