"""A door of its own for every test."""

import pytest

from tests.access.gate import Gate


@pytest.fixture
def gate() -> Gate:
    return Gate()
