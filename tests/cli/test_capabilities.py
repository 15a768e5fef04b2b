"""`gatepost capability`, on a real gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli


def describe(tmp_path: Path, owner: str, **fields: Any) -> str:
    skill = {"ref": "skills/x", "version": "1.0"}
    document = {
        "capability_id": "paint", "name": "Painting", "version": "2.0", "owner_agent_id": owner,
        "delegation_skill": skill, "executor_skill": skill, "default_eta_seconds": 90,
        "contract": {}, **fields,
    }  # fmt: skip
    document = {name: value for name, value in document.items() if value is not None}
    file = tmp_path / "paint.json"
    file.write_text(json.dumps(document))
    return str(file)


def test_a_capability_is_published_listed_and_withdrawn(
    cli: Cli, agent: str, tmp_path: Path
) -> None:
    said = cli.ok("capability", "publish", describe(tmp_path, agent))
    assert said.startswith(f"paint 2.0 is published for {agent}\n{agent} states no executor skills")
    assert f"paint\t2.0\t{agent}" in cli.ok("capability", "list")
    shown = cli.ok("capability", "health", "paint")
    assert shown.startswith(f"paint 2.0 of {agent}, active") and "open reviews: 0" in shown
    made = cli.json("task", "create", "--capability", "paint", "paint it", "--may-wait")
    assert (made["agent_name"], made["capability_id"]) == (agent, "paint")
    cli.ok("capability", "publish", describe(tmp_path, agent, status="deprecated"))
    assert "deprecated" in cli.ok("capability", "list")
    cli.ok("task", "create", "--capability", "paint", "paint it")
    cli.ok("capability", "publish", describe(tmp_path, agent, status="disabled"))
    refused = cli("--json", "task", "create", "--capability", "paint", "paint it")
    assert refused.error["code"] == "capability_unavailable" and "is disabled" in refused.err
    assert cli.ok("capability", "unpublish", "paint") == "paint is withdrawn\n"
    assert "paint" not in cli.ok("capability", "list")
    refused = cli("--json", "task", "create", "--capability", "paint", "paint it")
    assert refused.error["code"] == "no_route"
    cli.ok("reviews", "list")


def test_a_file_with_the_names_of_the_catalog_is_published(
    cli: Cli, agent: str, tmp_path: Path
) -> None:
    file = Path(describe(tmp_path, agent))
    camel = {
        "capability_id": "capabilityId", "owner_agent_id": "ownerAgentId",
        "delegation_skill": "delegationSkillRef", "executor_skill": "executorSkillRef",
        "default_eta_seconds": "defaultEtaSeconds", "contract": "contractSchemaRef",
    }  # fmt: skip
    document = json.loads(file.read_text())
    file.write_text(json.dumps({camel.get(name, name): document[name] for name in document}))
    assert "is published" in cli.ok("capability", "publish", str(file))
    cli.ok("capability", "unpublish", "paint")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"owner_agent_id": "nobody"}, "invalid_request"),
        ({"version": "no version"}, "invalid_request"),
        ({"contract": None}, "invalid_request"),
        ({"status": "asleep"}, "invalid_request"),
    ],
)
def test_a_gate_that_fails_is_named(
    cli: Cli, agent: str, tmp_path: Path, fields: dict[str, Any], code: str
) -> None:
    result = cli("--json", "capability", "publish", describe(tmp_path, agent, **fields))
    assert (result.code, result.error["code"]) == (1, code)


def test_a_file_that_is_none_is_a_mistake(cli: Cli, tmp_path: Path) -> None:
    assert cli("capability", "publish", str(tmp_path / "none")).code == 2
    (tmp_path / "x").write_text("[]")
    assert cli("capability", "publish", str(tmp_path / "x")).code == 2
