"""What one JVM has loaded is there for the next one, and never in its way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gatepost.pipeline.java import write_shim
from gatepost.pipeline.jvm_class_cache import JvmClassCache

_SESSION = """
from gatepost.pipeline.session import spark_session
with spark_session("local[1]", brief=True, keep_classes={keep}) as spark:
    print(spark.range(3).count())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write_shim(Path(sys.executable), tmp_path)


def _files(home: Path) -> list[str]:
    return sorted(file.name for file in home.iterdir() if file.name != "bin")


def _written(shared: JvmClassCache) -> Path:
    """What a JVM does at its end."""
    option = shared.jvm_options.split()[0]
    assert option.startswith("-XX:ArchiveClassesAtExit=")
    fresh = Path(option.partition("=")[2])
    fresh.write_bytes(b"classes")
    return fresh


def test_what_is_made_once_others_use(home: Path) -> None:
    assert JvmClassCache(home).jvm_options == ""
    first = JvmClassCache(home, make=True)
    _written(first)
    first.finish_recording(well=True)
    (name,) = _files(home)
    assert JvmClassCache(home).jvm_options.startswith(f"-XX:SharedArchiveFile={home / name} ")


def test_of_a_jvm_that_was_killed_nothing_is_kept(home: Path) -> None:
    first = JvmClassCache(home, make=True)
    _written(first)
    first.finish_recording(well=False)
    assert _files(home) == []


def test_what_is_of_no_use_any_more_is_removed(home: Path) -> None:
    (home / "classes-0123456789abcdef.jsa").write_bytes(b"of another Spark")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    (home / f".classes-0123456789abcdef.jsa.{gone.pid}").write_bytes(b"of a job that was killed")
    (home / f".classes-0123456789abcdef.jsa.{os.getppid()}").write_bytes(b"of a job that runs")
    shared = JvmClassCache(home, make=True)
    _written(shared)
    shared.finish_recording(well=True)
    kept = [name for name in _files(home) if not name.endswith(f".{os.getppid()}")]
    assert len(kept) == len(_files(home)) - 1 == 1
    assert "0123456789abcdef" not in kept[0]


def test_another_java_has_classes_of_its_own(home: Path, tmp_path: Path) -> None:
    one = JvmClassCache(home, make=True)
    _written(one)
    one.finish_recording(well=True)
    other = write_shim(Path("/bin/sh"), tmp_path)
    assert JvmClassCache(home).jvm_options
    assert not JvmClassCache(other).jvm_options


@pytest.mark.full
def test_a_session_starts_from_what_another_kept(tmp_path: Path) -> None:
    """Where the Java can do that; the one from pip cannot, and does without."""
    for keep in (True, False):
        ran = subprocess.run(
            [sys.executable, "-c", _SESSION.format(keep=keep)],
            capture_output=True,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
            timeout=120,
            check=True,
        )
        assert (ran.stdout, ran.stderr) == ("3\n", "")
    if not list(tmp_path.rglob("*.jsa")):
        pytest.skip("this Java has no archive of its own classes to build on")
