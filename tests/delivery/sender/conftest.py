"""Three gateways, a, b and c, which know each other."""

import pytest

from tests.delivery.mesh import Gate, Mesh


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b", "c")


@pytest.fixture
def a(mesh: Mesh) -> Gate:
    return mesh["a"]


@pytest.fixture
def b(mesh: Mesh) -> Gate:
    return mesh["b"]


@pytest.fixture
def c(mesh: Mesh) -> Gate:
    return mesh["c"]
