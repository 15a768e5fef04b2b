"""`gatepost policy`, which needs no gateway."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

RULES = """
@id("everybody") permit (principal, action, resource);
@id("hardened-only")
forbid (principal, action == Action::"assignTask", resource) unless { resource.hardened };
"""


@pytest.fixture
def home(tmp_path: Path) -> Cli:
    state = tmp_path / "state"
    (state / "agents").mkdir(parents=True)
    state.chmod(0o700)
    soft = {"name": "soft", "command": ["true"]}
    for definition in (soft, soft | {"name": "hard", "hardened": True}):
        (state / "agents" / f"{definition['name']}.json").write_text(json.dumps(definition))
    return Cli(state)


def test_check_names_every_mistake(home: Cli, tmp_path: Path) -> None:
    assert home.ok("policy", "check") == "the built-in rules: 5 rules, no problem\n"
    file = tmp_path / "rules.cedar"
    file.write_text(RULES)
    assert home.ok("policy", "check", str(file)) == f"{file}: 2 rules, no problem\n"
    file.write_text('\npermit (principal, action == Action::"asign", resource);')
    result = home("policy", "check", str(file))
    assert result.code == 1 and f"{file}: line 2: unrecognized action" in result.out


def test_explain_says_which_rule_decided(home: Cli) -> None:
    assert home.ok("policy", "explain", "operator", "assignTask", "soft") == (
        "allowed by described-tasks\n"
    )
    able = {"name": "able", "command": ["true"], "capabilities": ["create_tasks"]}
    (home.home / "agents" / "able.json").write_text(json.dumps(able))
    asked = ("policy", "explain", "able", "useCapability")
    assert home.ok(*asked, "create_tasks") == "allowed by granted-capabilities\n"
    assert home(*asked, "fly").code == 1
    assert home(*asked, "create_tasks", "--context", "granted=false").code == 1
    wrong = home(*asked, "fly", "--context", "granted=maybe")
    assert wrong.code == 2 and "is true or false" in wrong.err
    (home.home / "policy.cedar").write_text(RULES)
    assert home.ok("policy", "explain", "al", "assignTask", "hard") == "allowed by everybody\n"
    denied = home("policy", "explain", "al@lab", "assignTask", "soft")
    assert denied.code == 1
    assert denied.out.startswith("denied: the rule hardened-only forbids agent 'al'")
    found = home.json("policy", "explain", "al", "sendMessage", "hub", "--context", "type=x")
    assert found == {"allowed": True, "rules": ["everybody"], "reason": None}
    wrong = home("policy", "explain", "al", "sendMessage", "hub", "--context", "colour=x")
    assert wrong.code == 2 and "it has type" in wrong.err


def test_test_compares_answers(home: Cli, tmp_path: Path) -> None:
    rules, cases = tmp_path / "rules.cedar", tmp_path / "cases.json"
    rules.write_text(RULES)
    asked = [
        {"principal": "al", "action": "assignTask", "resource": "hard", "expect": "allow"},
        {
            "principal": "al", "action": "assignTask", "resource": "soft",
            "expect": "deny", "rule": "hardened-only",
        },
    ]  # fmt: skip
    cases.write_text(json.dumps(asked))
    assert "2 of 2 cases passed" in home.ok("policy", "test", str(cases), "--file", str(rules))
    asked[0] |= {"expect": "deny", "name": "nobody"}
    asked[1] |= {"rule": "other"}
    cases.write_text(json.dumps(asked))
    result = home("policy", "test", str(cases), "--file", str(rules))
    assert result.code == 1
    assert "nobody: expected deny, and got allow by everybody" in result.out
    assert "case 2: expected the rule other, and got hardened-only" in result.out
    cases.write_text("[{}]")
    assert home("policy", "test", str(cases)).code == 2
