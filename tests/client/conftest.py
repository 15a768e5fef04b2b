"""Gateways for the client's tests: one that all share, and one to do harm to."""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from gatepost.client import Client
from gatepost.testing import GatewayProcess

_numbers = count(1)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Shared, so a test names its agents with `unique`. A failed turn is tried twice, quickly."""
    state_dir = tmp_path_factory.mktemp("client") / "state"
    settings = {"mailbox__base_backoff_secs": 0.01, "mailbox__max_retries": 1}
    with GatewayProcess(state_dir, **settings) as process:
        yield process


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts the test's own gateway, with the settings it wants."""
    started: list[GatewayProcess] = []

    def start(**settings: object) -> GatewayProcess:
        started.append(GatewayProcess(tmp_path / "state", **settings).start())
        return started[-1]

    yield start
    for process in started:
        process.__exit__()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """A name that no other test uses."""
    return lambda name: f"{name}-{next(_numbers)}"


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[Client]:
    async with Client("alice", state_dir=gateway.state_dir) as connected:
        yield connected
