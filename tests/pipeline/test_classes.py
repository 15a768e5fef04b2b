"""What one JVM has loaded is there for the next one, and never in its way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gatepost.pipeline.classes import SharedClasses
from gatepost.pipeline.java import shim

_SESSION = """
from gatepost.pipeline.session import spark_session
with spark_session("local[1]", brief=True, keep_classes={keep}) as spark:
    print(spark.range(3).count())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return shim(Path(sys.executable), tmp_path)


def _files(home: Path) -> list[str]:
    return sorted(file.name for file in home.iterdir() if file.name != "bin")


def _written(shared: SharedClasses) -> Path:
    """What a JVM does at its end."""
    option = shared.options.split()[0]
    assert option.startswith("-XX:ArchiveClassesAtExit=")
    fresh = Path(option.partition("=")[2])
    fresh.write_bytes(b"classes")
    return fresh


def test_what_is_made_once_others_use(home: Path) -> None:
    assert SharedClasses(home).options == ""
    first = SharedClasses(home, make=True)
    _written(first)
    first.ended(well=True)
    (name,) = _files(home)
    assert SharedClasses(home).options.startswith(f"-XX:SharedArchiveFile={home / name} ")


def test_of_a_jvm_that_was_killed_nothing_is_kept(home: Path) -> None:
    first = SharedClasses(home, make=True)
    _written(first)
    first.ended(well=False)
    assert _files(home) == []


def test_what_is_of_no_use_any_more_is_removed(home: Path) -> None:
    (home / "classes-0123456789abcdef.jsa").write_bytes(b"of another Spark")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    (home / f".classes-0123456789abcdef.jsa.{gone.pid}").write_bytes(b"of a job that was killed")
    (home / f".classes-0123456789abcdef.jsa.{os.getppid()}").write_bytes(b"of a job that runs")
    shared = SharedClasses(home, make=True)
    _written(shared)
    shared.ended(well=True)
    kept = [name for name in _files(home) if not name.endswith(f".{os.getppid()}")]
    assert len(kept) == len(_files(home)) - 1 == 1
    assert "0123456789abcdef" not in kept[0]


def test_another_java_has_classes_of_its_own(home: Path, tmp_path: Path) -> None:
    one = SharedClasses(home, make=True)
    _written(one)
    one.ended(well=True)
    other = shim(Path("/bin/sh"), tmp_path)
    assert SharedClasses(home).options
    assert not SharedClasses(other).options


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
