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
        jane.ok("join", url, "--token", "-", stdin=ann.ok("invite").encode())
        yield ann, jane


def _eventually(cli: Cli, arguments: list[str], expected: str) -> None:
    wait_until(lambda: expected in cli.ok(*arguments), 10, failure=lambda: str(cli.ok(*arguments)))


def test_a_standby_and_a_route_to_it(pair: tuple[Cli, Cli]) -> None:
    ann, jane = pair
    assert "every agent is reached where it lives" in ann.ok("route", "list")
    ann.ok("agent", "add", "bob")
    _eventually(jane, ["agent", "list", "--room"], "bob\tann")
    assert jane.ok("agent", "add", "bob", "--standby") == "this gateway stands by for bob\n"
    _eventually(jane, ["agent", "list"], "bob\texternal\tann, standby here")
    _eventually(ann, ["agent", "list", "--room"], "bob\tann\tjane")
    said = ann.ok("route", "set", "bob", "--fallback", "jane", "--priority", "5")
    assert said == "bob is reached by ann, then jane\n"
    (route,) = ann.json("route", "list")
    assert (route["target"], route["fallbacks"], route["priority"]) == ("bob", ["jane"], 5)
    _eventually(jane, ["route", "list"], "bob\tann\tjane\t\t5\tann")


def test_who_has_no_say_is_told_why(pair: tuple[Cli, Cli]) -> None:
    result = pair[1]("route", "set", "bob", "--fallback", "jane", "--json")
    assert (result.code, result.error["code"]) == (1, "forbidden")
    assert "backbone node" in result.error["message"]
    assert pair[1]("route", "remove", "bob").code == 1
    assert pair[0]("route", "set", "bob", "--fallback", "nowhere").code == 1


def test_a_route_is_taken_back(pair: tuple[Cli, Cli]) -> None:
    assert pair[0].ok("route", "remove", "bob") == "the route for bob is removed\n"
    result = pair[0]("route", "remove", "bob", "--json")
    assert (result.code, result.error["code"]) == (1, "not_found")


def test_an_agent_is_claimed_and_overridden(pair: tuple[Cli, Cli]) -> None:
    ann, jane = pair
    said = jane.ok("agent", "claim", "bob")
    assert said == "bob lives behind ann, which was asked to let it go\n"
    _eventually(ann, ["agent", "list", "--room"], "bob\tjane")
    result = jane("agent", "claim", "bob", "--override", "--json")
    assert (result.code, result.error["code"]) == (1, "forbidden")
    assert ann.ok("agent", "claim", "bob", "--override") == "bob lives behind ann\n"
    _eventually(jane, ["agent", "list", "--room"], "bob\tann")
    assert ann.ok("agent", "claim", "bob", "--override", "--node", "jane").endswith("jane\n")
