"""Routes, standbys and claims from the command line, with two real gateways in one room."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cli.conftest import Cli, gateway
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Cli]]:
    """Ann's gateway, and jane's, an edge node in ann's room."""
    with ExitStack() as running:
        clis = []
        for name in ("ann", "jane"):
            home = tmp_path_factory.mktemp(name) / "state"
            home.mkdir(mode=0o700)
            env = {"GATEPOST_NODE__ID": name, "GATEPOST_DELIVERY__TRANSFER_GRACE_SECS": "0.2"}
            clis.append(running.enter_context(gateway(home, **env)))
        ann, jane = clis
        url = json.loads((ann.home / "endpoint.json").read_bytes())["url"]
        jane.ok("join", url, "--token", "-", stdin=ann.invite().encode())
        yield ann, jane


def _eventually(cli: Cli, arguments: list[str], expected: str) -> None:
    wait_until(lambda: expected in cli.ok(*arguments), 10, failure=lambda: str(cli.ok(*arguments)))


@pytest.fixture
def bob(pair: tuple[Cli, Cli], request: pytest.FixtureRequest) -> str:
    """An agent of the test's own: it lives behind ann, and jane knows it."""
    ann, jane = pair
    name = str(request.node.name)
    ann.ok("agent", "add", name)
    _eventually(jane, ["agent", "list", "--room"], f"{name}\tann")
    return name


def _stand_by(pair: tuple[Cli, Cli], agent: str) -> None:
    """Jane stands by for the agent, and ann knows it."""
    ann, jane = pair
    assert jane.ok("agent", "add", agent, "--standby") == f"this gateway stands by for {agent}\n"
    _eventually(ann, ["agent", "list", "--room"], f"{agent}\tann\tjane")


def test_a_room_without_routes_says_so(cli: Cli) -> None:
    cli.invite()
    assert "every agent is reached where it lives" in cli.ok("route", "list")


def test_a_standby_and_a_route_to_it(pair: tuple[Cli, Cli], bob: str) -> None:
    ann, jane = pair
    _stand_by(pair, bob)
    _eventually(jane, ["agent", "list"], f"{bob}\texternal\t\tann, standby here")
    said = ann.ok("route", "set", bob, "--fallback", "jane", "--priority", "5")
    assert said == f"{bob} is reached by ann, then jane\n"
    (route,) = (route for route in ann.json("route", "list") if route["target"] == bob)
    assert (route["fallbacks"], route["priority"]) == (["jane"], 5)
    _eventually(jane, ["route", "list"], f"{bob}\tann\tjane\t\t5\tann")


def test_who_has_no_say_is_told_why(pair: tuple[Cli, Cli], bob: str) -> None:
    ann, jane = pair
    _stand_by(pair, bob)
    result = jane("route", "set", bob, "--fallback", "jane", "--json")
    assert (result.code, result.error["code"]) == (1, "forbidden")
    assert "backbone node" in result.error["message"]
    ann.ok("route", "set", bob, "--fallback", "jane")
    _eventually(jane, ["route", "list"], f"{bob}\tann\tjane")
    result = jane("route", "remove", bob, "--json")
    assert (result.code, result.error["code"]) == (1, "conflict")


def test_a_fallback_is_a_node_of_the_room(pair: tuple[Cli, Cli], bob: str) -> None:
    result = pair[0]("route", "set", bob, "--fallback", "nowhere", "--json")
    assert (result.code, result.error["code"]) == (1, "unknown_node")


def test_a_route_is_taken_back(pair: tuple[Cli, Cli], bob: str) -> None:
    ann, _ = pair
    _stand_by(pair, bob)
    ann.ok("route", "set", bob, "--fallback", "jane")
    assert ann.ok("route", "remove", bob) == f"the route for {bob} is removed\n"
    result = ann("route", "remove", bob, "--json")
    assert (result.code, result.error["code"]) == (1, "not_found")


def test_an_agent_is_given_away_and_not_taken(pair: tuple[Cli, Cli], bob: str) -> None:
    ann, jane = pair
    # Jane lists an agent a moment before she can ask for it.
    wait_until(lambda: "gatepost agent give" in jane("agent", "claim", bob).err, 10)
    assert f"{bob}\tann" in ann.ok("agent", "list", "--room")
    assert f"run `gatepost agent add {bob}` there" in ann.ok("agent", "give", bob, "jane")
    _eventually(ann, ["agent", "list", "--room"], f"{bob}\tjane")
    result = jane("agent", "claim", bob, "--override", "--json")
    assert (result.code, result.error["code"]) == (1, "forbidden")
    result = ann("agent", "claim", bob, "--override", "--json")
    assert result.code == 1, "its owner is alive"
    assert f"{bob}\tjane" in jane.ok("agent", "list", "--room")
