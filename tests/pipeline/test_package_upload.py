"""The package in one file that a worker can import."""

import subprocess
import sys
from pathlib import Path

from gatepost.pipeline.package_upload import zip_package


def test_a_worker_imports_the_package_from_the_file(tmp_path: Path) -> None:
    shipped = zip_package(tmp_path / "gatepost.zip")
    code = (
        f"import sys; sys.path.insert(0, {str(shipped)!r});"
        " import gatepost.pipeline.archive_reader as r;"
        " import gatepost.pipeline.file_check;"
        " from gatepost.pipeline.jobs import deliveries, findings, hourly_tables"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}; print(r.__file__, 'nacl' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    # What signing needs is not asked of workers.
    assert said.split() == [f"{shipped}/gatepost/pipeline/archive_reader.py", "False"]


def test_the_same_package_makes_the_same_file(tmp_path: Path) -> None:
    one, two = zip_package(tmp_path / "1.zip"), zip_package(tmp_path / "2.zip")
    assert one.read_bytes() == two.read_bytes()


def test_the_command_runs_from_the_file(tmp_path: Path) -> None:
    shipped = zip_package(tmp_path / "gatepost.zip")
    code = (
        f"import sys; sys.path.insert(0, {str(shipped)!r});"
        " from gatepost.cli import main; sys.argv[1:] = ['pipeline', 'run', '--help']; main()"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "--archive" in said
