"""The mesh from the command line: who is alive, and who leads."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, gateway
from tests.live_mesh.test_election import free_port
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
    assert "ann, this gateway, leads the mesh in term" in said
    assert "Node\tState\tRole\tMay lead\tPriority\tSilent\tAddress" in said
    assert "ann\tthis one\tpublisher\tyes\t100\t\t127.0.0.1:" in said
    shown = status(ann)
    assert (shown["transport"], shown["state"], shown["term"]) == ("udp", "publisher", [1, "ann"])


def test_changes_are_watched(ann: Cli) -> None:
    with ann.running("mesh", "watch", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["publisher"] == "ann" and first["changes"] > 0


@pytest.fixture(scope="module")
def eve_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eve") / "state"


@pytest.fixture(scope="module")
def bob(tmp_path_factory: pytest.TempPathFactory, eve_home: Path) -> Iterator[Cli]:
    """A gateway whose mesh another one leads, which is alive."""
    port = free_port()
    base = {"GATEPOST_MESH__TRANSPORT": "udp", "GATEPOST_MESH__HEARTBEAT_SECS": "0.2"}
    homes = {"eve": eve_home, "bob": tmp_path_factory.mktemp("bob") / "state"}
    for home in homes.values():
        home.mkdir(mode=0o700)
    first = base | {"GATEPOST_NODE__ID": "eve", "GATEPOST_MESH__PORT": str(port)}
    first["GATEPOST_MESH__PRIORITY"] = "1"
    second = base | {"GATEPOST_NODE__ID": "bob", "GATEPOST_MESH__PORT": "0"}
    second["GATEPOST_MESH__PEERS"] = f"127.0.0.1:{port}"
    with gateway(homes["eve"], **first) as eve, gateway(homes["bob"], **second) as bob:
        token = eve.invite("--tier", "backbone", "--node", "bob")
        # A node that has had a peer waits for suspicion and grace before it leads.
        wait_until(lambda: status(eve)["publisher"] == "eve")
        url = json.loads((eve.home / "endpoint.json").read_bytes())["url"]
        bob.ok("join", url, "--token", "-", stdin=token.encode())
        wait_until(lambda: status(bob)["publisher"] == "eve" and _peer_state(bob) == "alive")
        yield bob


def _peer_state(cli: Cli) -> str:
    return "".join(str(peer["state"]) for peer in cli.json("mesh", "status")["peers"])


def test_every_command_says_the_state_of_a_peer_in_the_same_words(bob: Cli) -> None:
    def texts() -> set[str]:
        (peer,) = bob.json("mesh", "status")["peers"]
        (node,) = [each for each in bob.json("nodes")["nodes"] if each["id"] == "eve"]
        (status,) = bob.json("status")["gateway"]["peers"]
        found = {str(each) for each in (peer["state_text"], node["state"], status["state"])}
        return {re.sub(r"[\d.]+ (ms|s)", "AGE", text) for text in found}

    wait_until(lambda: texts() == {"online, linked, heard AGE ago"})
    assert "eve\tonline, linked, heard " in bob.ok("mesh", "status")
    with bob.running("mesh", "watch") as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(" ago\n")


def test_a_degraded_gateway_is_shown_elsewhere_with_its_reason(bob: Cli, eve_home: Path) -> None:
    """Its details stay on its machine: here, the name of a file and what is wrong in it."""
    wrong = eve_home / "agents" / "wrong.json"
    wrong.write_text("this is secret")
    words = "degraded (the agents folder has a mistake), linked, heard "
    wait_until(lambda: words in bob.ok("nodes"))
    assert words in bob.ok("status") and words in bob.ok("mesh", "status")
    assert "wrong.json" not in bob.ok("nodes") and "secret" not in bob.ok("nodes")
    wrong.unlink()


def test_a_gateway_that_does_not_lead_says_who_does_when_it_is_to_release_the_lease(
    bob: Cli,
) -> None:
    refused = bob("mesh", "release")
    assert refused.code != 0
    assert "this gateway does not lead the mesh; eve does" in refused.err


def test_the_lease_is_not_released_where_no_other_gateway_can_lead(ann: Cli) -> None:
    refused = ann("mesh", "release", "--json")
    assert refused.code != 0 and refused.error["code"] == "conflict"
    assert "no other gateway of the mesh is alive that may lead" in refused.error["message"]
    assert status(ann)["publisher"] == "ann"


def test_without_a_mesh_the_genesis_leads(tmp_path: Path) -> None:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    with gateway(home, GATEPOST_NODE__ID="ann") as cli:
        assert "there is no room yet; ann, this gateway, is in no mesh" in cli.ok("mesh", "status")
        cli.invite("--tier", "edge")
        assert "ann leads, as the genesis of the room; ann, this gateway, is in no mesh" in cli.ok(
            "mesh", "status"
        )
