"""One real gateway for all tests that need no other, and mailbox names nobody else uses."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gatepost.testing import GatewayProcess, ManualClock
from tests.gateway.tools import client

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gw") / "state") as running:
        yield running


@pytest.fixture
def http(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with client(gateway) as session:
        yield session


@pytest.fixture
def box() -> str:
    """The name of a mailbox that no other test has touched."""
    return f"box{next(_numbers)}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def start(state: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """`start(mailbox__max_pending=2)` is a gateway of one's own with these settings."""
    with contextlib.ExitStack() as running:
        yield lambda **settings: running.enter_context(GatewayProcess(state, **settings))
