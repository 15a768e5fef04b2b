import pytest

from tests.hub.harness import HubHarness


@pytest.fixture
def hub() -> HubHarness:
    return HubHarness()
