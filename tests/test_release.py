"""What is released: its archives, its workflows, and the scripts that both call."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_check_release_refuses_archives_that_lack_something(tmp_path: Path) -> None:
    wheel, sdist = tmp_path / "a.whl", tmp_path / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gatepost-1.dist-info/METADATA", "License-Expression: Apache-2.0\n")
        archive.writestr("gatepost/py.typed", "")
    tarfile.open(sdist, "w").close()
    command = [sys.executable, "scripts/check_release.py", "files", str(wheel), str(sdist)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "the wheel has no licence" in ran.stderr


@pytest.mark.parametrize("name", ["check", "test", "release"])
def test_workflows_call_scripts_that_exist(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    called = re.findall(r"\b(scripts/\w+)", text)
    assert called
    for script in called:
        file = ROOT / script
        assert file.is_file() and file.stat().st_mode & 0o111, script


def test_the_tests_run_on_every_python_that_the_package_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert project["requires-python"] == ">=3.11"
    assert '["3.11", "3.12", "3.13", "3.14"]' in text


def test_the_base_installation_has_neither_the_hub_nor_the_pipeline() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[<>=\[; ]", each)[0] for each in project["dependencies"]}
    assert not base & {"cedarpy", "jsonschema-rs", "pyarrow", "pyspark", "mcp", "docker"}
