"""What a command says whose extra is not installed."""

import tomllib
from pathlib import Path
from unittest.mock import patch

import pytest

from gatepost.cli.extras import EXTRA_OF_MODULE
from gatepost.errors import ExtraMissing
from gatepost.tasks import policy
from gatepost.tasks.contract_checks import contract_process
from gatepost.tasks.contract_checks.contract_process import ContractProcess, ProcessLimits
from tests.cli.conftest import Cli

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_extra_that_brings_a_module_exists() -> None:
    extras = tomllib.loads(_PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(EXTRA_OF_MODULE.values()) <= extras.keys()
    assert set(EXTRA_OF_MODULE.values()) - {"archive"} <= set(
        extras["all"][0].removeprefix("gatepost[").removesuffix("]").split(",")
    )


def test_a_command_without_its_extra_says_the_line_to_run(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    rules = tmp_path / "policy.cedar"
    rules.write_text("permit(principal, action, resource);")
    with patch.object(policy, "find_spec", return_value=None):
        result = cli("policy", "check", str(rules), "--json")
    assert result.code == 1
    assert result.error["code"] == "extra_missing"
    assert "pip install 'gatepost[hub]'" in result.error["message"]


def test_any_module_of_an_extra_that_is_missing_names_it(tmp_path: Path) -> None:
    with patch.dict("sys.modules", {"gatepost.archive.archive_store": None}):
        result = Cli(tmp_path)("archive", "status", str(tmp_path), "--json")
    assert result.error["code"] == "extra_missing"
    assert "pip install 'gatepost[archive]'" in result.error["message"]


def test_without_cedar_the_hub_permits_nothing_and_says_why() -> None:
    with patch.object(policy, "find_spec", return_value=None):
        rules = policy.Policy()
    agent = policy.PolicyAgent("coder")
    decided = rules.evaluate_task_assignment(
        policy.Operator(), agent, description="x", task_type=""
    )
    assert not decided.allowed
    assert "pip install 'gatepost[hub]'" in (decided.reason or "")


@pytest.mark.anyio
async def test_without_json_schema_a_contract_has_no_verdict_and_says_why() -> None:
    limits = ProcessLimits(1 << 30, cpu_secs=1.0, large_cpu_secs=1.0)
    with (
        patch.object(contract_process, "find_spec", return_value=None),
        pytest.raises(ExtraMissing, match="gatepost\\[hub\\]"),
    ):
        await ContractProcess.start(limits)
