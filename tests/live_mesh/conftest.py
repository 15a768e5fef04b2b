import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live_mesh.tools import Gateway


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


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """Three gateways in one room: ann, who founded it, then bob and cat, whom she invited.

    Tests share them, and leave them all running.
    """
    with running(tmp_path_factory.mktemp("three"), "ann", "bob", "cat") as (ann, bob, cat):
        bob.join(ann)
        cat.join(ann)
        yield [ann, bob, cat]
