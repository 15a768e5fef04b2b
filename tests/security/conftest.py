from collections.abc import Iterator
from itertools import count

import pytest

from simulation.hostile import HostileNode
from tests.security.siege import Siege


@pytest.fixture(scope="package")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """One siege for all tests that leave it as they found it."""
    with Siege.laid(tmp_path_factory.mktemp("siege")) as laid:
        yield laid


_numbers = count(1)


@pytest.fixture
def mallory(siege: Siege) -> HostileNode:
    """An edge node that no other test has used, so that incidents about it are about this test."""
    return siege.admit(f"mallory{next(_numbers)}")
