import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live_mesh.cable import Cable
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

# A sender waits for the word of an owner for 8.3 s with these: no settings make that shorter.
SHORT_WAITS = {"delivery__offline_secs": 3, "delivery__accept_timeout_secs": 2}


@contextlib.contextmanager
def running(folder: Path, *names: str, **settings: object) -> Iterator[list[Gateway]]:
    """Gateways, started side by side."""
    with contextlib.ExitStack() as ends:
        gateways = [Gateway(folder, name, **settings) for name in names]
        for gateway in gateways:
            gateway.spawn()
            ends.push(gateway.__exit__)
        for gateway in gateways:
            gateway.wait_ready()
        yield gateways


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[Gateway]]]:
    """`start("ann", "bob")` are running gateways of these names that have not met."""
    with contextlib.ExitStack() as ends:
        yield lambda *names, **settings: ends.enter_context(running(tmp_path, *names, **settings))


@pytest.fixture
def cabled(tmp_path: Path) -> Iterator[tuple[Gateway, Gateway, Cable]]:
    """ann and bob, behind whom `bo` lives: they meet if he dials her through the cable.

    She waits for a short time only. Links may be silent for longer than that by his settings.
    """
    with contextlib.ExitStack() as ends:
        cable, closed = ends.enter_context(Cable()), ends.enter_context(Cable())
        closed.cut()
        ann, bob = (
            ends.enter_context(Gateway(tmp_path, name, room__public_url=url, **settings))
            for name, url, settings in (("ann", cable.url, SHORT_WAITS), ("bob", closed.url, {}))
        )
        cable.port = ann.port
        bob.call("POST", "/room/join", {"seed": cable.url, "token": ann.invite("bob", "edge")})
        bob.call("PUT", "/agents/bo")
        wait_until(lambda: "bo@bob" in ann.routes())
        wait_until(lambda: ann.connected_to("bob"))
        yield ann, bob, cable


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """Three gateways in one room: ann, who founded it, then bob and cat, whom she invited.

    Tests share them, and leave them all running.
    """
    with running(tmp_path_factory.mktemp("three"), "ann", "bob", "cat") as (ann, bob, cat):
        bob.join(ann)
        cat.join(ann)
        yield [ann, bob, cat]
