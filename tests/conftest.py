"""What all tests share: how much to run, and on which event loop.

`scripts/test` runs everything at reduced counts, `scripts/test --full` at the full ones.
"""

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("GATEPOST_FULL") == "1"

settings.register_profile("reduced", deadline=None, max_examples=50)
settings.register_profile(
    "full", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("full" if FULL else "reduced")


def choose(reduced: int, full: int) -> int:
    return full if FULL else reduced


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether this run is at full counts."""
    return FULL


@pytest.fixture(scope="session")
def count() -> Callable[[int, int], int]:
    """`count(5, 50)` is 5 in a reduced run and 50 in a full one."""
    return choose


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Tests marked `anyio` run on asyncio, which is what the gateway runs on."""
    return "asyncio"


def pytest_report_header() -> str:
    return f"gatepost: {'full' if FULL else 'reduced'} counts"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not FULL:
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="only with scripts/test --full"))
