"""The mesh from the command line: who is alive, and who leads."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, gateway
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A gateway with a mesh, alone in the room it founded."""
    home = tmp_path_factory.mktemp("mesh") / "state"
    home.mkdir(mode=0o700)
    settings = {
        "GATEPOST_NODE__ID": "ann",
        "GATEPOST_MESH__TRANSPORT": "udp",
        "GATEPOST_MESH__PORT": "0",
        "GATEPOST_MESH__HEARTBEAT_SECS": "0.1",
    }
    with gateway(home, **settings) as cli:
        cli.invite("--tier", "edge")
        wait_until(lambda: status(cli)["publisher"] == "ann")
        yield cli


def status(cli: Cli) -> dict[str, object]:
    return dict(json.loads(cli.ok("mesh", "status", "--json")))


def test_the_status_names_the_leader_and_its_term(ann: Cli) -> None:
    said = ann.ok("mesh", "status")
    assert "ann leads, term 1 of ann; this gateway, ann, is publisher" in said
    assert "Node\tState\tRole\tMay lead\tPriority\tSilent\tAddress" in said
    assert "ann\tthis one\tpublisher\tyes\t100\t\t127.0.0.1:" in said
    shown = status(ann)
    assert (shown["transport"], shown["state"], shown["term"]) == ("udp", "publisher", [1, "ann"])


def test_changes_are_watched(ann: Cli) -> None:
    with ann.running("mesh", "watch", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["publisher"] == "ann" and first["changes"] > 0


def test_without_a_mesh_the_genesis_leads(tmp_path: Path) -> None:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    with gateway(home, GATEPOST_NODE__ID="ann") as cli:
        assert "nobody leads; this gateway, ann, is off" in cli.ok("mesh", "status")
        cli.invite("--tier", "edge")
        assert "ann leads; this gateway, ann, is off" in cli.ok("mesh", "status")
