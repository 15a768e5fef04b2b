import os
from pathlib import Path

from gatepost.tasks.policy import Hub, Operator, Policy
from gatepost.tasks.registry import MAX_FILE_BYTES, AgentRegistry
from gatepost.tasks.service.hub_files import PolicyFile, RegistryFolder, read_definition_files
from tests.tasks.service.hub_client import HubClient
from tests.waiting import wait_until


def test_a_folder_tells_whether_its_definitions_changed(tmp_path: Path) -> None:
    folder = RegistryFolder(AgentRegistry(), tmp_path)
    assert not folder.load()
    (tmp_path / "a.json").write_text('{"name": "a", "command": ["true"]}')
    assert folder.load() and not folder.load()
    (tmp_path / "notes.txt").write_text("not a definition")
    assert not folder.load()
    (tmp_path / "a.json").write_text("{")
    assert folder.load() and not folder.load()


def test_a_missing_folder_has_no_files_and_a_long_file_is_cut(tmp_path: Path) -> None:
    assert read_definition_files(tmp_path / "none") == {}
    (tmp_path / "a.json").write_bytes(b" " * (3 * MAX_FILE_BYTES))
    content = read_definition_files(tmp_path)["a.json"]
    assert isinstance(content, bytes) and len(content) == MAX_FILE_BYTES + 1


def test_an_agent_stays_while_its_file_cannot_be_read(tmp_path: Path) -> None:
    registry = AgentRegistry()
    folder = RegistryFolder(registry, tmp_path)
    file = tmp_path / "a.json"
    file.write_text('{"name": "a", "command": ["true"]}')
    folder.load()
    for make in (Path.mkdir, os.mkfifo):
        file.unlink() if file.is_file() else None
        make(file)
        folder.load()
        assert (list(registry.agents), len(registry.problems)) == (["a"], 1)
        file.rmdir() if file.is_dir() else file.unlink()


def test_a_policy_that_cannot_be_read_leaves_the_rules_and_at_start_denies_everything(
    tmp_path: Path,
) -> None:
    policy, path = Policy(), tmp_path / "policy.cedar"
    path.mkdir()
    file = PolicyFile(policy, path)
    file.load_first()
    assert "cannot be read: Is a directory" in str(file.problem)
    assert not policy.evaluate_message(Operator(), Hub(), "x").allowed
    path.rmdir()
    file.load()
    assert file.problem is None
    path.mkdir()
    file.load()
    assert "cannot be read" in str(file.problem)
    assert policy.evaluate_message(Operator(), Hub(), "x").allowed


def test_a_broken_policy_at_start_denies_everything_until_it_is_mended(tmp_path: Path) -> None:
    policy, path = Policy(), tmp_path / "policy.cedar"
    path.write_bytes(b"\xff")
    file = PolicyFile(policy, path)
    file.load_first()
    assert "UTF-8" in str(file.problem)
    assert not policy.evaluate_message(Operator(), Hub(), "x").allowed
    path.write_text("permit (principal, action, resource);")
    file.load()
    assert str(file.problem) == "None"
    assert policy.evaluate_message(Operator(), Hub(), "").allowed
    path.unlink()
    file.load()
    assert not policy.evaluate_message(Operator(), Hub(), "").allowed


def test_the_gateway_follows_its_agents_folder(hub: HubClient) -> None:
    hub.define("comes", "true")
    file = hub.state_dir / "agents" / "comes.json"
    file.write_text('{\n"name": "comes",\n}')
    problem = wait_until(lambda: [p for p in hub.get("agents")["problems"] if p["line"] == 3])
    assert problem[0]["file"] == "comes.json" and "trailing comma" in problem[0]["reason"]
    assert "comes" in [agent["name"] for agent in hub.get("agents")["agents"]]
    file.unlink()
    wait_until(lambda: "comes" not in [agent["name"] for agent in hub.get("agents")["agents"]])
    assert hub.post_task("comes").json()["code"] == "invalid_targets"


def test_a_task_that_came_before_its_agent_was_defined_gets_a_session(hub: HubClient) -> None:
    with hub.http() as http:
        http.put("/v1/agents/early").raise_for_status()
    id = hub.create("early")
    assert hub.task(id)["state"] == "pending"
    hub.define("early", "sh", "-c", "echo 7 > $GATEPOST_RESULT_FILE")
    assert hub.wait_for_end(id)["result"] == 7
