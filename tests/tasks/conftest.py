import pytest

from tests.tasks.harness import HubHarness


@pytest.fixture
def hub() -> HubHarness:
    return HubHarness()
