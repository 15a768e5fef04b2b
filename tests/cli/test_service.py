"""`gatepost service`: the definitions, checked by the tools of their managers."""

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gatepost.cli.commands import service
from gatepost.cli.service_units import ServicePlan
from tests.cli.conftest import Cli

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "state", XDG_CONFIG_HOME=str(tmp_path / "config"))


def verify(unit: str, folder: Path) -> None:
    file = folder / "gatepost.service"
    file.write_text(unit)
    ran = subprocess.run(
        ["systemd-analyze", "verify", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0 and "gatepost.service:" not in ran.stderr, ran.stderr


def exposure(unit: str, folder: Path) -> float:
    """How much of the machine a service could reach, from 0 to 10."""
    file = folder / "gatepost.service"
    file.write_text(unit)
    ran = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", file],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = re.search(r"exposure level .*: ([0-9.]+)", ran.stdout)
    assert found is not None, ran.stdout
    return float(found[1])


@needs_systemd
def test_the_unit_of_the_system_is_valid_and_locked_down(cli: Cli, tmp_path: Path) -> None:
    unit = cli.ok("service", "install", "--system", "--print")
    verify(unit, tmp_path)
    assert exposure(unit, tmp_path) <= 2.0
    with_agents = cli.ok("service", "install", "--system", "--agents", "--print")
    verify(with_agents, tmp_path)
    assert exposure(with_agents, tmp_path) <= 4.5
    for line in ("User=gatepost", "ProtectSystem=strict", "LimitNOFILE=65536", "UMask=0077"):
        assert line in unit.splitlines()
    assert "ReadWritePaths=/var/lib/gatepost" in unit.splitlines()


@needs_systemd
def test_the_unit_of_a_user_is_valid(cli: Cli, tmp_path: Path) -> None:
    unit = cli.ok("service", "install", "--print")
    verify(unit, tmp_path)
    assert f"Environment=GATEPOST_HOME={cli.home}" in unit.splitlines()
    assert "WantedBy=default.target" in unit.splitlines()
    assert re.search(r"^ExecStart=/.*/gatepost up$", unit, re.M)


@needs_systemd
def test_paths_with_blanks_and_percent_signs_stay_paths(tmp_path: Path) -> None:
    program = tmp_path / "a b" / "gatepost%"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    plan = ServicePlan(str(program), tmp_path / "state%h", "gatepost")
    verify(plan.system_unit(), tmp_path)


def test_the_definition_for_launchd_can_be_read(tmp_path: Path) -> None:
    read = plistlib.loads(ServicePlan("/opt/gatepost/bin/gatepost", tmp_path).launchd_plist())
    assert read["ProgramArguments"] == ["/opt/gatepost/bin/gatepost", "up"]
    assert read["EnvironmentVariables"] == {"GATEPOST_HOME": str(tmp_path)}
    assert read["KeepAlive"] == {"SuccessfulExit": False} and read["Umask"] == 0o077


class FakeManager:
    """Stands in for systemd, which does not run machines of tests."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls"
        program = folder / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\necho "$*" >> {self.log}\n[ "$2" = is-active ] && echo active\nexit 0\n'
        )
        program.chmod(0o755)
        self.path = str(program.parent)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.mark.skipif(sys.platform == "darwin", reason="this machine has launchd")
def test_a_service_of_a_user_is_started_and_removed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = FakeManager(tmp_path)
    monkeypatch.setattr(service, "_SYSTEMD_RUNS", tmp_path)
    cli.env["PATH"] = f"{manager.path}:{cli.env['PATH']}"
    file = tmp_path / "config" / "systemd" / "user" / "gatepost.service"
    assert str(file) in cli.ok("service", "install")
    assert manager.calls() == ["--user daemon-reload", "--user enable --now gatepost"]
    assert cli.home.stat().st_mode & 0o777 == 0o700
    shown = cli("service", "status", "--json")
    assert shown.code == 1, "the manager runs nothing here"
    assert (shown.document["state"], shown.document["is_answering"]) == ("active", False)
    cli.ok("service", "uninstall")
    assert not file.exists() and cli.home.exists()
    assert cli("service", "uninstall", "--json").error["code"] == "not_found"


def test_without_a_manager_the_advice_is_to_print(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_SYSTEMD_RUNS", tmp_path / "nowhere")
    result = cli("service", "install", "--json")
    assert (result.code, result.error["code"]) == (1, "unavailable")
    assert "--print" in result.error["message"]
