"""A harness of its own for every test."""

import pytest

from tests.access.harness import AccessHarness


@pytest.fixture
def harness() -> AccessHarness:
    return AccessHarness()
