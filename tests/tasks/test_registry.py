import pytest

from gatepost.tasks.agent_definition import AgentDefinition
from gatepost.tasks.registry import (
    MAX_FILE_BYTES,
    MAX_FILES,
    AgentRegistry,
    FileContent,
    parse_definition,
)

SEED = b"""{
  "name": "code-reviewer",
  "image": "brainbox-researcher",
  "description": "Reviews pull requests and suggests improvements",
  "capabilities": ["read_code", "write_reviews", "use_tools"],
  "hardened": true
}"""


def definition(name: str, command: str = "true") -> bytes:
    return b'{"name": "%s", "command": ["%s"]}' % (name.encode(), command.encode())


def test_the_schema_of_the_hub_is_read_as_it_is() -> None:
    found = parse_definition(SEED)
    assert (found.name, found.image, found.hardened) == (
        "code-reviewer",
        "brainbox-researcher",
        True,
    )
    assert found.capabilities == ("read_code", "write_reviews", "use_tools")
    assert found.runtime_name == "docker"


def test_a_command_alone_runs_as_a_process() -> None:
    assert parse_definition(definition("a")).runtime_name == "process"


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b'{\n  "name": "a",\n  "command": ["x"],\n}', 4, "trailing comma"),
        (b'{\n "name": "a",\n "command": ["x"],\n "colour": 1\n}', 4, "unknown field `colour`"),
        (b'{\n "name": "../a",\n "command": ["x"]\n}', 2, "regex"),
        (b'{\n "name": "a",\n "command": ["x"],\n "limits": {\n  "memory_mb": 1\n }}', 5, ">= 16"),
        (b'{\n "name": "a"\n}', 0, "needs a `command`"),
        (b'{"name": "a", "image": "i", "runtime": "process"}', 0, "needs a `command`"),
        (b'{"name": "a", "command": ["x"], "runtime": "docker"}', 0, "needs an `image`"),
        (b"\xff", 1, "invalid"),
        (b"", 0, "truncated"),
        (b'{\n "name": "a",\n "command": ["x"]\n', 3, "truncated"),
        (b'{"name": "hub", "command": ["x"]}', 0, "no agent can have the name 'hub'"),
        (b'{"name": "operator", "command": ["x"]}', 0, "it is reserved"),
        (b'{"name": "a", "command": ["x"], "max_sessions": 1}', 1, "unknown field"),
        (PermissionError(13, "Permission denied"), 0, "it cannot be read: Permission denied"),
        (b"[]", 0, "Expected `object`"),
        (b" " * (MAX_FILE_BYTES + 1), 0, "more than"),
    ],
)
def test_a_broken_file_is_reported_with_line_and_reason_and_harms_no_other(
    content: FileContent, line: int, reason: str
) -> None:
    registry = AgentRegistry()
    registry.load_files({"a.json": content, "b.json": definition("b")})
    (problem,) = registry.problems
    assert (problem.file, problem.line) == ("a.json", line)
    assert reason in problem.reason
    assert list(registry.agents) == ["b"]


def test_an_agent_whose_file_breaks_keeps_its_last_good_definition() -> None:
    registry = AgentRegistry()
    registry.load_files({"a.json": definition("a", "one")})
    registry.load_files({"a.json": b"{"})
    assert registry.agents["a"].command == ("one",)
    assert len(registry.problems) == 1
    registry.load_files({"a.json": definition("a", "two")})
    assert registry.agents["a"].command == ("two",)
    assert registry.problems == []
    registry.load_files({})
    with pytest.raises(KeyError):
        registry.agents["a"]


def test_two_files_for_one_name_are_reported_and_the_first_counts() -> None:
    registry = AgentRegistry()
    registry.load_files({"b.json": definition("x", "two"), "a.json": definition("x", "one")})
    assert registry.agents["x"].command == ("one",)
    assert str(registry.problems[0]) == "b.json: a.json defines the agent 'x' already"


def test_the_number_of_files_is_bounded() -> None:
    files = {f"{n:05}.json": definition(f"a{n}") for n in range(MAX_FILES + 1)}
    registry = AgentRegistry()
    registry.load_files(files)
    assert len(registry.agents) == MAX_FILES
    assert registry.problems[0].file == f"{MAX_FILES:05}.json"


def test_a_definition_needs_something_to_run() -> None:
    with pytest.raises(ValueError, match="needs a `command`"):
        AgentDefinition(name="a")
