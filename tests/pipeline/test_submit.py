"""The jobs as a program of `spark-submit`, which alone says where and how."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from gatepost.cli.runner import run_command
from gatepost.pipeline.java import java_home
from gatepost.pipeline.synth import SynthOptions, generate_archive


@pytest.mark.full
@pytest.mark.timeout(400)
def test_spark_submit_runs_a_packaged_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, tables, jobs = (str(tmp_path / name) for name in ("archive", "tables", "jobs"))
    truth = generate_archive(archive, SynthOptions(events=600))
    assert run_command(["pipeline", "package", jobs]) == 0
    package, program = capsys.readouterr().out.split()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", "--conf", "spark.app.name=ours"]
    command += ["--conf", f"spark.eventLog.dir={tmp_path}", "--conf", "spark.eventLog.enabled=true"]
    command += ["--conf", "spark.eventLog.compress=false"]
    command += ["--py-files", package, program, "run", "--archive", archive, "--tables", tables]
    env = os.environ | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": ""}
    done = subprocess.run(
        [*command, "--json"], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout[done.stdout.index("{") :])["events"] == truth.events
    logged = "".join(
        file.read_text(errors="replace") for file in tmp_path.rglob("*local-*") if file.is_file()
    )
    assert "SparkListenerSQLExecutionStart" in logged
