"""`gatepost config`: settings with their origin, and reading them again."""

import json
import os
import signal
import tomllib
from pathlib import Path

import jsonschema_rs  # noqa: TID251
import pytest

from gatepost.gateway.settings_reload import RELOADED
from tests.cli.conftest import Cli, gateway
from tests.waiting import wait_until


@pytest.fixture
def down(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "state")


def test_each_setting_is_shown_with_its_origin(down: Cli) -> None:
    down.ok("init", "--node-id", "lab-1")
    assert down.json("config", "show") == [
        {"name": "node.id", "value": "lab-1", "origin": f"{down.home}/gatepost.toml"}
    ]
    down.env["GATEPOST_NODE__ID"] = "lab-2"
    assert down.json("config", "show") == [
        {"name": "node.id", "value": "lab-2", "origin": "GATEPOST_NODE__ID"}
    ], "the variable wins"
    every = {each["name"]: each for each in down.json("config", "show", "--all")}
    assert every["listen.port"] == {"name": "listen.port", "value": 7433, "origin": "default"}
    assert len(every) > 100


def test_unusable_settings_are_named_without_a_start(down: Cli) -> None:
    assert "can be used; 0 settings" in down.ok("config", "check")
    down.home.mkdir(mode=0o700)
    (down.home / "gatepost.toml").write_text("[listen]\nport = 70000\n")
    result = down("config", "check", "--json")
    assert (result.code, result.error["code"]) == (2, "config_error")
    assert "listen.port" in result.error["message"]


def test_the_schema_beside_the_settings_file_accepts_it_and_refuses_mistakes(down: Cli) -> None:
    down.ok("init", "--public", "--host", "vps.example:7433")
    text = (down.home / "gatepost.toml").read_text()
    assert text.startswith("#:schema ./gatepost.schema.json\n")
    schema = json.loads((down.home / "gatepost.schema.json").read_bytes())
    assert schema == json.loads(down.ok("config", "schema"))
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid(tomllib.loads(text))
    for wrong in ("[listen]\nporrt = 1", "[lissten]\n", "[listen]\nport = 70000", "[node]\nid=' '"):
        assert not validator.is_valid(tomllib.loads(wrong)), wrong


def test_a_running_gateway_takes_over_what_it_can_and_names_the_rest(tmp_path: Path) -> None:
    home, log = tmp_path / "state", tmp_path / "state.log"
    with gateway(home) as cli:
        cli.ok("agent", "add", "bob")
        (home / "gatepost.toml").write_text(
            "[limits]\nmax_agents = 1\n[mailbox]\nmax_retries = 9\n"
        )
        document = cli.json("config", "reload")
        assert document == {
            "applied": ["limits.max_agents"], "needs_restart": ["mailbox.max_retries"]
        }  # fmt: skip
        assert "answers for 1 agents, its maximum" in cli("agent", "add", "cat").err
        (home / "gatepost.toml").write_text("[limits]\nmax_agents = x\n")
        result = cli("config", "reload")
        assert result.code != 0 and "the settings stay as they are" in result.err
        assert "answers for 1 agents, its maximum" in cli("agent", "add", "cat").err, (
            "a mistake changes nothing"
        )
        (home / "gatepost.toml").write_text("[limits]\nmax_agents = 2\n")
        os.kill(json.loads((home / "endpoint.json").read_bytes())["pid"], signal.SIGHUP)
        wait_until(lambda: "in effect: limits.max_agents; after a restart" in log.read_text(), 60)
        cli.ok("agent", "add", "cat")


def test_every_setting_that_is_taken_over_exists(down: Cli) -> None:
    every = {each["name"] for each in down.json("config", "show", "--all")}
    assert {f"{section}.{key}" for section, keys in RELOADED.items() for key in keys} <= every
