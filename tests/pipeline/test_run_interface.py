"""Spark's web interface answers while `gatepost pipeline run` is at work; its event log stays."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from gatepost.pipeline.synth import SynthOptions, generate_archive
from tests.pipeline.spark_settings import QUICK_SPARK
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

READ = "jobs.deliveries.write_deliveries"


def test_a_run_shows_its_queries_while_it_works_and_leaves_them_in_the_event_log(
    tmp_path: Path,
) -> None:
    archive, log = tmp_path / "archive", tmp_path / "log"
    truth = generate_archive(str(archive), SynthOptions(events=600))
    log.mkdir()
    port = _free_port()
    settings = QUICK_SPARK | {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
    }
    command = [sys.executable, "-m", "gatepost.cli", "pipeline", "run", "--master", "local[1]"]
    command += ["--archive", str(archive), "--tables", str(tmp_path / "tables"), "--json"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        try:
            query = wait_until(lambda: _shown_query(port) or job.poll() is not None, 120)
            output, _ = job.communicate(timeout=120)
        finally:
            job.kill()
    assert job.returncode == 0
    assert isinstance(query, dict), "the job ended before its interface showed a query"
    assert query["description"].startswith(f"{READ}: {truth.events:,} rows in ")
    shown = json.loads(output)
    assert shown["events"] == truth.events
    (logged,) = (file for file in log.rglob("events_*") if file.is_file())
    events = list(map(json.loads, logged.read_text().splitlines()))
    queries = [event for event in events if event["Event"].endswith("SQLExecutionStart")]
    assert len(queries) == shown["engine"]["sql_executions"]
    assert any(event["description"].startswith(READ) for event in queries)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _shown_query(port: int) -> Any:
    """The query that reads the events, once the interface shows it."""
    try:
        (application,) = _ask(port, "")
        queries = _ask(port, f"/{application['id']}/sql?length=1000")
    except (URLError, ValueError, ConnectionError):
        return None
    return next((each for each in queries if each["description"].startswith(READ)), None)


def _ask(port: int, path: str) -> Any:
    url = f"http://127.0.0.1:{port}/api/v1/applications{path}"
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)
