from collections.abc import Iterator

import pytest

from tests.tasks.service.hub_client import HubClient


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubClient]:
    """One gateway for all tests that do not restart it; each defines agents of its own."""
    client = HubClient(tmp_path_factory.mktemp("hub") / "gateway")
    with client.gateway:
        yield client
