from collections.abc import Iterator

import pytest

from tests.security.siege import Siege


@pytest.fixture(scope="package")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """One siege for all tests that leave it as they found it."""
    with Siege.laid(tmp_path_factory.mktemp("siege")) as laid:
        yield laid
